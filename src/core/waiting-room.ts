import type { Clock } from './clock.ts'
import type { Store } from './store.ts'

/** Each duplicate that waits holds a connection, so places beyond a tenant's first are few. */
export const SHARED_PLACES_MAX = 1_000
/** One tenant's places, so that it leaves room for others. */
export const WAITING_PER_TENANT_MAX = 100
/** Tenants that wait at once. Each has a first place of its own, so this bounds those places. */
export const TENANTS_WAITING_MAX = 10_000

/** What ended a sleep. `told`: the store has said that the record moved on. */
export type WokenBy = 'time' | 'here' | 'told'

/**
 * Where duplicates wait for the first request to finish. A holder in this process wakes them at
 * once. So does the store where it can tell that a record has moved on; where it cannot, they look
 * again after a pause.
 */
export class WaitingRoom {
  readonly #clock: Clock
  readonly #store: Pick<Store, 'watch'>
  readonly #sleepers = new Map<string, Set<(by: WokenBy) => void>>()
  /** What ends the watch over a record: one for all who wait for it. */
  readonly #watches = new Map<string, () => void>()
  readonly #perTenant = new Map<string, number>()
  /** Places beyond the first of each tenant. */
  #shared = 0

  constructor(clock: Clock, store: Pick<Store, 'watch'> = {}) {
    this.#clock = clock
    this.#store = store
  }

  /**
   * Takes a place for a whole wait; `false` where there is none. The first place of a tenant is
   * reserved for it, however many others wait. Further places are shared by all tenants.
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

  /** Whether the store will tell those who sleep that the record has moved on. */
  watch(identity: string): boolean {
    if (this.#store.watch === undefined) return false
    if (this.#watches.has(identity)) return true
    let isSpent = false
    const end = this.#store.watch(identity, () => {
      isSpent = true
      this.#watches.delete(identity)
      this.wake(identity, 'told')
    })
    // Told before anybody sleeps: the next look is due at once, and not to be slept through.
    if (isSpent) return false
    this.#watches.set(identity, end)
    return true
  }

  /** Ends the watch over a record for which nobody sleeps. */
  unwatch(identity: string): void {
    if (this.#sleepers.has(identity)) return
    this.#watches.get(identity)?.()
    this.#watches.delete(identity)
  }

  /** Sleeps until the record settles here, the store tells of it, or for `ms`. */
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
      const cancel = this.#clock.after(ms, () => wake('time'))
      sleepers.add(wake)
    })
  }

  wake(identity: string, by: WokenBy = 'here'): void {
    const sleepers = this.#sleepers.get(identity)
    if (sleepers === undefined) return
    for (const wake of [...sleepers]) wake(by)
  }

  wakeAll(): void {
    for (const identity of [...this.#sleepers.keys()]) this.wake(identity)
  }
}
