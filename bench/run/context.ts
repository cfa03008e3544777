import type { Figures, LineNames } from '../report/results.ts'
import type { Scale } from './scale.ts'
import type { Servers } from './servers.ts'
import { startProgram, type RunningProgram } from './start-program.ts'

/** A process that has rested since the round before, and is slower in its first seconds. */
export interface Sleeper {
  readonly wake: () => Promise<unknown>
}

/** Under load for so long before it is measured. Nobody is woken where that is no time at all. */
export function sleeperOf(ms: number, load: (ms: number) => Promise<unknown>): Sleeper {
  return {
    wake: async () => {
      if (ms > 0) await load(ms)
    },
  }
}

/** A line that is measured once in every round. */
export interface Line extends LineNames {
  /** Its lines are measured one after the other, so that it is woken once in a round. */
  readonly sleeper?: Sleeper
  /** Compared with each other, and so measured close together. @default its group */
  readonly family?: string
  /** Takes about so long, unless what it does has an end of its own. */
  readonly measure: (ms: number) => Promise<Figures>
  /** Of the round that is not counted, in rounds. @default 0.5 */
  readonly warmUp?: number
}

/** What a group needs to set up its lines, and what is ended with the run. */
export class Context {
  readonly servers: Servers
  readonly scale: Scale
  readonly say: (text: string) => void
  readonly #ends: (() => Promise<unknown>)[] = []

  constructor(servers: Servers, scale: Scale, say: (text: string) => void) {
    this.servers = servers
    this.scale = scale
    this.say = say
  }

  /** Starts one of `programs/`, to be ended with the run. */
  async start(name: string, config: unknown, title: string): Promise<RunningProgram> {
    this.say(`starting and proving ${title}`)
    const program = await startProgram(name, config, title)
    this.onEnd(() => program.close())
    return program
  }

  /** The last one first. */
  onEnd(end: () => Promise<unknown>): void {
    this.#ends.unshift(end)
  }

  async close(): Promise<void> {
    for (const end of this.#ends) await end()
  }
}

/** Starting a process costs a core for most of a second: more at once would take no less time. */
const STARTED_AT_ONCE = 3

/** In the order of the items. */
export async function inParallel<Item, Value>(
  items: readonly Item[],
  open: (item: Item) => Promise<Value>,
): Promise<Value[]> {
  const values = Array.from<Value>({ length: items.length })
  const left = [...items.entries()]
  const worker = async () => {
    for (let next = left.shift(); next !== undefined; next = left.shift()) {
      values[next[0]] = await open(next[1])
    }
  }
  await Promise.all(Array.from({ length: STARTED_AT_ONCE }, worker))
  return values
}
