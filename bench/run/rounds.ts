import type { FigureName, Figures, LineResult } from '../report/results.ts'
import type { Line, Sleeper } from './context.ts'

export interface Rounds {
  readonly rounds: number
  readonly roundMs: number
  /** Told before each measurement. */
  readonly onStep: (step: Step) => void
}

export interface Step {
  /** 0: the one that is not counted. */
  readonly round: number
  readonly done: number
  readonly line: Line
}

/** The round that is not counted compiles code and warms caches: so much of a round. */
const WARM_UP = 0.5

/**
 * Everything in turns: each line is measured once in each round, in another order every time, so
 * that what the machine does meanwhile, and what a line leaves behind, falls on all of them alike.
 * Lines that are compared with each other lie close together, and those of one process beside each
 * other. A line that fails ends the run: a figure from something that errs is no figure.
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
    // Without what measures it: what is left is data.
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
