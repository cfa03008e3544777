/**
 * Counts every continuation of a process, and ends or stops it at one of them. A continuation is
 * what runs after an `await`, a `then`, a timer or an answer from outside: between two of them
 * nothing else can happen in the process, so these are all the points at which it can be left.
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
  /** Those at which it holds the write lock of its file. */
  readonly locked: readonly number[]
}

const ROOT = fileURLToPath(new URL('../../', import.meta.url))

/** `SIGKILL`: it dies. `SIGSTOP`: it stands still, until it is told to go on. */
export type Blow = 'SIGKILL' | 'SIGSTOP'

export class KillPoint {
  readonly #killAt: number
  readonly #blow: Blow
  readonly #onBlow: () => void
  readonly #marks: Mark[] = []
  readonly #awaited: string[] = []
  readonly #locked: number[] = []
  isLocked = false
  readonly #waiting = new Map<number, string>()
  #points = 0
  #hook: ReturnType<typeof createHook> | undefined

  /** @param killAt the number of a continuation, from 1; 0: none, they are only counted. */
  constructor(killAt: number, blow: Blow, onBlow: () => void) {
    this.#killAt = killAt
    this.#blow = blow
    this.#onBlow = onBlow
  }

  start(): void {
    const isTracing = this.#killAt === 0
    const init = (id: number) => void this.#waiting.set(id, whereNow())
    const before = (id: number) => {
      if (++this.#points === this.#killAt) this.#strike()
      if (!isTracing) return
      this.#awaited.push(this.#waiting.get(id) ?? '')
      if (this.isLocked) this.#locked.push(this.#points)
    }
    this.#hook = createHook(isTracing ? { init, before } : { before }).enable()
  }

  /** Takes effect before it returns. */
  #strike(): void {
    if (this.#blow === 'SIGSTOP') this.#onBlow()
    process.kill(process.pid, this.#blow)
  }

  mark(what: string): void {
    this.#marks.push({ what, at: this.#points })
  }

  stop(): Trace {
    this.#hook?.disable()
    const [marks, awaited, locked] = [this.#marks, this.#awaited, this.#locked]
    return { points: this.#points, marks, awaited, locked }
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
