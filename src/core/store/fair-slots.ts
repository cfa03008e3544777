import type { Clock } from '../time/clock.ts'
import { StoreFailedError } from '../errors.ts'
import { FairQueue } from './fair-queue.ts'

export interface FairSlotsOptions {
  readonly clock: Clock
  /** The name of the store and the call that waits for a slot, for error messages. */
  readonly store: string
  readonly call: string
  /** Calls that may run at the same time. */
  readonly slots: number
  /**
   * Calls that may wait. For one more, a call of the tenant with the most waiting calls is refused
   * as `overloaded`.
   */
  readonly waitingMax: number
  /** Called once for each refused call. */
  readonly onRefusal?: (error: StoreFailedError) => void
}

interface Entry {
  readonly enter: () => void
  readonly refuse: (error: StoreFailedError) => void
  isRefused: boolean
}

/**
 * Limits how many calls run at the same time; for the others, the tenants take turns. The store
 * would serve them in the order of their arrival, so that one call of a tenant would wait for
 * thousands of another.
 */
export class FairSlots {
  readonly #options: FairSlotsOptions
  readonly #waiting = new FairQueue<Entry>()
  #free: number

  constructor(options: FairSlotsOptions) {
    this.#options = options
    this.#free = options.slots
  }

  /** Waits for a slot, at most `waitMs`, and keeps it until the promise of `run` has settled. */
  async use<Result>(
    tenant: string,
    run: () => Promise<Result>,
    waitMs = Number.POSITIVE_INFINITY,
  ): Promise<Result> {
    if (this.#free > 0) this.#free--
    else await this.#wait(tenant, waitMs)
    try {
      return await run()
    } finally {
      this.#passOn()
    }
  }

  #wait(tenant: string, waitMs: number): Promise<void> {
    const { clock, waitingMax } = this.#options
    return new Promise((resolve, reject) => {
      if (this.#waiting.size >= waitingMax) {
        const error = this.#overloaded(`${waitingMax} calls are already waiting`)
        const crowded = this.#waiting.crowdOut(tenant)
        if (crowded === undefined) return this.#refuse(reject, error)
        this.#refuse(crowded.refuse, error)
      }
      let cancel: () => void = () => undefined
      const entry: Entry = {
        isRefused: false,
        enter: () => {
          cancel()
          resolve()
        },
        refuse: (error) => {
          cancel()
          entry.isRefused = true
          reject(error)
        },
      }
      if (waitMs !== Number.POSITIVE_INFINITY) {
        cancel = clock.after(waitMs, () => {
          this.#refuse(entry.refuse, this.#overloaded(`not sent within ${waitMs} ms`))
        })
      }
      this.#waiting.push(tenant, entry)
    })
  }

  #refuse(refuse: (error: StoreFailedError) => void, error: StoreFailedError): void {
    this.#options.onRefusal?.(error)
    refuse(error)
  }

  /** Passes the slot on without freeing it, so that a new call cannot overtake a waiting one. */
  #passOn(): void {
    for (let next = this.#waiting.shift(); next !== undefined; next = this.#waiting.shift()) {
      if (!next.isRefused) return next.enter()
    }
    this.#free++
  }

  #overloaded(why: string): StoreFailedError {
    const { store, call } = this.#options
    const cause = new Error(why)
    return new StoreFailedError({ store, operation: call, failure: 'overloaded', cause })
  }
}
