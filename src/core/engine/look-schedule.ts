import { backoffMs, type Backoff } from '../time/retry.ts'

/** The pauses after lookups that were answered. The first lookup starts at once. */
const PAUSE: Backoff = { firstMs: 1_000, maxMs: Number.POSITIVE_INFINITY, factor: 3 }

/** The pauses after lookups that failed. */
const RETRY: Backoff = { firstMs: 500, maxMs: 5_000 }
/** A failed lookup is repeated within this part of the lease. */
const RETRY_PART = 1 / 8

/** A lookup in the second half of the lease is always made; one near its end, if possible. */
const HALF = 1 / 2
const LATE = 7 / 8

/** When a claim was lost, and the lookups of it so far. */
export interface LookHistory {
  readonly leaseMs: number
  readonly sinceMs: number
  /** Lookups that were answered, and those that have failed since the last answer. */
  looks: number
  failures: number
  answeredMs: number | undefined
}

/**
 * How much a claim needs its next lookup, most urgent first.
 *
 * - `needed`: the first lookup, and one in the second half of the lease.
 * - `late`: a lookup near the end of the lease, for a claim that takes effect after those two.
 * - `extra`: any other lookup, which may free the key sooner.
 */
export const URGENCIES = ['needed', 'late', 'extra'] as const

export type Urgency = (typeof URGENCIES)[number]

export function urgencyOf(lost: LookHistory, nowMs: number): Urgency {
  if (needsLook(lost, nowMs)) return 'needed'
  return nowMs >= partMs(lost, LATE) && lost.answeredMs! < partMs(lost, LATE) ? 'late' : 'extra'
}

/** When the lease ends, if the claim took effect when it was lost. */
export function endMs(lost: LookHistory): number {
  return partMs(lost, 1)
}

/** The share of this claim in the pace at which every needed lookup is made in time. */
export function neededPerSecond(lost: LookHistory, nowMs: number): number {
  if (!needsLook(lost, nowMs)) return 0
  const part = [HALF, LATE].find((end) => nowMs < partMs(lost, end)) ?? 1
  return 1_000 / Math.max(1_000, partMs(lost, part) - nowMs)
}

/** When to look the claim up again after an answer. At the end of the lease: never. */
export function nextLookMs(lost: LookHistory, nowMs: number): number {
  if (nowMs >= partMs(lost, LATE)) return endMs(lost)
  const pauseMs = backoffMs(PAUSE, lost.looks)
  return Math.min(nowMs + pauseMs, partMs(lost, nowMs < partMs(lost, HALF) ? HALF : LATE))
}

/** The pause after a lookup that failed. */
export function retryMs({ failures, leaseMs }: LookHistory): number {
  return Math.min(backoffMs(RETRY, failures), leaseMs * RETRY_PART)
}

function needsLook(lost: LookHistory, nowMs: number): boolean {
  if (lost.answeredMs === undefined) return true
  return nowMs >= partMs(lost, HALF) && lost.answeredMs < partMs(lost, HALF)
}

function partMs({ sinceMs, leaseMs }: LookHistory, part: number): number {
  return sinceMs + leaseMs * part
}
