import type { Clock } from '../time/clock.ts'

/** Lookups that may start at once after a time without lookups. */
const BURST = 16

/** The maximum: enough for two lookups of each of 10,000 claims within a lease of 60 s. */
const PER_SECOND_MAX = 500
/** The minimum while no request waits, so that a few lost claims are released soon. */
const PER_SECOND_CALM = 50
/** The minimum while requests wait. */
const PER_SECOND_BUSY = 5

/** Leaves room for more lookups than each claim needs, while no request waits. */
const CALM_SHARE = 1.5

/**
 * Limits the lookups of lost claims in all lanes together, to a number per second that grows with
 * the number of claims.
 */
export class LookPace {
  readonly #clock: Clock
  /** Lookups that may start now. The fraction is the time that has passed towards the next. */
  #available = BURST
  #countedAtMs: number

  constructor(clock: Clock) {
    this.#clock = clock
    this.#countedAtMs = clock.monotonicMs()
  }

  /**
   * The time until the next lookup may start. `neededPerSecond` is the pace that gives every claim
   * the lookups that it needs in time. While requests wait (`isBusy`), the pace is not faster than
   * that, except for its minimum.
   */
  waitMs(neededPerSecond: number, isBusy: boolean): number {
    const nowMs = this.#clock.monotonicMs()
    const wanted = isBusy
      ? Math.max(neededPerSecond, PER_SECOND_BUSY)
      : Math.max(neededPerSecond * CALM_SHARE, PER_SECOND_CALM)
    const perMs = Math.min(wanted, PER_SECOND_MAX) / 1_000
    this.#available = Math.min(BURST, this.#available + (nowMs - this.#countedAtMs) * perMs)
    this.#countedAtMs = nowMs
    return this.#available >= 1 ? 0 : Math.ceil((1 - this.#available) / perMs)
  }

  spend(): void {
    this.#available--
  }
}
