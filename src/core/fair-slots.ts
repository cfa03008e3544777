import type { Clock } from './clock.ts'
import { StoreFailedError } from './errors.ts'
import { FairQueue } from './fair-queue.ts'

export interface FairSlotsOptions {
  readonly clock: Clock
  /** For messages: the store's name and the call that waits for a slot. */
  readonly store: string
  readonly call: string
  /** How many at once. */
  readonly slots: number
  /** How many may wait; one more is refused as `overloaded`, or crowds out one of a fuller line. */
  readonly waitingMax: number
  /** Hears why a call was refused, once for each. */
  readonly onRefusal?: (error: unknown) => void
}

interface Entry {
  readonly enter: () => void
  readonly refuse: (error: unknown) => void
  isGone: boolean
}

/**
 * At most so many calls at once; the others wait in turns of the tenants. In the store itself they
 * would wait in the order they came, and one tenant's thousands would be before another's one.
 */
export class FairSlots {
  readonly #options: FairSlotsOptions
  readonly #waiting = new FairQueue<Entry>()
  #free: number

  constructor(options: FairSlotsOptions) {
    this.#options = options
    this.#free = options.slots
  }

  /** Waits for a slot, at most `waitMs`, and keeps it until `run` has settled. */
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
      this.#handOn()
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
        isGone: false,
        enter: () => {
          cancel()
          resolve()
        },
        refuse: (error) => {
          cancel()
          entry.isGone = true
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

  #refuse(refuse: (error: unknown) => void, error: unknown): void {
    this.#options.onRefusal?.(error)
    refuse(error)
  }

  /** Handed on directly, so that nobody who comes in between can overtake. */
  #handOn(): void {
    for (let next = this.#waiting.shift(); next !== undefined; next = this.#waiting.shift()) {
      if (!next.isGone) return next.enter()
    }
    this.#free++
  }

  #overloaded(why: string): StoreFailedError {
    const { store, call } = this.#options
    const cause = new Error(why)
    return new StoreFailedError({ store, operation: call, failure: 'overloaded', cause })
  }
}
