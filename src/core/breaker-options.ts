import { InvalidOptionsError } from './errors.ts'
import { describe, rejectUnknownOptions, wholeNumber } from './options.ts'

/** How the engine stops sending claims to a store that fails. */
export interface BreakerOptions {
  /**
   * Claim calls in a row that must be `unavailable` before claims are refused. Fewer frees
   * clients sooner; more rides out short stalls.
   *
   * @default 3
   */
  failures?: number

  /**
   * The longest pause between two probes while claims are refused. It bounds how long claims are
   * still refused after the store is back.
   *
   * @default half of storeTimeoutMs, at most 15_000
   */
  pauseMsMax?: number
}

export interface ResolvedBreakerOptions {
  readonly failures: number
  readonly pauseMsMax: number
  /** How long a probe may take. */
  readonly probeMs: number
}

/**
 * One failure may be an accident, and four calls may be under way at once: with three, a store
 * that falls silent under load is noticed after one timeout.
 */
const FAILURES = 3
const FAILURES_MAX = 1_000
const PAUSE_MS_MAX = 15_000
const HOUR_MS = 60 * 60 * 1000

/** `undefined`: there is to be no breaker. */
export function resolveBreakerOptions(
  options: BreakerOptions | false | undefined,
  storeTimeoutMs: number,
): ResolvedBreakerOptions | undefined {
  const where = 'createEngine.breaker'
  if (options === false) return undefined
  if (options !== undefined && (options === null || typeof options !== 'object')) {
    throw new InvalidOptionsError(
      `${where} must be false or an object such as { failures: 3 }, got ${describe(options)}`,
    )
  }
  const given = options ?? {}
  rejectUnknownOptions(where, given, ['failures', 'pauseMsMax'])
  return {
    failures: wholeNumber(`${where}.failures`, given.failures, {
      fallback: FAILURES,
      min: 1,
      max: FAILURES_MAX,
    }),
    pauseMsMax: wholeNumber(`${where}.pauseMsMax`, given.pauseMsMax, {
      fallback: Math.min(PAUSE_MS_MAX, probeLimitMs(storeTimeoutMs)),
      min: 1,
      max: HOUR_MS,
    }),
    probeMs: probeLimitMs(storeTimeoutMs),
  }
}

/**
 * Half of what a call may take. A probe that was sent just before the store came back, and the
 * pause after it, then last no longer than one call may: so long claims are refused at the most
 * after the store is back.
 */
export function probeLimitMs(storeTimeoutMs: number): number {
  return Math.max(1, Math.floor(storeTimeoutMs / 2))
}
