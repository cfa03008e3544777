import type { StoredRecord } from './record.ts'

/**
 * A lease that ends later than its length plus this time was granted before the clock was set back.
 * The margin is longer than any store call waits for a lock: such a call compares with a time that
 * may be older than the lease.
 */
export const LEASE_AHEAD_MS = 10_000

/**
 * Restarts a lease that was granted before the clock was set back: without this, its key would stay
 * held for as long as the clock went back. The lease has not lapsed. Its holder may still be
 * running, and gets the whole length to renew it. Returns `undefined` if the lease stays as it is.
 */
export function decideShorten(record: StoredRecord, nowMs: number): StoredRecord | undefined {
  const { state, leaseMs, leaseUntilMs } = record
  if (state !== 'in_progress' || leaseMs === undefined) return undefined
  if (leaseUntilMs <= nowMs + leaseMs + LEASE_AHEAD_MS) return undefined
  return { ...record, leaseUntilMs: nowMs + leaseMs }
}
