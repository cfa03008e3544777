import type { Figures, LineNames } from '../report/results.ts'
import type { Scale } from './scale.ts'
import type { Servers } from './servers.ts'
import { startProgram, type RunningProgram } from './start-program.ts'

/** A process that was idle since the last round, and is slower in its first seconds. */
export interface Sleeper {
  readonly wake: () => Promise<unknown>
}

/** Puts a process under load for this time before it is measured. Zero means not at all. */
export function sleeperOf(ms: number, load: (ms: number) => Promise<unknown>): Sleeper {
  return {
    wake: async () => {
      if (ms > 0) await load(ms)
    },
  }
}

/** A line that is measured once in every round. */
export interface Line extends LineNames {
  /** Lines of one process are measured in sequence, so that it is woken once in a round. */
  readonly sleeper?: Sleeper
  /** Lines of one family are compared, and so measured close together. @default its group */
  readonly family?: string
  /** Measures for about this time, unless the work ends earlier. */
  readonly measure: (ms: number) => Promise<Figures>
  /** Duration of the uncounted round, in rounds. @default 0.5 */
  readonly warmUp?: number
}

/** Services for the groups that set up their lines. Everything ends with the run. */
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

  /** Starts one of `programs/`, which ends with the run. */
  async start(name: string, config: unknown, title: string): Promise<RunningProgram> {
    this.say(`starting and checking ${title}`)
    const program = await startProgram(name, config, title)
    this.onEnd(() => program.close())
    return program
  }

  /** Registers an end function. The last one registered runs first. */
  onEnd(end: () => Promise<unknown>): void {
    this.#ends.unshift(end)
  }

  async close(): Promise<void> {
    for (const end of this.#ends) await end()
  }
}

/** Starting a process uses a core for most of a second: more at once would not be faster. */
const STARTED_AT_ONCE = 3

/** Returns the values in the order of the items. */
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
