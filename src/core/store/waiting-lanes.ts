import { FairQueue } from './fair-queue.ts'
import { isLane } from './lane-of.ts'
import type { Place } from './waiting-row.ts'

/** The queue and the running calls of one part of a store. */
export interface Lane<Row> {
  /** `undefined`: the whole store, for requests without a lane. */
  readonly number: number | undefined
  readonly flushesMax: number
  readonly waiting: FairQueue<Row>
  /** Running calls of each tenant; counted only if a call has one row. */
  readonly flushesOf: Map<string, number>
  flushes: number
  /** The lane is in the list of lanes that are sent next. */
  isReady: boolean
}

export interface LaneLimits {
  readonly count: number
  /** Calls at once in each lane. `undefined`: lanes share the queue and the calls of the store. */
  readonly flushesMax: number | undefined
}

interface WeighedRow extends Place {
  /** Number of requests that wait in the row. */
  readonly requests: number
}

/**
 * The queues of all lanes, with one common limit. When the limit is reached, the fullest lane makes
 * room, and within it the tenant with the most requests. A lane that does not answer can therefore
 * not keep out requests for the others.
 */
export class WaitingLanes<Row extends WeighedRow> {
  /** One queue for each lane of the store, and a last one for requests without a lane. */
  readonly #lanes: readonly Lane<Row>[]
  #size = 0

  constructor(wholeFlushesMax: number, lanes: LaneLimits | undefined) {
    const { flushesMax = 0 } = lanes ?? {}
    const count = flushesMax === 0 ? 0 : lanes!.count
    this.#lanes = Array.from({ length: count + 1 }, (_, number) =>
      number === count ? newLane(undefined, wholeFlushesMax) : newLane(number, flushesMax),
    )
  }

  /** Number of requests that wait. */
  get size(): number {
    return this.#size
  }

  /** The index of the queue of a lane. A lane that does not exist uses the last queue. */
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

  /** Call this when one request was added to a row. */
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
