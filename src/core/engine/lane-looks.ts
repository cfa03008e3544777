import { FairQueue } from '../store/fair-queue.ts'
import { backoffMs, type Backoff } from '../time/retry.ts'
import type { Urgency } from './look-schedule.ts'

/**
 * The limit of concurrent lookups. A store that takes 200 ms for each answers 320 a second with it:
 * enough for the first lookup of 9,000 lost claims within half of a lease of 60 s.
 */
const CONCURRENT_MAX = 64

/** A lane may always have this many, so that silent lanes do not block the others. */
const CONCURRENT_LANE_MIN = 2

/** A lane gets at most this part of the free places, so that some are left for other lanes. */
const PART_OF_FREE = 1 / 2

/** The pause of a lane after failures in a row. */
const PAUSE: Backoff = { firstMs: 100, maxMs: 5_000 }

/** The lookups of one lane: those that are due, those in flight, and the pause after failures. */
export class LaneLooks<Claim> {
  /** `undefined` for claims without a lane. */
  readonly lane: number | undefined
  #due = newQueues<Claim>()
  #inFlight = 0
  #failures = 0
  #pausedUntilMs = Number.NEGATIVE_INFINITY

  constructor(lane: number | undefined) {
    this.lane = lane
  }

  due(urgency: Urgency): FairQueue<Claim> {
    return this.#due[urgency]
  }

  clear(): void {
    this.#due = newQueues()
  }

  /** The time until a lookup may start. Infinite if another lookup has to end first. */
  waitMs(nowMs: number, inFlightOfAll: number): number {
    if (this.#inFlight >= this.#concurrentMax(inFlightOfAll)) return Number.POSITIVE_INFINITY
    return Math.max(0, this.#pausedUntilMs - nowMs)
  }

  /** While the lane fails, one lookup at a time finds out whether it is back. */
  #concurrentMax(inFlightOfAll: number): number {
    if (this.#failures > 0) return 1
    if (this.lane === undefined) return CONCURRENT_MAX
    return Math.max(CONCURRENT_LANE_MIN, (CONCURRENT_MAX - inFlightOfAll) * PART_OF_FREE)
  }

  begun(): void {
    this.#inFlight++
  }

  answered(): void {
    this.#inFlight--
    this.#failures = 0
    this.#pausedUntilMs = Number.NEGATIVE_INFINITY
  }

  /** Lookups that were in flight together count as one failure, no matter when they end. */
  failed(begunMs: number, nowMs: number): void {
    this.#inFlight--
    if (begunMs < this.#pausedUntilMs) return
    this.#failures++
    this.#pausedUntilMs = nowMs + backoffMs(PAUSE, this.#failures)
  }
}

function newQueues<Claim>(): Record<Urgency, FairQueue<Claim>> {
  return { needed: new FairQueue(), late: new FairQueue(), extra: new FairQueue() }
}
