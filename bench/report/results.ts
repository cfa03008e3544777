/** What a run has measured: lines of figures, one value of each for every round. */

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

/** What one round of one line gave. */
export type Figures = Partial<Record<FigureName, number>>

/** What a line is, apart from how it is measured. */
export interface LineNames {
  /** As targets name it: `engine.postgres.first.64`. */
  readonly id: string
  readonly group: Group
  /** Who is measured. */
  readonly subject: string
  /** What is measured: `first requests`, `replays`. */
  readonly what: string
  /** How much of it at once: `64 in flight`. */
  readonly load: string
  /** The id of the line whose rate this one's is shown against. */
  readonly base?: string
  /** What it does not do, or does beyond the others. */
  readonly note?: string
}

export interface LineResult extends LineNames {
  /** In the order of the rounds. */
  readonly figures: Readonly<Partial<Record<FigureName, readonly number[]>>>
}

/** One figure of one line. */
export interface FigureRef {
  readonly line: string
  readonly figure: FigureName
}

/** The values of a figure, or `undefined` where the run has not measured it. */
export function valuesOf(
  lines: readonly LineResult[],
  { line, figure }: FigureRef,
): readonly number[] | undefined {
  const values = lines.find(({ id }) => id === line)?.figures[figure]
  return values === undefined || values.length === 0 ? undefined : values
}
