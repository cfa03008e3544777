/** Tests: test/stores/cached/store.process.test.ts, test/stores/cached/fuzz.process.test.ts. */
import type { Clock } from '../../core/time/clock.ts'

/** How often the database is asked for its time while claims need it. */
const REFRESH_MS = 60_000

/** An older answer is not used: the refresh every minute has then failed several times. */
const STALE_MS = 5 * 60_000

/** The minimum interval between two queries: a lost query is repeated, but not often. */
const ASK_EVERY_MS = 5000

/** By how much two clocks may drift apart, with a wide margin: real clocks stay within a tenth. */
const DRIFT = 0.001

/**
 * By how much wall time and monotonic time may differ since the last answer. Monotonic time stops
 * while a machine is suspended, but the database's clock does not. Less than the margin before
 * every expiry.
 */
const JUMP_MS = 500

interface Sample {
  /** When the query was sent, by the monotonic clock and by the wall clock of this process. */
  readonly askedMs: number
  readonly askedWallMs: number
  readonly databaseMs: number
}

export interface DatabaseClockOptions {
  readonly clock: Clock
  /** `undefined` if the durable store uses the clock of this process. */
  readonly now: (() => Promise<Date>) | undefined
  readonly onFailure: (error: unknown) => void
}

/**
 * Estimates the time of the durable store's clock without a query for each call. Adds the monotonic
 * time since the last answer, so that a wrong or changed wall clock does not matter. Has no timer:
 * a call that needs the time starts the next query.
 */
export class DatabaseClock {
  readonly #clock: Clock
  readonly #now: (() => Promise<Date>) | undefined
  readonly #onFailure: (error: unknown) => void
  #sample: Sample | undefined
  #askAgainAtMs = -Infinity
  #highestMs = -Infinity

  constructor({ clock, now, onFailure }: DatabaseClockOptions) {
    this.#clock = clock
    this.#now = now
    this.#onFailure = onFailure
  }

  /**
   * The latest time that the clock may show now; `undefined` while that is unknown. Never goes
   * back: an expired record may have been replaced, even if the clock is set back later.
   */
  latestMs(): number | undefined {
    const latestMs = this.#now === undefined ? this.#clock.nowMs() : this.#countedMs(this.#now)
    if (latestMs === undefined) return undefined
    this.#highestMs = Math.max(this.#highestMs, latestMs)
    return this.#highestMs
  }

  #countedMs(now: () => Promise<Date>): number | undefined {
    const sample = this.#sample
    // Counted from the query, not from the answer: the database may have read its clock
    // immediately and answered late.
    const ageMs = sample === undefined ? Infinity : this.#clock.monotonicMs() - sample.askedMs
    const hasJumped = sample !== undefined && this.#hasJumped(sample, ageMs)
    if (hasJumped || ageMs >= REFRESH_MS) this.#ask(now)
    if (sample === undefined || hasJumped || ageMs > STALE_MS) return undefined
    return sample.databaseMs + ageMs * (1 + DRIFT)
  }

  #hasJumped({ askedWallMs }: Sample, ageMs: number): boolean {
    return Math.abs(this.#clock.nowMs() - askedWallMs - ageMs) > JUMP_MS
  }

  #ask(now: () => Promise<Date>): void {
    const askedMs = this.#clock.monotonicMs()
    if (askedMs < this.#askAgainAtMs) return
    this.#askAgainAtMs = askedMs + ASK_EVERY_MS
    const asked = { askedMs, askedWallMs: this.#clock.nowMs() }
    try {
      now().then((date) => this.#learn({ ...asked, databaseMs: date.getTime() }), this.#onFailure)
    } catch (error) {
      this.#onFailure(error)
    }
  }

  #learn(sample: Sample): void {
    if (!Number.isFinite(sample.databaseMs)) {
      return this.#onFailure(new Error('now() of the durable store returned an invalid date'))
    }
    // A slow answer may arrive after the answer to a later query.
    if (this.#sample !== undefined && this.#sample.askedMs > sample.askedMs) return
    this.#sample = sample
  }
}
