import type { Clock } from './clock.ts'

/** `half_open`: a break is over, and one call finds out whether the next break is needed. */
export type BreakerState = 'closed' | 'open' | 'half_open'

export interface BreakerSettings {
  /** Failures in a row that open it. */
  readonly failuresMax: number
  /** How long the n-th break since the last success lasts; the first has the number 1. */
  readonly breakMs: (number: number) => number
  readonly onChange?: (from: BreakerState, to: BreakerState) => void
}

/**
 * Counts failures in a row and says when calls are not worth making. It makes no calls and has no
 * timer: who uses it asks before a call and tells how the call ended.
 *
 * Failures in a row, and not a share of them: one success proves that the other side works, and
 * some failures among successes are better met by a retry than by refusing the successes, too.
 */
export class Breaker {
  readonly #clock: Clock
  readonly #settings: BreakerSettings
  #state: BreakerState = 'closed'
  #failures = 0
  #breaks = 0
  #isOnTrial = false
  #untilMs = Number.NEGATIVE_INFINITY

  constructor(clock: Clock, settings: BreakerSettings) {
    this.#clock = clock
    this.#settings = settings
  }

  get state(): BreakerState {
    return this.#state
  }

  /** Failures since the last success. */
  get failures(): number {
    return this.#failures
  }

  /** What is left of the break. */
  get leftMs(): number {
    return Math.max(0, this.#untilMs - this.#clock.monotonicMs())
  }

  /** While it is not closed, one call in each break may be made, also where the last one hangs. */
  mayTry(): boolean {
    if (this.#state === 'closed') return true
    if (this.leftMs > 0) return false
    this.#startBreak()
    this.#become('half_open')
    return true
  }

  succeeded(): void {
    this.#breaks = 0
    this.#close(false)
  }

  /**
   * A probe succeeded, which proves less than a call does. Closes, but the next failure opens it
   * again, and for longer, until a call has succeeded.
   */
  recovered(): void {
    this.#close(true)
  }

  failed(): void {
    this.#failures++
    // A call that was under way when it opened has nothing to add.
    if (this.#state === 'open') return
    const mayStayClosed = this.#failures < this.#settings.failuresMax && !this.#isOnTrial
    if (this.#state === 'closed' && mayStayClosed) return
    this.trip()
  }

  /** Opens it now, whatever the number of failures. */
  trip(): void {
    if (this.#state === 'open') return
    this.#breaks++
    this.#startBreak()
    this.#become('open')
  }

  #close(isOnTrial: boolean): void {
    this.#failures = 0
    this.#isOnTrial = isOnTrial
    this.#become('closed')
  }

  #startBreak(): void {
    this.#untilMs = this.#clock.monotonicMs() + this.#settings.breakMs(this.#breaks)
  }

  #become(state: BreakerState): void {
    const from = this.#state
    if (from === state) return
    this.#state = state
    this.#settings.onChange?.(from, state)
  }
}
