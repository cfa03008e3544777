import { answerWithin } from './answer-within.ts'
import type { Clock } from './clock.ts'
import { StoreFailedError, isRejected } from './errors.ts'
import { FairQueue } from './fair-queue.ts'

export interface CoalescerOptions<Request, Outcome> {
  readonly clock: Clock
  /** For messages: the store's name and the call it makes. */
  readonly store: string
  readonly call: string
  readonly flush: (requests: readonly Request[], signal: AbortSignal) => Promise<Outcome[]>
  readonly bytesOf: (request: Request) => number
  readonly limits: CoalescerLimits
  /** Hears why a request failed, once for each. */
  readonly onFailure?: (error: unknown) => void
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

interface Entry<Request, Outcome> {
  readonly request: Request
  readonly sinceMs: number
  readonly resolve: (outcome: Outcome) => void
  readonly reject: (error: unknown) => void
}

/**
 * Turns single requests into batched store calls. It needs no timer: when nothing is under way
 * it flushes as soon as the current burst of input is handled, and while a flush is under way,
 * arrivals gather into the next. So the busier it gets, the larger the batches become, and at
 * low load nobody waits. Where more waits than fits into one batch, the tenants take turns.
 */
export class Coalescer<Request, Outcome> {
  readonly #options: CoalescerOptions<Request, Outcome>
  readonly #waiting = new FairQueue<Entry<Request, Outcome>>()
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
      this.#waiting.push(tenant, entry)
      this.#schedule()
    })
  }

  /** Refuses one where there are too many: of the tenant who has most waiting, its newest. */
  #makeRoom(tenant: string, entry: Entry<Request, Outcome>): boolean {
    const { waitingMax } = this.#options.limits
    if (this.#waiting.size < waitingMax) return true
    const crowded = this.#waiting.crowdOut(tenant)
    const cause = new Error(`${waitingMax} requests are already waiting`)
    this.#refuse(crowded ?? entry, this.#failed('overloaded', cause))
    return crowded !== undefined
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
  #take(): Entry<Request, Outcome>[] {
    const { clock, limits, bytesOf } = this.#options
    const oldestMs = clock.monotonicMs() - limits.timeoutMs
    const batch: Entry<Request, Outcome>[] = []
    const rowsMax = this.#share()
    let bytes = 0
    for (let entry = this.#waiting.peek(); entry !== undefined; entry = this.#waiting.peek()) {
      if (entry.sinceMs < oldestMs) {
        const cause = new Error(`not sent within ${limits.timeoutMs} ms`)
        this.#refuse(entry, this.#failed('overloaded', cause))
      } else {
        bytes += bytesOf(entry.request)
        const full = batch.length === rowsMax || bytes > limits.bytesMax
        if (batch.length > 0 && full) break
        batch.push(entry)
      }
      this.#waiting.shift()
    }
    return batch
  }

  /**
   * What is waiting, shared among the calls that may be under way at once: while the store works
   * on one, this process prepares the next. In one large call they would take turns.
   */
  #share(): number {
    const { flushesMax, rowsMax } = this.#options.limits
    const share = Math.ceil(this.#waiting.size / (flushesMax - this.#flushes))
    return Math.min(rowsMax, Math.max(SHARE_ROWS_MIN, share))
  }

  async #flush(batch: readonly Entry<Request, Outcome>[]): Promise<void> {
    this.#flushes++
    try {
      await this.#send(batch)
    } catch (error) {
      if (batch.length > 1 && isRejected(error)) {
        await this.#flushSingly(batch)
      } else {
        for (const entry of batch) this.#refuse(entry, error)
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
  async #flushSingly(batch: readonly Entry<Request, Outcome>[]): Promise<void> {
    for (const [index, entry] of batch.entries()) {
      try {
        await this.#send([entry])
      } catch (error) {
        this.#refuse(entry, error)
        if (isRejected(error)) continue
        // The batch wrote nothing and these were not sent again.
        for (const unsent of batch.slice(index + 1)) {
          this.#refuse(unsent, this.#failed('overloaded', error))
        }
        return
      }
    }
  }

  async #send(batch: readonly Entry<Request, Outcome>[]): Promise<void> {
    const { clock, limits, store, call, flush } = this.#options
    const requests = batch.map((entry) => entry.request)
    const { timeoutMs } = limits
    const outcomes = await answerWithin(clock, { store, call, timeoutMs }, (signal) =>
      flush(requests, signal),
    )
    if (outcomes.length !== batch.length) {
      const cause = new Error(`it gave ${outcomes.length} answers to ${batch.length} requests`)
      throw this.#failed('unavailable', cause)
    }
    for (const [index, entry] of batch.entries()) entry.resolve(outcomes[index]!)
  }

  #refuse(entry: Entry<Request, Outcome>, error: unknown): void {
    this.#options.onFailure?.(error)
    entry.reject(error)
  }

  #failed(failure: StoreFailedError['failure'], cause: unknown): StoreFailedError {
    const { store, call } = this.#options
    return new StoreFailedError({ store, operation: call, failure, cause })
  }
}
