import type { Clock } from '../time/clock.ts'
import type { TimeLimit } from '../time/time-limit.ts'
import { StoreFailedError, isRejected, type StoreFailure } from '../errors.ts'
import { callStore, storeLimit } from './store-call.ts'
import { WaitingLanes, type Lane, type LaneLimits } from './waiting-lanes.ts'
import { WaitingRow, type Place, type WaitingRequest } from './waiting-row.ts'

export interface CoalescerOptions<Request, Outcome> {
  readonly clock: Clock
  /** The name of the store and the call, for error messages. */
  readonly store: string
  readonly call: string
  readonly flush: (requests: readonly Request[], signal: AbortSignal) => Promise<Outcome[]>
  readonly bytesOf: (request: Request) => number
  readonly limits: CoalescerLimits
  /** The lane of a request; `undefined` if it has none. @default no request has a lane */
  readonly laneOf?: ((request: Request) => number | undefined) | undefined
  /** Which requests may share a row. @default no requests share a row */
  readonly sharing?: Sharing<Request, Outcome>
  /** Called with the error of each request that failed, except refusals of the gate. */
  readonly onFailure?: (error: unknown) => void
  /** Called after each store call, with its error if it failed, and its lane. */
  readonly onCallEnd?: (error: unknown, lane: number | undefined) => void
  /** Refuses requests that wait. @default every request is sent */
  readonly gate?: Gate<Request>
}

/** Refuses requests that wait to be sent. */
export interface Gate<Request> {
  /** Whether any request may be refused. Each request is checked only if this is true. */
  readonly isRefusingSome: () => boolean
  /** The error for a request; `undefined` if it may be sent. Called once for each request. */
  readonly refusal: (request: Request) => unknown
}

/**
 * Requests with the same question that arrive before a store call is sent share one row and its
 * answer. A request that arrives during that call joins the next one: the answer of the running
 * call may be older than an answer that the client has already seen.
 */
export interface Sharing<Request, Outcome> {
  /** The subject of a request. One store call has at most one row for each subject. */
  readonly subjectOf: (request: Request) => string
  /** Requests with the same subject and the same question share an answer. */
  readonly questionOf: (request: Request) => string
  /** The outcome for the requests that were not sent, from the outcome of the one that was. */
  readonly answerFor: (sent: Request, outcome: Outcome) => Outcome
}

/** Every queue is bounded: if the store is slow, requests fail and memory does not grow. */
export interface CoalescerLimits {
  /** Requests in one store call, at most. */
  readonly rowsMax: number
  /** Bytes in one store call, at most. A larger request is sent alone. */
  readonly bytesMax: number
  /** Store calls that run at the same time, except those of lanes. */
  readonly flushesMax: number
  /** The parts of the store that answer and fail independently. @default none */
  readonly lanes?: LaneLimits | undefined
  /** Requests that may wait. For one more, a request of the tenant with the most is refused. */
  readonly waitingMax: number
  /** The time limit of a store call, and of the wait of a request for its call. */
  readonly timeoutMs: number
}

/** Fewer rows are not split into two calls: a commit costs the same for one row as for these. */
const SHARE_ROWS_MIN = 32

/**
 * If a call has one row, a tenant may have this many running calls for each call that is still
 * free. One tenant can then use most of the calls, but never all of them if there are four or more.
 */
const CALLS_PER_FREE = 3

/**
 * Turns single requests into batched store calls, without a timer. If no call is running, requests
 * are sent as soon as the current burst of input is handled. Requests that arrive during a call
 * gather into the next one. Batches therefore grow with the load, and at low load no request waits.
 * If more requests wait than fit into one batch, the tenants take turns.
 *
 * Each lane of the store has a separate queue and separate calls, so a lane that does not answer
 * blocks only itself. All lanes together have one limit on waiting requests.
 */
export class Coalescer<Request, Outcome> {
  readonly #options: CoalescerOptions<Request, Outcome>
  readonly #lanes: WaitingLanes<WaitingRow<Request, Outcome>>
  /** The waiting row of each subject; empty if rows are not shared. */
  readonly #rows = new Map<string, WaitingRow<Request, Outcome>>()
  /** Lanes with rows to send and a free call. */
  #ready: Lane<WaitingRow<Request, Outcome>>[] = []
  #isScheduled = false

  constructor(options: CoalescerOptions<Request, Outcome>) {
    this.#options = options
    this.#lanes = new WaitingLanes(options.limits.flushesMax, options.limits.lanes)
  }

  /** Number of requests that wait in the queue of this lane. */
  waitingIn(lane: number | undefined): number {
    return this.#lanes.at(this.#lanes.placeOf(lane)).waiting.size
  }

  add(request: Request, tenant: string): Promise<Outcome> {
    return new Promise((resolve, reject) => {
      const sinceMs = this.#options.clock.monotonicMs()
      const entry = { request, sinceMs, resolve, reject }
      const place = { tenant, lane: this.#lanes.placeOf(this.#options.laneOf?.(request)) }
      if (!this.#makeRoom(place, entry)) return
      this.#schedule(this.#lanes.at(this.#enqueue(place, entry)))
    })
  }

  /** Returns the queue of the request: the row that it joins may wait in another lane. */
  #enqueue(place: Place, entry: WaitingRequest<Request, Outcome>): number {
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

  /**
   * At the limit, refuses the newest request of the tenant with the most waiting requests. Returns
   * `false` if that is the new request itself.
   */
  #makeRoom(place: Place, entry: WaitingRequest<Request, Outcome>): boolean {
    const { waitingMax } = this.#options.limits
    if (this.#lanes.size < waitingMax) return true
    const crowded = this.#lanes.crowdOut(place)
    const cause = new Error(`${waitingMax} requests are already waiting`)
    this.#refuse(this.#takeNewest(crowded) ?? entry, this.#failed('overloaded', cause))
    return crowded !== undefined
  }

  /** Removes the newest request of a row, to make room. */
  #takeNewest(
    row: WaitingRow<Request, Outcome> | undefined,
  ): WaitingRequest<Request, Outcome> | undefined {
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

  /** Schedules a send from this lane, if it has rows to send and a free call. */
  #schedule(lane: Lane<WaitingRow<Request, Outcome>>): void {
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
    // One timer for the calls of all lanes: a cluster gets dozens of calls at the same time.
    const limit = storeLimit(clock, limits.timeoutMs)
    for (const lane of ready) {
      lane.isReady = false
      const batch = this.#take(lane)
      if (batch.length > 0) void this.#flush(lane, batch, limit)
      // The lane may have another free call. If a whole batch was refused, the rows behind it may
      // be sent. Tenants that are held wait until a call ends.
      if (batch.length > 0 || lane.waiting.peek() !== undefined) this.#schedule(lane)
    }
  }

  /** Takes the next batch. Refuses requests that have waited too long: they were never sent. */
  #take(lane: Lane<WaitingRow<Request, Outcome>>): WaitingRow<Request, Outcome>[] {
    const { limits, bytesOf } = this.#options
    const batch: WaitingRow<Request, Outcome>[] = []
    const later: WaitingRow<Request, Outcome>[] = []
    const rowsMax = this.#rowsPerCall(lane)
    const isHeld = limits.rowsMax === 1 ? isAtCallLimit(lane) : undefined
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
    // Only after the loop, so that one batch never has two rows with the same subject.
    for (const row of later) this.#pushBack(row)
    return batch
  }

  #pushBack(row: WaitingRow<Request, Outcome>): void {
    this.#rows.set(this.#options.sharing!.subjectOf(row.first.request), row)
    this.#lanes.push(row)
  }

  /** Refuses the requests of a row that the gate refuses. Returns `false` if none is left. */
  #passGate(row: WaitingRow<Request, Outcome>): boolean {
    const { gate } = this.#options
    if (gate === undefined || !gate.isRefusingSome()) return true
    for (const { entry, error } of row.takeRefused(gate.refusal)) entry.reject(error)
    return row.requests > 0
  }

  /** Refuses the requests of a row that have waited too long. Returns `false` if none is left. */
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
   * Divides the waiting rows among the free calls: while the store works on one call, this process
   * prepares the next. With one large call, only one of the two would work at a time.
   */
  #rowsPerCall({ waiting, flushesMax, flushes }: Lane<WaitingRow<Request, Outcome>>): number {
    const share = Math.ceil(waiting.rows / (flushesMax - flushes))
    return Math.min(this.#options.limits.rowsMax, Math.max(SHARE_ROWS_MIN, share))
  }

  async #flush(
    lane: Lane<WaitingRow<Request, Outcome>>,
    batch: readonly WaitingRow<Request, Outcome>[],
    limit: TimeLimit,
  ): Promise<void> {
    this.#count(lane, batch, 1)
    try {
      await this.#send(lane, batch, limit)
    } catch (error) {
      if (batch.length > 1 && isRejected(error)) {
        await this.#flushSingly(lane, batch)
      } else {
        for (const row of batch) this.#refuseRow(row, error)
      }
    } finally {
      this.#count(lane, batch, -1)
      lane.waiting.readmit()
      this.#schedule(lane)
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
   * Sends the rows of a rejected batch one by one, so that only the row that cannot be stored
   * fails. Any other failure stops this: if the store no longer answers, each row would take
   * `timeoutMs`.
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
        // The rejected batch wrote nothing, and these rows were not sent again.
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
    limit?: TimeLimit,
  ): Promise<void> {
    const { onCallEnd, sharing, limits, laneOf } = this.#options
    // A call with one row has a known lane, even if lanes share a queue.
    const number = limits.rowsMax === 1 ? laneOf?.(batch[0]!.first.request) : lane.number
    let outcomes: Outcome[]
    try {
      outcomes = await this.#call(
        batch.map((row) => row.first.request),
        limit,
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

  async #call(requests: readonly Request[], limit?: TimeLimit): Promise<Outcome[]> {
    const { clock, limits, store, call, flush } = this.#options
    const details = { store, call, timeoutMs: limits.timeoutMs }
    const ask = (signal: AbortSignal) => flush(requests, signal)
    const outcomes = await callStore(clock, details, ask, limit)
    if (outcomes.length === requests.length) return outcomes
    const counts = `${outcomes.length} outcomes for ${requests.length} requests`
    const cause = new Error(`the store returned ${counts}`)
    throw this.#failed('unavailable', cause)
  }

  /** The followers of a row were never sent, so there is no lost claim of them to release. */
  #refuseRow({ first, followers }: WaitingRow<Request, Outcome>, error: unknown): void {
    this.#refuse(first, error)
    if (followers.length === 0) return
    const unsent = error instanceof StoreFailedError ? error.asUnsent() : error
    for (const other of followers) this.#refuse(other, unsent)
  }

  #refuse(entry: WaitingRequest<Request, Outcome>, error: unknown): void {
    this.#options.onFailure?.(error)
    entry.reject(error)
  }

  #failed(failure: StoreFailure, cause: unknown): StoreFailedError {
    const { store, call } = this.#options
    return new StoreFailedError({ store, operation: call, failure, cause })
  }
}

/** Whether a tenant has as many running calls in this lane as it may. */
function isAtCallLimit<Row>({ flushesMax, flushes, flushesOf }: Lane<Row>) {
  const free = flushesMax - flushes
  return (tenant: string): boolean => (flushesOf.get(tenant) ?? 0) >= CALLS_PER_FREE * free
}
