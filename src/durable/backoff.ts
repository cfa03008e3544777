/** How long to wait before a failed message is tried again. */
export interface Backoff {
  /** The longest pause after the first failure; it doubles with every further one. */
  readonly firstMs: number
  readonly maxMs: number
}

/** Beyond this the doubling would leave the whole numbers; every `maxMs` is reached long before. */
const DOUBLINGS_MAX = 40

/**
 * Exponential, with full jitter: anything from nothing to the pause of this attempt. Messages that
 * failed together, because their receiver was down, do not all come back in the same moment.
 */
export function backoffMs(
  { firstMs, maxMs }: Backoff,
  attempt: number,
  random: () => number,
): number {
  const doublings = Math.min(Math.max(0, attempt - 1), DOUBLINGS_MAX)
  return Math.floor(random() * Math.min(maxMs, firstMs * 2 ** doublings))
}
