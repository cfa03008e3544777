import type { Clock } from '../time/clock.ts'
import type { Store } from '../store/store.ts'

/** Each waiting duplicate keeps a connection open, so places beyond a tenant's first are few. */
export const SHARED_PLACES_MAX = 1_000
/** The places of one tenant, so that it leaves room for others. */
export const WAITING_PER_TENANT_MAX = 100
/** Tenants that wait at once. Each has one reserved place, so this limits the reserved places. */
export const TENANTS_WAITING_MAX = 10_000

/** The cause of a wake-up. `engine`: this process. `store`: the store has reported a change. */
export type WokenBy = 'timer' | 'engine' | 'store'

/**
 * Where duplicates wait for the first request to end. A holder in this process wakes them at once,
 * and so does a store that can report that a record has changed. Otherwise they poll.
 */
export class WaitingRoom {
  readonly #clock: Clock
  readonly #store: Pick<Store, 'watch'>
  readonly #sleepers = new Map<string, Set<(by: WokenBy) => void>>()
  /** Each function ends the watch on a record. All requests that wait for it share one watch. */
  readonly #watches = new Map<string, () => void>()
  readonly #perTenant = new Map<string, number>()
  /** Places beyond the first of each tenant. */
  #shared = 0

  constructor(clock: Clock, store: Pick<Store, 'watch'> = {}) {
    this.#clock = clock
    this.#store = store
  }

  /**
   * Takes a place for a whole wait; `false` if none is free. The first place of a tenant is
   * reserved for it, no matter how many others wait. All tenants share the further places.
   */
  enter(tenant: string): boolean {
    const ofTenant = this.#perTenant.get(tenant) ?? 0
    if (ofTenant === 0) {
      if (this.#perTenant.size >= TENANTS_WAITING_MAX) return false
    } else {
      if (this.#shared >= SHARED_PLACES_MAX || ofTenant >= WAITING_PER_TENANT_MAX) return false
      this.#shared++
    }
    this.#perTenant.set(tenant, ofTenant + 1)
    return true
  }

  leave(tenant: string): void {
    const left = (this.#perTenant.get(tenant) ?? 1) - 1
    if (left > 0) {
      this.#perTenant.set(tenant, left)
      this.#shared--
    } else this.#perTenant.delete(tenant)
  }

  /** Watches a record. `true` if the store will wake the sleepers when the record changes. */
  watch(identity: string): boolean {
    if (this.#store.watch === undefined) return false
    if (this.#watches.has(identity)) return true
    let isSpent = false
    const end = this.#store.watch(identity, () => {
      isSpent = true
      this.#watches.delete(identity)
      this.wake(identity, 'store')
    })
    // The store has reported a change before the caller sleeps, so the caller must poll soon.
    if (isSpent) return false
    this.#watches.set(identity, end)
    return true
  }

  /** Ends the watch on a record that no request waits for. */
  unwatch(identity: string): void {
    if (this.#sleepers.has(identity)) return
    this.#watches.get(identity)?.()
    this.#watches.delete(identity)
  }

  /** Sleeps until the record settles in this process, the store reports a change, or for `ms`. */
  sleep(identity: string, ms: number): Promise<WokenBy> {
    return new Promise((resolve) => {
      const sleepers = this.#sleepers.get(identity) ?? new Set()
      this.#sleepers.set(identity, sleepers)
      const wake = (by: WokenBy) => {
        cancel()
        sleepers.delete(wake)
        if (sleepers.size === 0) this.#sleepers.delete(identity)
        resolve(by)
      }
      const cancel = this.#clock.after(ms, () => wake('timer'))
      sleepers.add(wake)
    })
  }

  wake(identity: string, by: WokenBy = 'engine'): void {
    const sleepers = this.#sleepers.get(identity)
    if (sleepers === undefined) return
    for (const wake of [...sleepers]) wake(by)
  }

  wakeAll(): void {
    for (const identity of [...this.#sleepers.keys()]) this.wake(identity)
  }
}
