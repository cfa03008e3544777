import { backoffMs, spread } from '../../core/time/retry.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, rejectUnknownOptions, wholeNumber } from '../../core/options.ts'
import { DAY_MS, HOUR_MS } from '../../core/time/durations.ts'

/**
 * When the reconciler tries to find out the outcome of an `unknown` record. `maxAttempts` counts
 * these tries, not the attempts of the operation. The first try is due at once, or, for an effect
 * without an answer, after a second or when `not_found` becomes a proof. A later try also comes no
 * later than that proof, and the last one waits for it.
 */
export interface ReconcileSchedule {
  /**
   * The pause after the first try, if it found out nothing. Each pause is up to a quarter shorter
   * or longer. From 1 to 604_800_000 (a week).
   *
   * @default 10_000
   */
  firstMs?: number

  /**
   * The factor by which each further pause grows, from 1 to 100. 1 keeps the pause constant.
   *
   * @default 2
   */
  factor?: number

  /**
   * The longest pause between two tries. A shorter one finds out sooner when a provider is back, at
   * the price of more calls during its outage. From 1 to 2_592_000_000 (30 days).
   *
   * @default 3_600_000 (one hour)
   */
  maxMs?: number

  /**
   * The number of tries; after the last one the record waits for an operator. A try counts even if
   * the process crashes during it. With the defaults, the last try is about eleven hours after the
   * first. From 1 to 10_000.
   *
   * @default 20
   */
  maxAttempts?: number
}

export type ResolvedSchedule = Readonly<Required<ReconcileSchedule>>

const FACTOR_MAX = 100

/** Each pause is up to a quarter shorter or longer, so that records that failed together spread. */
const JITTER = 0.25

export function resolveSchedule(where: string, given: ReconcileSchedule = {}): ResolvedSchedule {
  rejectUnknownOptions(where, given, ['firstMs', 'factor', 'maxMs', 'maxAttempts'])
  const whole = (
    name: 'firstMs' | 'maxMs' | 'maxAttempts',
    fallback: number,
    max: number,
  ): number => wholeNumber(`${where}.${name}`, given[name], { fallback, min: 1, max })
  const { factor = 2 } = given
  if (typeof factor !== 'number' || !(factor >= 1 && factor <= FACTOR_MAX)) {
    throw new InvalidOptionsError(
      `${where}.factor must be a number from 1 to ${FACTOR_MAX}, got ${describe(factor)}`,
    )
  }
  return Object.freeze({
    firstMs: whole('firstMs', 10_000, 7 * DAY_MS),
    factor,
    maxMs: whole('maxMs', HOUR_MS, 30 * DAY_MS),
    maxAttempts: whole('maxAttempts', 20, 10_000),
  })
}

export interface FailedTry {
  /** Tries so far, including this one. */
  readonly tries: number
  /** Time until "not found" proves that the effect did not happen, if that is ahead. */
  readonly provenInMs: number | undefined
  /** From 0 to 1. */
  readonly random: number
}

/** The pause before the next try; `undefined` after the last one. */
export function nextTryInMs(
  schedule: ResolvedSchedule,
  { tries, provenInMs, random }: FailedTry,
): number | undefined {
  if (tries >= schedule.maxAttempts) return undefined
  const jitteredMs = Math.ceil(spread(backoffMs(schedule, tries), JITTER, () => random))
  if (provenInMs === undefined) return jitteredMs
  // The last try is kept for the time from which its answer is a proof.
  const isLastNext = tries === schedule.maxAttempts - 1
  return isLastNext ? provenInMs : Math.min(jitteredMs, provenInMs)
}
