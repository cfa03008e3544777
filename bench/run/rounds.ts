import type { FigureName, Figures, LineResult } from '../report/results.ts'
import type { Line, Sleeper } from './context.ts'

export interface Rounds {
  readonly rounds: number
  readonly roundMs: number
  /** Called before each measurement. */
  readonly onStep: (step: Step) => void
}

export interface Step {
  /** The number of the round. 0 is the uncounted round. */
  readonly round: number
  readonly done: number
  readonly line: Line
}

/** Duration of the uncounted round, which compiles code and warms caches, in rounds. */
const WARM_UP = 0.5

/**
 * Measures in turns: each line once in each round, in a new order every time, so that disturbances
 * of the machine, and effects of one line on the next, are distributed over all lines. Lines that
 * are compared are close together, and lines of one process adjacent. A line that fails ends the
 * run, because the figures of a failing subject are meaningless.
 */
export async function measureRounds(
  lines: readonly Line[],
  { rounds, roundMs, onStep }: Rounds,
): Promise<LineResult[]> {
  const figures = new Map(lines.map(({ id }) => [id, [] as Figures[]]))
  for (let round = 0; round <= rounds; round++) {
    let awake: Sleeper | undefined
    for (const [done, line] of inSomeOrder(lines).entries()) {
      onStep({ round, done, line })
      const part = round === 0 ? (line.warmUp ?? WARM_UP) : 1
      const measured = await measureOne(line, roundMs * part, awake)
      awake = line.sleeper
      if (round > 0) figures.get(line.id)!.push(measured)
    }
  }
  return lines.map((line) => {
    // Without the functions, the rest is data.
    const { measure, warmUp, sleeper, family, ...names } = line
    void measure
    void warmUp
    void sleeper
    void family
    return { ...names, figures: bySeries(figures.get(names.id)!) }
  })
}

function inSomeOrder(lines: readonly Line[]): Line[] {
  return shuffledBy(lines, ({ family, group }) => family ?? group).flatMap((family) =>
    shuffledBy(family, (line) => line.sleeper ?? line).flatMap(shuffled),
  )
}

function shuffledBy(lines: readonly Line[], keyOf: (line: Line) => unknown): Line[][] {
  return shuffled([...Map.groupBy(lines, keyOf).values()])
}

async function measureOne(line: Line, ms: number, awake: Sleeper | undefined): Promise<Figures> {
  try {
    if (line.sleeper !== awake) await line.sleeper?.wake()
    return await line.measure(ms)
  } catch (error) {
    throw new Error(`${line.id} could not be measured`, { cause: error })
  }
}

function bySeries(rounds: readonly Figures[]): Partial<Record<FigureName, number[]>> {
  const series: Partial<Record<FigureName, number[]>> = {}
  for (const figures of rounds) {
    for (const [name, value] of Object.entries(figures) as [FigureName, number][]) {
      ;(series[name] ??= []).push(value)
    }
  }
  return series
}

function shuffled<Item>(items: readonly Item[]): Item[] {
  const order = items.map((item) => ({ item, at: Math.random() }))
  return order.toSorted((one, other) => one.at - other.at).map(({ item }) => item)
}
