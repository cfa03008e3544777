import { answerWithin } from './answer-within.ts'
import type { Clock } from './clock.ts'
import { StoreFailedError, isRejected, type StoreFailure } from './errors.ts'
import { FairQueue } from './fair-queue.ts'
import { WaitingRow, type Waiting } from './waiting-row.ts'

export interface CoalescerOptions<Request, Outcome> {
  readonly clock: Clock
  /** For messages: the store's name and the call it makes. */
  readonly store: string
  readonly call: string
  readonly flush: (requests: readonly Request[], signal: AbortSignal) => Promise<Outcome[]>
  readonly bytesOf: (request: Request) => number
  readonly limits: CoalescerLimits
  /** Which requests may share a row. @default none */
  readonly sharing?: Sharing<Request, Outcome>
  /** Hears why a request failed, once for each. */
  readonly onFailure?: (error: unknown) => void
  /** Hears how each store call ended. */
  readonly onCallEnd?: (error?: unknown) => void
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
  /** Store calls under way at once. */
  readonly flushesMax: number
  /** Requests that may wait; for one more, one of the tenant with most is `overloaded`. */
  readonly waitingMax: number
  /** How long a store call may take, and how long a request may wait for one. */
  readonly timeoutMs: number
}

/** Fewer are not worth a call of their own: a commit costs the same for one row as for these. */
const SHARE_ROWS_MIN = 32

/**
 * Turns single requests into batched store calls. It needs no timer: when nothing is under way
 * it flushes as soon as the current burst of input is handled, and while a flush is under way,
 * arrivals gather into the next. So the busier it gets, the larger the batches become, and at
 * low load nobody waits. Where more waits than fits into one batch, the tenants take turns.
 */
export class Coalescer<Request, Outcome> {
  readonly #options: CoalescerOptions<Request, Outcome>
  readonly #waiting = new FairQueue<WaitingRow<Request, Outcome>>((row) => row.requests)
  /** The row that waits for each subject; only where rows are shared. */
  readonly #rows = new Map<string, WaitingRow<Request, Outcome>>()
  #flushes = 0
  #scheduled = false

  constructor(options: CoalescerOptions<Request, Outcome>) {
    this.#options = options
  }

  add(request: Request, tenant: string): Promise<Outcome> {
    return new Promise((resolve, reject) => {
      const sinceMs = this.#options.clock.monotonicMs()
      const entry = { request, sinceMs, resolve, reject }
      if (!this.#makeRoom(tenant, entry)) return
      this.#enqueue(tenant, entry)
      this.#schedule()
    })
  }

  #enqueue(tenant: string, entry: Waiting<Request, Outcome>): void {
    const { sharing } = this.#options
    if (sharing === undefined) return this.#waiting.push(tenant, new WaitingRow(tenant, entry))
    const subject = sharing.subjectOf(entry.request)
    const row = this.#rows.get(subject)
    if (row !== undefined) {
      row.join(entry, this.#questionOf)
      return this.#waiting.grow(tenant)
    }
    const first = new WaitingRow(tenant, entry)
    this.#rows.set(subject, first)
    this.#waiting.push(tenant, first)
  }

  /** Refuses one where there are too many: of the tenant who has most waiting, its newest. */
  #makeRoom(tenant: string, entry: Waiting<Request, Outcome>): boolean {
    const { waitingMax } = this.#options.limits
    if (this.#waiting.size < waitingMax) return true
    const crowded = this.#waiting.crowdOut(tenant)
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

  #schedule(): void {
    const { clock, limits } = this.#options
    if (this.#scheduled || this.#waiting.size === 0 || this.#flushes >= limits.flushesMax) return
    this.#scheduled = true
    clock.soon(() => {
      this.#scheduled = false
      const batch = this.#take()
      // Until the first flush is under way nothing stops a second one: ask again afterwards.
      if (batch.length > 0) void this.#flush(batch)
      this.#schedule()
    })
  }

  /** The next batch. What has waited too long is refused here: it was never sent. */
  #take(): WaitingRow<Request, Outcome>[] {
    const { limits, bytesOf } = this.#options
    const batch: WaitingRow<Request, Outcome>[] = []
    const later: WaitingRow<Request, Outcome>[] = []
    const rowsMax = this.#share()
    let bytes = 0
    for (let row = this.#waiting.peek(); row !== undefined; row = this.#waiting.peek()) {
      const size = bytesOf(row.first.request)
      const full = batch.length === rowsMax || bytes + size > limits.bytesMax
      if (batch.length > 0 && full) break
      this.#waiting.shift()
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
    this.#waiting.push(row.tenant, row)
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
  #share(): number {
    const { flushesMax, rowsMax } = this.#options.limits
    const share = Math.ceil(this.#waiting.rows / (flushesMax - this.#flushes))
    return Math.min(rowsMax, Math.max(SHARE_ROWS_MIN, share))
  }

  async #flush(batch: readonly WaitingRow<Request, Outcome>[]): Promise<void> {
    this.#flushes++
    try {
      await this.#send(batch)
    } catch (error) {
      if (batch.length > 1 && isRejected(error)) {
        await this.#flushSingly(batch)
      } else {
        for (const row of batch) this.#refuseRow(row, error)
      }
    } finally {
      this.#flushes--
      this.#schedule()
    }
  }

  /**
   * One row of the batch cannot be stored: alone, only that one fails. Any other failure ends it,
   * or a store that falls silent now would keep this flush for `timeoutMs` times its rows.
   */
  async #flushSingly(batch: readonly WaitingRow<Request, Outcome>[]): Promise<void> {
    for (const [index, row] of batch.entries()) {
      try {
        await this.#send([row])
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

  async #send(batch: readonly WaitingRow<Request, Outcome>[]): Promise<void> {
    const { onCallEnd, sharing } = this.#options
    let outcomes: Outcome[]
    try {
      outcomes = await this.#call(batch.map((row) => row.first.request))
    } catch (error) {
      onCallEnd?.(error)
      throw error
    }
    onCallEnd?.()
    for (const [index, { first, followers }] of batch.entries()) {
      const outcome = outcomes[index]!
      first.resolve(outcome)
      for (const other of followers) other.resolve(sharing!.answerFor(first.request, outcome))
    }
  }

  async #call(requests: readonly Request[]): Promise<Outcome[]> {
    const { clock, limits, store, call, flush } = this.#options
    const { timeoutMs } = limits
    const outcomes = await answerWithin(clock, { store, call, timeoutMs }, (signal) =>
      flush(requests, signal),
    )
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
