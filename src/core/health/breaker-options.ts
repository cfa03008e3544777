import { HOUR_MS } from '../time/durations.ts'
import { InvalidOptionsError } from '../errors.ts'
import { describe, rejectUnknownOptions, wholeNumber } from '../options.ts'

/** When the engine stops sending claims to a failing store, and how often it probes the store. */
export interface BreakerOptions {
  /**
   * Claim calls in a row that must be `unavailable` before claims are refused. A lower number
   * answers clients sooner when the store is down; a higher number tolerates short stalls. From 1
   * to 1000.
   *
   * @default 3
   */
  failures?: number

  /**
   * The longest pause between two probes while claims are refused, in milliseconds. A shorter
   * pause ends the refusals sooner after the store is back; a longer one puts less load on a store
   * that recovers. From 1 to 3_600_000 (one hour).
   *
   * @default half of `storeTimeoutMs`, at most 15_000
   */
  pauseMsMax?: number
}

export interface ResolvedBreakerOptions {
  readonly failures: number
  readonly pauseMsMax: number
  /** The time limit of a probe. */
  readonly probeMs: number
}

/**
 * A single failure may be a lost connection. By default four calls run at once, so with three
 * failures a store that stops answering under load is noticed after one timeout.
 */
const FAILURES = 3
const FAILURES_MAX = 1_000
const PAUSE_MS_MAX = 15_000

/** Returns `undefined` if the breaker is turned off. */
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
 * Half of `storeTimeoutMs`. A probe that was sent just before the store came back, and the default
 * pause after it, together take at most `storeTimeoutMs`. Claims are refused at most that long
 * after the store is back.
 */
export function probeLimitMs(storeTimeoutMs: number): number {
  return Math.max(1, Math.floor(storeTimeoutMs / 2))
}
