import type { StoredRecord } from './record.ts'

/**
 * How far beyond its length a lease may end before it is taken for one that was given before the
 * clock was set back. Longer than any call of ours waits for a lock, because the time of such a
 * call may be older than the lease that it meets.
 */
export const LEASE_AHEAD_MS = 10_000

/**
 * The record with its lease from now on, where it ends later than any lease of its length that was
 * given by this clock; `undefined` otherwise. It has not lapsed: its holder may live, and has its
 * whole length to renew it.
 */
export function decideShorten(record: StoredRecord, nowMs: number): StoredRecord | undefined {
  const { state, leaseMs, leaseUntilMs } = record
  if (state !== 'in_progress' || leaseMs === undefined) return undefined
  if (leaseUntilMs <= nowMs + leaseMs + LEASE_AHEAD_MS) return undefined
  return { ...record, leaseUntilMs: nowMs + leaseMs }
}
