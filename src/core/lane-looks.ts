import { FairQueue } from './fair-queue.ts'
import type { Urgency } from './look-schedule.ts'

/**
 * Looks under way at once. A store that takes 200 ms for each still makes 320 a second with them,
 * enough for the first look at 9,000 lost claims within half of a lease of 60 s.
 */
const AT_ONCE_MAX = 64

/** So many a lane may have in any case: lanes that are silent must not keep the others waiting. */
const AT_ONCE_LANE_MIN = 2

/** A lane has at most this part of the places that are free, so that some are left. */
const PART_OF_FREE = 1 / 2

const REST_MS_FIRST = 100
const REST_MS_MAX = 5_000

/** What is due in one lane of the store, its looks under way, and its rest while it fails. */
export class LaneLooks<Claim> {
  /** `undefined`: the store as one whole. */
  readonly lane: number | undefined
  #due = newQueues<Claim>()
  #underWay = 0
  #failures = 0
  #restUntilMs = Number.NEGATIVE_INFINITY

  constructor(lane: number | undefined) {
    this.lane = lane
  }

  due(urgency: Urgency): FairQueue<Claim> {
    return this.#due[urgency]
  }

  clear(): void {
    this.#due = newQueues()
  }

  /** How long the lane rests: 0 where a look may begin; for ever, where one has to end first. */
  waitMs(nowMs: number, underWayInAll: number): number {
    if (this.#underWay >= this.#atOnceMax(underWayInAll)) return Number.POSITIVE_INFINITY
    return Math.max(0, this.#restUntilMs - nowMs)
  }

  /** While the lane fails, one look finds out whether it is back. */
  #atOnceMax(underWayInAll: number): number {
    if (this.#failures > 0) return 1
    if (this.lane === undefined) return AT_ONCE_MAX
    return Math.max(AT_ONCE_LANE_MIN, (AT_ONCE_MAX - underWayInAll) * PART_OF_FREE)
  }

  begun(): void {
    this.#underWay++
  }

  answered(): void {
    this.#underWay--
    this.#failures = 0
    this.#restUntilMs = Number.NEGATIVE_INFINITY
  }

  /** Looks that were under way together count as one failure, whenever they end. */
  failed(begunMs: number, nowMs: number): void {
    this.#underWay--
    if (begunMs < this.#restUntilMs) return
    this.#restUntilMs = nowMs + Math.min(REST_MS_FIRST * 2 ** this.#failures, REST_MS_MAX)
    this.#failures++
  }
}

function newQueues<Claim>(): Record<Urgency, FairQueue<Claim>> {
  return { needed: new FairQueue(), late: new FairQueue(), extra: new FairQueue() }
}
