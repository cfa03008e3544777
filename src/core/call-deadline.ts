import type { Clock } from './clock.ts'
import { NoAnswerError } from './store-advice.ts'

/**
 * When store calls that are sent together are given up: one timer and one signal for all of them,
 * because a cluster is sent dozens at a time.
 */
export class CallDeadline {
  readonly #clock: Clock
  readonly #timeoutMs: number
  readonly #givenUp = new AbortController()
  readonly #waiting = new Set<(cause: NoAnswerError) => void>()
  #cancel: (() => void) | undefined

  constructor(clock: Clock, timeoutMs: number) {
    this.#clock = clock
    this.#timeoutMs = timeoutMs
  }

  get signal(): AbortSignal {
    return this.#givenUp.signal
  }

  /** Has `giveUp` called when the time is over, unless `leave` was called with it before. */
  join(giveUp: (cause: NoAnswerError) => void): void {
    this.#waiting.add(giveUp)
    this.#cancel ??= this.#clock.after(this.#timeoutMs, () => this.#expire())
  }

  leave(giveUp: (cause: NoAnswerError) => void): void {
    if (!this.#waiting.delete(giveUp) || this.#waiting.size > 0) return
    this.#cancel?.()
    this.#cancel = undefined
  }

  #expire(): void {
    const cause = new NoAnswerError(this.#timeoutMs)
    // First, or a store that rejects at once would be heard before this failure.
    for (const giveUp of this.#waiting) giveUp(cause)
    this.#waiting.clear()
    this.#givenUp.abort(cause)
  }
}
