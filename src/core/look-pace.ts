import type { Clock } from './clock.ts'

/** Looks that may follow each other at once after a quiet time. */
const BURST = 16

/** However many claims are lost. Enough for two looks at 10,000 of them within a lease of 60 s. */
const PER_SECOND_MAX = 500
/** Few lost claims are looked for soon, if no request has to wait for that. */
const PER_SECOND_CALM = 50
const PER_SECOND_BUSY = 5

/** Room for more than the looks that each claim needs. */
const CALM_SHARE = 1.5

/**
 * How fast lost claims may be looked for, those of all lanes together: a number per second that
 * follows from how many there are.
 */
export class LookPace {
  readonly #clock: Clock
  /** Looks that may be made now; a part of one is the time that has passed towards it. */
  #saved = BURST
  #savedAtMs: number

  constructor(clock: Clock) {
    this.#clock = clock
    this.#savedAtMs = clock.monotonicMs()
  }

  /**
   * How long the next look has to wait. `neededPerSecond`: what gives every claim the looks that it
   * needs in time. While requests wait (`isBusy`), no more than that is sent.
   */
  waitMs(neededPerSecond: number, isBusy: boolean): number {
    const nowMs = this.#clock.monotonicMs()
    const wanted = isBusy
      ? Math.max(neededPerSecond, PER_SECOND_BUSY)
      : Math.max(neededPerSecond * CALM_SHARE, PER_SECOND_CALM)
    const perMs = Math.min(wanted, PER_SECOND_MAX) / 1_000
    this.#saved = Math.min(BURST, this.#saved + (nowMs - this.#savedAtMs) * perMs)
    this.#savedAtMs = nowMs
    return this.#saved >= 1 ? 0 : Math.ceil((1 - this.#saved) / perMs)
  }

  spend(): void {
    this.#saved--
  }
}
