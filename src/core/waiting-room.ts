import type { Clock } from './clock.ts'

/** Duplicates that wait for a result hold a connection each; these are the most that may. */
export const WAITING_MAX = 1_000
/** So that one tenant's duplicates leave room for the others. */
export const WAITING_PER_TENANT_MAX = 100

/**
 * Where duplicates wait for the first request to finish. A holder in this process wakes them at
 * once; for holders elsewhere they look again after a pause.
 */
export class WaitingRoom {
  readonly #clock: Clock
  readonly #sleepers = new Map<string, Set<() => void>>()
  readonly #perTenant = new Map<string, number>()
  #count = 0

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Takes a place for a whole wait; `false` when the room, or the tenant's part of it, is full. */
  enter(tenant: string): boolean {
    const ofTenant = this.#perTenant.get(tenant) ?? 0
    if (this.#count >= WAITING_MAX || ofTenant >= WAITING_PER_TENANT_MAX) return false
    this.#perTenant.set(tenant, ofTenant + 1)
    this.#count++
    return true
  }

  leave(tenant: string): void {
    const left = (this.#perTenant.get(tenant) ?? 1) - 1
    if (left === 0) this.#perTenant.delete(tenant)
    else this.#perTenant.set(tenant, left)
    this.#count--
  }

  /** Sleeps until the record settles here, or for `ms`. */
  sleep(identity: string, ms: number): Promise<void> {
    return new Promise((resolve) => {
      const sleepers = this.#sleepers.get(identity) ?? new Set()
      this.#sleepers.set(identity, sleepers)
      const wake = () => {
        cancel()
        sleepers.delete(wake)
        if (sleepers.size === 0) this.#sleepers.delete(identity)
        resolve()
      }
      const cancel = this.#clock.after(ms, wake)
      sleepers.add(wake)
    })
  }

  wake(identity: string): void {
    const sleepers = this.#sleepers.get(identity)
    if (sleepers === undefined) return
    for (const wake of [...sleepers]) wake()
  }

  wakeAll(): void {
    for (const identity of [...this.#sleepers.keys()]) this.wake(identity)
  }
}
