/** After the first look, which comes at once; then three times as long after each. */
const PAUSE_MS_FIRST = 1_000
const PAUSE_GROWTH = 3

/** A look that failed is repeated after this time, and after twice as long each time. */
const RETRY_MS_FIRST = 500
const RETRY_MS_MAX = 5_000
/** Nor later than after this part of the lease. */
const RETRY_PART = 1 / 8

/** The pauses reach their longest, or the end of every lease, before that. */
const GROWTHS_MAX = 20

/** A look in the second half of the lease is made in any case; one near its end, if it can be. */
const HALF = 1 / 2
const LATE = 7 / 8

/** What is known about a lost claim: when it was lost, and the looks at it until now. */
export interface Looked {
  readonly leaseMs: number
  readonly sinceMs: number
  /** Looks that were answered, and those that have failed since. */
  looks: number
  failures: number
  answeredMs: number | undefined
}

/**
 * `needed`: the first look at a claim, and one in the second half of its lease. `late`: one near
 * the end of the lease, for a claim that takes hold after those. `extra`: one that frees the key
 * sooner.
 */
export const URGENCIES = ['needed', 'late', 'extra'] as const

export type Urgency = (typeof URGENCIES)[number]

export function urgencyOf(lost: Looked, nowMs: number): Urgency {
  if (needsLook(lost, nowMs)) return 'needed'
  return nowMs >= partMs(lost, LATE) && lost.answeredMs! < partMs(lost, LATE) ? 'late' : 'extra'
}

/** When the lease would be over, had the claim taken hold when it was lost. */
export function endMs(lost: Looked): number {
  return partMs(lost, 1)
}

/** How fast looks must be made, if this one is to be made in the part of the lease it is for. */
export function neededPerSecond(lost: Looked, nowMs: number): number {
  if (!needsLook(lost, nowMs)) return 0
  const part = [HALF, LATE].find((end) => nowMs < partMs(lost, end)) ?? 1
  return 1_000 / Math.max(1_000, partMs(lost, part) - nowMs)
}

/** At the end of the lease: it is not looked for again. */
export function nextLookMs(lost: Looked, nowMs: number): number {
  if (nowMs >= partMs(lost, LATE)) return endMs(lost)
  const pauseMs = PAUSE_MS_FIRST * PAUSE_GROWTH ** Math.min(lost.looks - 1, GROWTHS_MAX)
  return Math.min(nowMs + pauseMs, partMs(lost, nowMs < partMs(lost, HALF) ? HALF : LATE))
}

/** After a look that failed. */
export function retryMs({ failures, leaseMs }: Looked): number {
  const pauseMs = RETRY_MS_FIRST * 2 ** Math.min(failures - 1, GROWTHS_MAX)
  return Math.min(pauseMs, RETRY_MS_MAX, leaseMs * RETRY_PART)
}

function needsLook(lost: Looked, nowMs: number): boolean {
  if (lost.answeredMs === undefined) return true
  return nowMs >= partMs(lost, HALF) && lost.answeredMs < partMs(lost, HALF)
}

function partMs({ sinceMs, leaseMs }: Looked, part: number): number {
  return sinceMs + leaseMs * part
}
