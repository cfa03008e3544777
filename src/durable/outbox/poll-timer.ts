import type { Clock } from '../../core/time/clock.ts'

/** The first interval after activity; it doubles up to `pollMs`. */
const INTERVAL_MS_FIRST = 5

/**
 * When a relay queries its store. After activity it polls soon, and then less and less often,
 * because not every store reports a commit.
 */
export class PollTimer {
  /** Messages may be due: the relay claims them as soon as it has room. */
  isDue = true
  readonly #clock: Clock
  readonly #pollMs: number
  #intervalMs: number
  #atMs = 0
  #wake: () => void = () => undefined

  constructor(clock: Clock, pollMs: number) {
    this.#clock = clock
    this.#pollMs = pollMs
    this.#intervalMs = pollMs
  }

  /** Ends the current `wait`. */
  wake(): void {
    this.#wake()
  }

  /** Moves the next poll to one interval from now. */
  restart(): void {
    this.#atMs = this.#clock.monotonicMs() + this.#intervalMs
  }

  /**
   * Polls soon, and then at growing intervals. For a message that was added here and is not
   * committed yet, and after a claim that found messages, because the next ones may not be
   * reported.
   */
  pollSoon(): void {
    this.#intervalMs = Math.min(INTERVAL_MS_FIRST, this.#pollMs)
    const atMs = this.#clock.monotonicMs() + this.#intervalMs
    if (atMs >= this.#atMs) return
    this.#atMs = atMs
    this.#wake()
  }

  /** Resolves at the next poll, after `maxMs`, or when `wake` is called. */
  wait(maxMs: number): Promise<void> {
    return new Promise((resolve) => {
      const wake = () => {
        cancel()
        this.#wake = () => undefined
        resolve()
      }
      const poll = () => {
        this.isDue = true
        this.#intervalMs = Math.min(this.#intervalMs * 2, this.#pollMs)
        this.restart()
        wake()
      }
      const inMs = Math.min(this.#atMs - this.#clock.monotonicMs(), maxMs)
      const cancel = this.#clock.after(inMs, poll)
      this.#wake = wake
    })
  }
}
