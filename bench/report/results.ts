/** The results of a run: lines of figures, with one value of each figure per round. */

export const GROUPS = [
  'engine',
  'network',
  'http',
  'peers',
  'limits',
  'choices',
  'relay',
  'growth',
] as const

export type Group = (typeof GROUPS)[number]

/** `rate` in calls a second, `p50` and `p99` in ms, `cpu` in µs a call, `bytes` a request. */
export type FigureName = 'rate' | 'p50' | 'p99' | 'cpu' | 'bytes'

/** The figures of one line in one round. */
export type Figures = Partial<Record<FigureName, number>>

/** The description of a line, without its measurement. */
export interface LineNames {
  /** The id that targets use: `engine.postgres.first.64`. */
  readonly id: string
  readonly group: Group
  /** The measured subject. */
  readonly subject: string
  /** The measured kind of request: `first requests`, `replays`. */
  readonly what: string
  /** The concurrency: `64 in flight`. */
  readonly load: string
  /** The id of the line whose rate this one is compared with. */
  readonly base?: string
  /** Features that the subject leaves out, or has beyond the others. */
  readonly note?: string
}

export interface LineResult extends LineNames {
  /** Values in the order of the rounds. */
  readonly figures: Readonly<Partial<Record<FigureName, readonly number[]>>>
}

/** One figure of one line. */
export interface FigureRef {
  readonly line: string
  readonly figure: FigureName
}

/** The values of a figure, or `undefined` if the run has not measured it. */
export function valuesOf(
  lines: readonly LineResult[],
  { line, figure }: FigureRef,
): readonly number[] | undefined {
  const values = lines.find(({ id }) => id === line)?.figures[figure]
  return values === undefined || values.length === 0 ? undefined : values
}
