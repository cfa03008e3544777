import type { Clock } from '../../core/clock.ts'

/** One failure may be an accident. */
const FAILURES_MAX = 3

const BREAK_MS = 5000

/** Leaves a cache alone that keeps failing, so that a dead one costs nearly nothing. */
export class Breaker {
  readonly #clock: Clock
  #failures = 0
  #openUntilMs = -Infinity

  constructor(clock: Clock) {
    this.#clock = clock
  }

  get isOpen(): boolean {
    return this.#failures >= FAILURES_MAX
  }

  /** While open, one call in each break is let through, whether the last one has ended or not. */
  mayTry(): boolean {
    if (!this.isOpen) return true
    if (this.#clock.monotonicMs() < this.#openUntilMs) return false
    this.#startBreak()
    return true
  }

  succeeded(): void {
    this.#failures = 0
  }

  failed(): void {
    this.#failures++
    if (this.isOpen) this.#startBreak()
  }

  #startBreak(): void {
    this.#openUntilMs = this.#clock.monotonicMs() + BREAK_MS
  }
}
