import type { Clock } from '../time/clock.ts'

/** `half_open`: a break has ended, and one call decides whether the breaker closes or reopens. */
export type BreakerState = 'closed' | 'open' | 'half_open'

export interface BreakerSettings {
  /** Failures in a row that open the breaker. */
  readonly failuresMax: number
  /** Length of the n-th break since the last successful call, counted from 1. */
  readonly breakMs: (number: number) => number
  readonly onChange?: (from: BreakerState, to: BreakerState) => void
}

/**
 * A circuit breaker that counts failures in a row. It makes no calls and has no timer: its user
 * calls `mayTry` before a call, and `succeeded` or `failed` after it.
 *
 * It counts failures in a row and not a failure rate. One success proves that the other side works,
 * and for occasional failures a retry is better than a refusal of calls that would succeed.
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

  /** Milliseconds until the break ends. */
  get leftMs(): number {
    return Math.max(0, this.#untilMs - this.#clock.monotonicMs())
  }

  /**
   * Whether a call may be made. While the breaker is not closed, this is true once after each
   * break, even if the previous call still hangs.
   */
  mayTry(): boolean {
    if (this.#state === 'closed') return true
    if (this.leftMs > 0) return false
    this.#startBreak()
    this.#setState('half_open')
    return true
  }

  succeeded(): void {
    this.#breaks = 0
    this.#close(false)
  }

  /**
   * Call this when a probe succeeded, which proves less than a call. The breaker closes, but until
   * a call succeeds, the next failure reopens it at once and for longer.
   */
  recovered(): void {
    this.#close(true)
  }

  failed(): void {
    this.#failures++
    // This call was already in progress when the breaker opened.
    if (this.#state === 'open') return
    const mayStayClosed = this.#failures < this.#settings.failuresMax && !this.#isOnTrial
    if (this.#state === 'closed' && mayStayClosed) return
    this.trip()
  }

  /** Opens the breaker now, regardless of the number of failures. */
  trip(): void {
    if (this.#state === 'open') return
    this.#breaks++
    this.#startBreak()
    this.#setState('open')
  }

  #close(isOnTrial: boolean): void {
    this.#failures = 0
    this.#isOnTrial = isOnTrial
    this.#setState('closed')
  }

  #startBreak(): void {
    this.#untilMs = this.#clock.monotonicMs() + this.#settings.breakMs(this.#breaks)
  }

  #setState(state: BreakerState): void {
    const from = this.#state
    if (from === state) return
    this.#state = state
    this.#settings.onChange?.(from, state)
  }
}
