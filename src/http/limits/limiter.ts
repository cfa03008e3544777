import type { Clock } from '../../core/time/clock.ts'
import { withTimeLimit } from '../../core/time/time-limit.ts'

/**
 * Counts points of a key in a window of time. The limiters of `rate-limiter-flexible` fit: in
 * memory for one process, or on Redis, PostgreSQL and others for all of them.
 */
export interface Limiter {
  /**
   * Takes points, by default 1. `0` takes none and only returns the state. If the key has too few
   * points, rejects with an object that has `msBeforeNext`. Any other rejection is a failure of the
   * limiter.
   */
  consume(key: string, points?: number): Promise<LimiterState>

  /**
   * Returns the state, and takes nothing; `null` if the key has no points taken.
   *
   * @default `consume` with 0 points is called
   */
  get?(key: string): Promise<LimiterState | null>

  /** The points of a window, for the field `RateLimit-Policy`. @default the field is not sent */
  readonly points?: number
  /** The length of a window in seconds, for `RateLimit-Policy`. @default the field has no window */
  readonly duration?: number
}

export interface LimiterState {
  /** The points that are left in this window. */
  readonly remainingPoints: number
  /** The time until the window ends, in milliseconds. */
  readonly msBeforeNext: number
}

/** Whether a key has points left. `failed`: the limiter did not answer. */
export type LimiterAnswer =
  | { readonly kind: 'allowed' }
  | { readonly kind: 'exceeded'; readonly retryAfterMs: number }
  | { readonly kind: 'failed'; readonly error: unknown }

export interface LimiterCall {
  readonly clock: Clock
  readonly timeoutMs: number
}

/** Takes one point. Never rejects. */
export function takePoint(
  limiter: Limiter,
  key: string,
  call: LimiterCall,
): Promise<LimiterAnswer> {
  return ask(call, async () => {
    await limiter.consume(key, 1)
    return { kind: 'allowed' }
  })
}

/** Whether there is a point to take. Never rejects, and takes none. */
export function hasPoint(limiter: Limiter, key: string, call: LimiterCall): Promise<LimiterAnswer> {
  return ask(call, async () => {
    const state = await (limiter.get?.(key) ?? limiter.consume(key, 0))
    // Written so that a state without a number counts as allowed.
    if (state === null || !(state.remainingPoints < 1)) return { kind: 'allowed' }
    return { kind: 'exceeded', retryAfterMs: waitOf(state) }
  })
}

async function ask(
  { clock, timeoutMs }: LimiterCall,
  call: () => Promise<LimiterAnswer>,
): Promise<LimiterAnswer> {
  try {
    return await withTimeLimit({ clock, limitMs: timeoutMs, afterInput: true }, call)
  } catch (error) {
    if (error instanceof Error || !isState(error)) return { kind: 'failed', error }
    return { kind: 'exceeded', retryAfterMs: waitOf(error) }
  }
}

function isState(value: unknown): value is LimiterState {
  return typeof (value as Partial<LimiterState> | null)?.msBeforeNext === 'number'
}

function waitOf({ msBeforeNext }: LimiterState): number {
  return Number.isFinite(msBeforeNext) ? Math.max(0, msBeforeNext) : 0
}
