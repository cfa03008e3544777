import type { Clock } from '../../core/clock.ts'

/** How often the database is asked for its time, while somebody needs it. */
const REFRESH_MS = 60_000

/** An answer that is older is not used: a minute's refresh has then failed several times. */
const STALE_MS = 5 * 60_000

/** At the least between two questions, so that an unanswered one is asked again, and not often. */
const ASK_EVERY_MS = 5000

/** What two clocks may part by, generously: real ones keep within a tenth of it. */
const DRIFT = 0.001

/**
 * By how much wall time may run ahead of monotonic time, or behind it, since the last answer. The
 * second stands still while a machine is suspended, and the database's does not. Less than the
 * margin that is kept before every expiry.
 */
const JUMP_MS = 500

interface Sample {
  /** When the question was sent, by the monotonic clock and by the wall clock of this process. */
  readonly askedMs: number
  readonly askedWallMs: number
  readonly databaseMs: number
}

export interface DatabaseClockOptions {
  readonly clock: Clock
  /** Absent where the durable store goes by this process's own clock. */
  readonly now: (() => Promise<Date>) | undefined
  readonly onFailure: (error: unknown) => void
}

/**
 * What the durable store's clock shows, without asking it each time. Counted on from its last
 * answer by this process's monotonic clock, so that a wall clock that is wrong, or that is set,
 * does not matter. Has no timer: whoever needs the time sees to it that it is asked for.
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
   * The latest that it may show at this moment; `undefined` while that is not known. It never goes
   * back: what has expired once may have been replaced, even if the clock is set back later.
   */
  latestMs(): number | undefined {
    const latestMs = this.#now === undefined ? this.#clock.nowMs() : this.#countedMs(this.#now)
    if (latestMs === undefined) return undefined
    this.#highestMs = Math.max(this.#highestMs, latestMs)
    return this.#highestMs
  }

  #countedMs(now: () => Promise<Date>): number | undefined {
    const sample = this.#sample
    // From when it was asked, not from when it answered: the database may have read its clock
    // right away, and been slow to say so.
    const ageMs = sample === undefined ? Infinity : this.#clock.monotonicMs() - sample.askedMs
    const isTorn = sample !== undefined && this.#hasJumped(sample, ageMs)
    if (isTorn || ageMs >= REFRESH_MS) this.#ask(now)
    if (sample === undefined || isTorn || ageMs > STALE_MS) return undefined
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
      return this.#onFailure(new Error('the durable store told no valid time'))
    }
    // An answer that took long may come after the answer to a later question.
    if (this.#sample !== undefined && this.#sample.askedMs > sample.askedMs) return
    this.#sample = sample
  }
}
