/**
 * Counts every continuation of a process, and kills or stops it at one of them. A continuation is
 * the code that runs after an `await`, a `then`, a timer or an outside answer. No other code of the
 * process runs between two of them, so these are all the points at which it can end.
 */
import { createHook } from 'node:async_hooks'
import { relative } from 'node:path'
import { fileURLToPath } from 'node:url'

/** A permanent change, and the continuation that made it. */
export interface Mark {
  readonly what: string
  readonly at: number
}

export interface Trace {
  readonly points: number
  readonly marks: readonly Mark[]
  /** The source line at which the process waited for each continuation, as `file:line`. */
  readonly awaited: readonly string[]
  /** The continuations at which the process holds the write lock of its file. */
  readonly locked: readonly number[]
}

const ROOT = fileURLToPath(new URL('../../../', import.meta.url))

/** `SIGKILL` ends the process. `SIGSTOP` stops it until it gets a `SIGCONT`. */
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

  /** @param killAt the number of a continuation, from 1. With 0 they are only counted. */
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

  /** The signal takes effect before this returns. */
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

/** The nearest source line of this repository. */
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

/** The number of permanent changes of a kind before the process was killed. */
export function happenedBefore(
  { marks }: Pick<Trace, 'marks'>,
  point: number,
  what: string,
): number {
  return marks.filter((mark) => mark.what === what && mark.at < point).length
}
