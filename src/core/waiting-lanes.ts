import { FairQueue } from './fair-queue.ts'
import { isLane } from './lane-of.ts'
import type { Place } from './waiting-row.ts'

/** What waits for one part of a store, and the calls of that part that are under way. */
export interface Lane<Row> {
  /** `undefined`: the store as one whole. */
  readonly number: number | undefined
  readonly flushesMax: number
  readonly waiting: FairQueue<Row>
  /** Calls of each tenant; counted only where a call has one row. */
  readonly flushesOf: Map<string, number>
  flushes: number
  /** Its turn to be sent has been asked for. */
  isReady: boolean
}

export interface LaneLimits {
  readonly count: number
  /** Calls under way in each lane. `undefined`: they share one queue and the calls of the store. */
  readonly flushesMax: number | undefined
}

interface WeighedRow extends Place {
  /** How many requests wait in it. */
  readonly requests: number
}

/**
 * The queues of all lanes, with one bound on what waits in them together. When that is reached,
 * the lane with most makes room, and in it the tenant with most: a lane that is silent cannot
 * keep requests for the others out.
 */
export class WaitingLanes<Row extends WeighedRow> {
  /** One for each lane of the store, and a last one for the store as one whole. */
  readonly #lanes: readonly Lane<Row>[]
  #size = 0

  constructor(wholeFlushesMax: number, lanes: LaneLimits | undefined) {
    const { flushesMax = 0 } = lanes ?? {}
    const count = flushesMax === 0 ? 0 : lanes!.count
    this.#lanes = Array.from({ length: count + 1 }, (_, number) =>
      number === count ? newLane(undefined, wholeFlushesMax) : newLane(number, flushesMax),
    )
  }

  /** How many requests wait. */
  get size(): number {
    return this.#size
  }

  /** The place of a lane among the queues. A lane that does not exist is the store as a whole. */
  placeOf(lane: number | undefined): number {
    const whole = this.#lanes.length - 1
    return isLane(lane, whole) ? lane : whole
  }

  at(place: number): Lane<Row> {
    return this.#lanes[place]!
  }

  push(row: Row): void {
    this.#size += row.requests
    this.at(row.lane).waiting.push(row.tenant, row)
  }

  /** A row has become heavier by one request. */
  grow(row: Row): void {
    this.#size++
    this.at(row.lane).waiting.grow(row.tenant)
  }

  shift(lane: Lane<Row>): void {
    this.#size -= lane.waiting.shift()?.requests ?? 0
  }

  /** Makes room for one more request: see `FairQueue.crowdOut`. */
  crowdOut({ tenant, lane }: Place): Row | undefined {
    const own = this.at(lane)
    const fullest = this.#fullest()
    const isOwn = fullest.waiting.size <= own.waiting.size + 1
    const row = isOwn ? own.waiting.crowdOut(tenant) : fullest.waiting.crowdOut()
    if (row !== undefined) this.#size--
    return row
  }

  #fullest(): Lane<Row> {
    return this.#lanes.reduce((most, lane) => (lane.waiting.size > most.waiting.size ? lane : most))
  }
}

function newLane<Row extends WeighedRow>(
  number: number | undefined,
  flushesMax: number,
): Lane<Row> {
  return {
    number,
    flushesMax,
    waiting: new FairQueue<Row>((row) => row.requests),
    flushesOf: new Map(),
    flushes: 0,
    isReady: false,
  }
}
