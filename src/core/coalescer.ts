import { answerWithin } from './answer-within.ts'
import { CallDeadline } from './call-deadline.ts'
import type { Clock } from './clock.ts'
import { StoreFailedError, isRejected, type StoreFailure } from './errors.ts'
import { WaitingLanes, type Lane, type LaneLimits } from './waiting-lanes.ts'
import { WaitingRow, type Place, type Waiting } from './waiting-row.ts'

export interface CoalescerOptions<Request, Outcome> {
  readonly clock: Clock
  /** For messages: the store's name and the call it makes. */
  readonly store: string
  readonly call: string
  readonly flush: (requests: readonly Request[], signal: AbortSignal) => Promise<Outcome[]>
  readonly bytesOf: (request: Request) => number
  readonly limits: CoalescerLimits
  /** The lane of a request; `undefined`: the store as one whole. @default always that */
  readonly laneOf?: ((request: Request) => number | undefined) | undefined
  /** Which requests may share a row. @default none */
  readonly sharing?: Sharing<Request, Outcome>
  /** Hears why a request failed, once for each. */
  readonly onFailure?: (error: unknown) => void
  /** Hears how each store call ended, and in which lane. */
  readonly onCallEnd?: (error: unknown, lane: number | undefined) => void
  readonly gate?: Gate<Request>
}

/** Keeps requests that wait from being sent. `onFailure` does not hear of those it refuses. */
export interface Gate<Request> {
  readonly isShut: () => boolean
  /** Why a request is not sent; `undefined` where it is sent all the same. Asked once of each. */
  readonly refusal: (request: Request) => unknown
}

/**
 * Requests that ask the same question before a store call is sent share one row and its answer. A
 * request that arrives while that call is under way joins the next one: the answer may be older
 * than what its client has already seen.
 */
export interface Sharing<Request, Outcome> {
  /** What a request is about. One store call has at most one row about each subject. */
  readonly subjectOf: (request: Request) => string
  /** Requests about one subject with equal questions may share an answer. */
  readonly questionOf: (request: Request) => string
  /** What the others get from the answer to the request that was sent. */
  readonly answerFor: (sent: Request, outcome: Outcome) => Outcome
}

/** Everything here is bounded, so that a slow store makes callers fail, not memory grow. */
export interface CoalescerLimits {
  /** Requests in one store call. */
  readonly rowsMax: number
  /** Bytes in one store call; a single larger request still goes alone. */
  readonly bytesMax: number
  /** Store calls under way at once, without those of lanes. */
  readonly flushesMax: number
  /** The parts of the store that answer and fail apart. @default none */
  readonly lanes?: LaneLimits | undefined
  /** Requests that may wait; for one more, one of the tenant with most is `overloaded`. */
  readonly waitingMax: number
  /** How long a store call may take, and how long a request may wait for one. */
  readonly timeoutMs: number
}

/** Fewer are not worth a call of their own: a commit costs the same for one row as for these. */
const SHARE_ROWS_MIN = 32

/**
 * Where a call has one row, a tenant has at most this many calls for each that is still free. So
 * one tenant gets most of the places, and where there are four or more, never all of them.
 */
const CALLS_PER_FREE = 3

/**
 * Turns single requests into batched store calls. It needs no timer: when nothing is under way
 * it flushes as soon as the current burst of input is handled, and while a flush is under way,
 * arrivals gather into the next. So the busier it gets, the larger the batches become, and at
 * low load nobody waits. Where more waits than fits into one batch, the tenants take turns.
 *
 * Each lane of the store has its own queue and its own calls: a lane that is silent keeps only
 * those. All lanes together have one bound on what waits.
 */
export class Coalescer<Request, Outcome> {
  readonly #options: CoalescerOptions<Request, Outcome>
  readonly #lanes: WaitingLanes<WaitingRow<Request, Outcome>>
  /** The row that waits for each subject; only where rows are shared. */
  readonly #rows = new Map<string, WaitingRow<Request, Outcome>>()
  /** Lanes that have something to send and a call to send it by. */
  #ready: Lane<WaitingRow<Request, Outcome>>[] = []
  #isScheduled = false

  constructor(options: CoalescerOptions<Request, Outcome>) {
    this.#options = options
    this.#lanes = new WaitingLanes(options.limits.flushesMax, options.limits.lanes)
  }

  /** Requests that wait to be sent, in the queue of this lane. */
  waitingIn(lane: number | undefined): number {
    return this.#lanes.at(this.#lanes.placeOf(lane)).waiting.size
  }

  add(request: Request, tenant: string): Promise<Outcome> {
    return new Promise((resolve, reject) => {
      const sinceMs = this.#options.clock.monotonicMs()
      const entry = { request, sinceMs, resolve, reject }
      const place = { tenant, lane: this.#lanes.placeOf(this.#options.laneOf?.(request)) }
      if (!this.#makeRoom(place, entry)) return
      this.#prepare(this.#lanes.at(this.#enqueue(place, entry)))
    })
  }

  /** Gives the lane in which it waits: a row that it joins may be in another by now. */
  #enqueue(place: Place, entry: Waiting<Request, Outcome>): number {
    const { sharing } = this.#options
    const subject = sharing?.subjectOf(entry.request)
    const row = subject === undefined ? undefined : this.#rows.get(subject)
    if (row !== undefined) {
      row.join(entry, this.#questionOf)
      this.#lanes.grow(row)
      return row.lane
    }
    const first = new WaitingRow(place, entry)
    if (subject !== undefined) this.#rows.set(subject, first)
    this.#lanes.push(first)
    return place.lane
  }

  /** Refuses one where there are too many: of the tenant who has most waiting, its newest. */
  #makeRoom(place: Place, entry: Waiting<Request, Outcome>): boolean {
    const { waitingMax } = this.#options.limits
    if (this.#lanes.size < waitingMax) return true
    const crowded = this.#lanes.crowdOut(place)
    const cause = new Error(`${waitingMax} requests are already waiting`)
    this.#refuse(this.#takeNewest(crowded) ?? entry, this.#failed('overloaded', cause))
    return crowded !== undefined
  }

  /** The newest request of a row that has to make room. */
  #takeNewest(
    row: WaitingRow<Request, Outcome> | undefined,
  ): Waiting<Request, Outcome> | undefined {
    if (row === undefined) return undefined
    const newest = row.takeNewest(this.#questionOf)
    if (row.requests === 0) this.#forget(newest.request)
    return newest
  }

  readonly #questionOf = (request: Request): string => this.#options.sharing!.questionOf(request)

  #forget(request: Request): void {
    const { sharing } = this.#options
    if (sharing !== undefined) this.#rows.delete(sharing.subjectOf(request))
  }

  /** Has the lane sent from, where there is something to send and a call to send it by. */
  #prepare(lane: Lane<WaitingRow<Request, Outcome>>): void {
    if (lane.isReady || lane.waiting.rows === 0 || lane.flushes >= lane.flushesMax) return
    lane.isReady = true
    this.#ready.push(lane)
    if (this.#isScheduled) return
    this.#isScheduled = true
    this.#options.clock.soon(() => this.#sendReady())
  }

  #sendReady(): void {
    this.#isScheduled = false
    const ready = this.#ready
    this.#ready = []
    const { clock, limits } = this.#options
    const deadline = new CallDeadline(clock, limits.timeoutMs)
    for (const lane of ready) {
      lane.isReady = false
      const batch = this.#take(lane)
      if (batch.length > 0) void this.#flush(lane, batch, deadline)
      // Until its calls are under way, nothing stops the lane from another. Where all of a batch
      // was refused, rows behind it may be sent. Tenants that are held wait for a call to end.
      if (batch.length > 0 || lane.waiting.peek() !== undefined) this.#prepare(lane)
    }
  }

  /** The next batch. What has waited too long is refused here: it was never sent. */
  #take(lane: Lane<WaitingRow<Request, Outcome>>): WaitingRow<Request, Outcome>[] {
    const { limits, bytesOf } = this.#options
    const batch: WaitingRow<Request, Outcome>[] = []
    const later: WaitingRow<Request, Outcome>[] = []
    const rowsMax = this.#share(lane)
    const isHeld = limits.rowsMax === 1 ? holding(lane) : undefined
    const { waiting } = lane
    let bytes = 0
    for (let row = waiting.peek(isHeld); row !== undefined; row = waiting.peek(isHeld)) {
      const size = bytesOf(row.first.request)
      const full = batch.length === rowsMax || bytes + size > limits.bytesMax
      if (batch.length > 0 && full) break
      this.#lanes.shift(lane)
      this.#forget(row.first.request)
      const next = row.detachNext(this.#questionOf)
      if (next !== undefined) later.push(next)
      if (!this.#passGate(row) || !this.#refuseLate(row)) continue
      bytes += size
      batch.push(row)
    }
    // After the loop, so that one batch never has two rows about one subject.
    for (const row of later) this.#pushBack(row)
    return batch
  }

  #pushBack(row: WaitingRow<Request, Outcome>): void {
    this.#rows.set(this.#options.sharing!.subjectOf(row.first.request), row)
    this.#lanes.push(row)
  }

  /** Refuses the requests of a row that the gate keeps back; `false` where none is left. */
  #passGate(row: WaitingRow<Request, Outcome>): boolean {
    const { gate } = this.#options
    if (gate === undefined || !gate.isShut()) return true
    for (const { entry, error } of row.takeRefused(gate.refusal)) entry.reject(error)
    return row.requests > 0
  }

  /** Refuses the requests of a row that have waited too long; `false` where none is left. */
  #refuseLate(row: WaitingRow<Request, Outcome>): boolean {
    const { clock, limits } = this.#options
    const late = row.takeOlderThan(clock.monotonicMs() - limits.timeoutMs)
    for (const entry of late) {
      const cause = new Error(`not sent within ${limits.timeoutMs} ms`)
      this.#refuse(entry, this.#failed('overloaded', cause))
    }
    return row.requests > 0
  }

  /**
   * What is waiting, shared among the calls that may be under way at once: while the store works
   * on one, this process prepares the next. In one large call they would take turns.
   */
  #share({ waiting, flushesMax, flushes }: Lane<WaitingRow<Request, Outcome>>): number {
    const share = Math.ceil(waiting.rows / (flushesMax - flushes))
    return Math.min(this.#options.limits.rowsMax, Math.max(SHARE_ROWS_MIN, share))
  }

  async #flush(
    lane: Lane<WaitingRow<Request, Outcome>>,
    batch: readonly WaitingRow<Request, Outcome>[],
    deadline: CallDeadline,
  ): Promise<void> {
    this.#count(lane, batch, 1)
    try {
      await this.#send(lane, batch, deadline)
    } catch (error) {
      if (batch.length > 1 && isRejected(error)) {
        await this.#flushSingly(lane, batch)
      } else {
        for (const row of batch) this.#refuseRow(row, error)
      }
    } finally {
      this.#count(lane, batch, -1)
      lane.waiting.readmit()
      this.#prepare(lane)
    }
  }

  #count(
    lane: Lane<WaitingRow<Request, Outcome>>,
    [row]: readonly WaitingRow<Request, Outcome>[],
    change: 1 | -1,
  ): void {
    lane.flushes += change
    if (this.#options.limits.rowsMax > 1) return
    const { tenant } = row!
    const calls = (lane.flushesOf.get(tenant) ?? 0) + change
    if (calls > 0) lane.flushesOf.set(tenant, calls)
    else lane.flushesOf.delete(tenant)
  }

  /**
   * One row of the batch cannot be stored: alone, only that one fails. Any other failure ends it,
   * or a store that falls silent now would keep this flush for `timeoutMs` times its rows.
   */
  async #flushSingly(
    lane: Lane<WaitingRow<Request, Outcome>>,
    batch: readonly WaitingRow<Request, Outcome>[],
  ): Promise<void> {
    for (const [index, row] of batch.entries()) {
      try {
        await this.#send(lane, [row])
      } catch (error) {
        this.#refuseRow(row, error)
        if (isRejected(error)) continue
        // The batch wrote nothing and these were not sent again.
        for (const unsent of batch.slice(index + 1)) {
          this.#refuseRow(unsent, this.#failed('overloaded', error))
        }
        return
      }
    }
  }

  async #send(
    lane: Lane<WaitingRow<Request, Outcome>>,
    batch: readonly WaitingRow<Request, Outcome>[],
    deadline?: CallDeadline,
  ): Promise<void> {
    const { onCallEnd, sharing, limits, laneOf } = this.#options
    // Where a call has one row, its lane is known, also where lanes share a queue.
    const number = limits.rowsMax === 1 ? laneOf?.(batch[0]!.first.request) : lane.number
    let outcomes: Outcome[]
    try {
      outcomes = await this.#call(
        batch.map((row) => row.first.request),
        deadline,
      )
    } catch (error) {
      onCallEnd?.(error, number)
      throw error
    }
    onCallEnd?.(undefined, number)
    for (const [index, { first, followers }] of batch.entries()) {
      const outcome = outcomes[index]!
      first.resolve(outcome)
      for (const other of followers) other.resolve(sharing!.answerFor(first.request, outcome))
    }
  }

  async #call(requests: readonly Request[], deadline?: CallDeadline): Promise<Outcome[]> {
    const { clock, limits, store, call, flush } = this.#options
    const details = { store, call, timeoutMs: limits.timeoutMs }
    const ask = (signal: AbortSignal) => flush(requests, signal)
    const outcomes = await answerWithin(clock, details, ask, deadline)
    if (outcomes.length === requests.length) return outcomes
    const cause = new Error(`it gave ${outcomes.length} answers to ${requests.length} requests`)
    throw this.#failed('unavailable', cause)
  }

  /** The followers of a row were never sent, so there is nothing of theirs to look for. */
  #refuseRow({ first, followers }: WaitingRow<Request, Outcome>, error: unknown): void {
    this.#refuse(first, error)
    if (followers.length === 0) return
    const unsent = error instanceof StoreFailedError ? error.asUnsent() : error
    for (const other of followers) this.#refuse(other, unsent)
  }

  #refuse(entry: Waiting<Request, Outcome>, error: unknown): void {
    this.#options.onFailure?.(error)
    entry.reject(error)
  }

  #failed(failure: StoreFailure, cause: unknown): StoreFailedError {
    const { store, call } = this.#options
    return new StoreFailedError({ store, operation: call, failure, cause })
  }
}

/** Which tenants have as many calls under way in this lane as they may. */
function holding<Row>({ flushesMax, flushes, flushesOf }: Lane<Row>) {
  const free = flushesMax - flushes
  return (tenant: string): boolean => (flushesOf.get(tenant) ?? 0) >= CALLS_PER_FREE * free
}
