import { sleep, type Clock } from './clock.ts'

/** Pauses that grow with each failure in a row. */
export interface Backoff {
  /** The pause after the first failure. */
  readonly firstMs: number
  /** The longest pause. */
  readonly maxMs: number
  /** How many times longer each pause is than the one before. @default 2 */
  readonly factor?: number
}

/** The pause after this number of failures in a row; the first failure has the number 1. */
export function backoffMs({ firstMs, maxMs, factor = 2 }: Backoff, failures: number): number {
  return Math.min(firstMs * factor ** Math.max(0, failures - 1), maxMs)
}

/**
 * A random time from `(1 - share) * ms` to `ms`, so that processes that failed together do not
 * retry together. A share of 1 is full jitter.
 */
export function jittered(ms: number, share: number, random: () => number = Math.random): number {
  return ms * (1 - share + share * random())
}

/** A random time from `(1 - share) * ms` to `(1 + share) * ms`: a period keeps its mean. */
export function spread(ms: number, share: number, random: () => number = Math.random): number {
  return ms * (1 - share + 2 * share * random())
}

export interface RetryOptions {
  readonly clock: Clock
  /** The pause after this number of failures. */
  readonly pauseMs: (failures: number) => number
  /** Called after each failure. `false` ends the retries. */
  readonly mayRetry: (error: unknown, failures: number) => boolean
  /** When to stop, in `monotonicMs` of the clock. @default never */
  readonly deadlineMs?: number
  /** Ends a pause at once. One last attempt follows it. */
  readonly signal?: AbortSignal
}

/** Repeats `attempt` until it succeeds, or rejects with the error of its last failure. */
export async function retry<Value>(
  { clock, pauseMs, mayRetry, deadlineMs = Number.POSITIVE_INFINITY, signal }: RetryOptions,
  attempt: () => Value | PromiseLike<Value>,
): Promise<Value> {
  for (let failures = 1; ; failures++) {
    let leftMs: number
    try {
      return await attempt()
    } catch (error) {
      if (!mayRetry(error, failures)) throw error
      leftMs = deadlineMs - clock.monotonicMs()
      if (leftMs <= 0 || signal?.aborted === true) throw error
    }
    await sleep(clock, Math.min(pauseMs(failures), leftMs), signal)
  }
}
