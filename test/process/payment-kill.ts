/**
 * Counts every continuation of a process, and kills it (-9) at one of them. A continuation is what
 * runs after an `await`, a `then`, a timer or an answer from outside: between two of them nothing
 * else can happen in the process, so these are all the points at which it can be left.
 */
import { createHook } from 'node:async_hooks'
import { relative } from 'node:path'
import { fileURLToPath } from 'node:url'

/** What has been done for good, and by which continuation. */
export interface Mark {
  readonly what: string
  readonly at: number
}

export interface Trace {
  readonly points: number
  readonly marks: readonly Mark[]
  /** Where in the sources the process waited for each of them, as `file:line`. */
  readonly awaited: readonly string[]
}

const ROOT = fileURLToPath(new URL('../../', import.meta.url))

export class KillPoint {
  readonly #killAt: number
  readonly #marks: Mark[] = []
  readonly #awaited: string[] = []
  readonly #waiting = new Map<number, string>()
  #points = 0
  #hook: ReturnType<typeof createHook> | undefined

  /** @param killAt the number of a continuation, from 1; 0: none, they are only counted. */
  constructor(killAt: number) {
    this.#killAt = killAt
  }

  start(): void {
    const isTracing = this.#killAt === 0
    const init = (id: number) => void this.#waiting.set(id, whereNow())
    const before = (id: number) => {
      if (++this.#points === this.#killAt) process.kill(process.pid, 'SIGKILL')
      if (isTracing) this.#awaited.push(this.#waiting.get(id) ?? '')
    }
    this.#hook = createHook(isTracing ? { init, before } : { before }).enable()
  }

  mark(what: string): void {
    this.#marks.push({ what, at: this.#points })
  }

  stop(): Trace {
    this.#hook?.disable()
    return { points: this.#points, marks: this.#marks, awaited: this.#awaited }
  }
}

/** The nearest line of our own sources. */
function whereNow(): string {
  const { stack = '' } = new Error('here')
  for (const line of stack.split('\n').slice(1)) {
    const found = /(?:file:\/\/)?(\/[^():]+):(\d+):\d+\)?$/.exec(line)
    if (found === null) continue
    const file = relative(ROOT, found[1]!)
    if (file.startsWith('src/')) return `${file}:${found[2]}`
  }
  return ''
}

/** How often something had been done for good when the process was killed. */
export function happenedBefore(
  { marks }: Pick<Trace, 'marks'>,
  point: number,
  what: string,
): number {
  return marks.filter((mark) => mark.what === what && mark.at < point).length
}
