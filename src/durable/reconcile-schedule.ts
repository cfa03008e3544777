import { InvalidOptionsError } from '../core/errors.ts'
import { describe, rejectUnknownOptions, wholeNumber } from '../core/options.ts'

/** When an `unknown` record is looked into. The first time is at once. */
export interface ReconcileSchedule {
  /**
   * The pause after the first look that has found nothing out.
   *
   * @default 10_000
   */
  firstMs?: number

  /**
   * How much longer each pause is than the one before.
   *
   * @default 2
   */
  factor?: number

  /**
   * The longest pause.
   *
   * @default 3_600_000 (one hour)
   */
  maxMs?: number

  /**
   * How many looks there are; then the record is for an operator. A process that dies over one
   * has used it up. With the defaults, the last comes about eleven hours after the first.
   *
   * @default 20
   */
  tries?: number
}

export type ResolvedSchedule = Readonly<Required<ReconcileSchedule>>

const DAY_MS = 24 * 60 * 60 * 1000
const FACTOR_MAX = 100

/** Each pause is up to a quarter shorter or longer: what failed together asks apart. */
const JITTER = 0.25

export function resolveSchedule(where: string, given: ReconcileSchedule = {}): ResolvedSchedule {
  rejectUnknownOptions(where, given, ['firstMs', 'factor', 'maxMs', 'tries'])
  const whole = (name: 'firstMs' | 'maxMs' | 'tries', fallback: number, max: number): number =>
    wholeNumber(`${where}.${name}`, given[name], { fallback, min: 1, max })
  const { factor = 2 } = given
  if (typeof factor !== 'number' || !(factor >= 1 && factor <= FACTOR_MAX)) {
    throw new InvalidOptionsError(
      `${where}.factor must be a number from 1 to ${FACTOR_MAX}, got ${describe(factor)}`,
    )
  }
  return Object.freeze({
    firstMs: whole('firstMs', 10_000, 7 * DAY_MS),
    factor,
    maxMs: whole('maxMs', 3_600_000, 30 * DAY_MS),
    tries: whole('tries', 20, 10_000),
  })
}

export interface Looked {
  /** Looks so far, this one included. */
  readonly tries: number
  /** From when on a "not found" would be proof, where that is ahead. */
  readonly provenInMs: number | undefined
  /** From 0 to 1. */
  readonly random: number
}

/** How long to wait before the next look; `undefined`: there is none. */
export function nextLookInMs(
  schedule: ResolvedSchedule,
  { tries, provenInMs, random }: Looked,
): number | undefined {
  if (tries >= schedule.tries) return undefined
  const { firstMs, factor, maxMs } = schedule
  const pauseMs = Math.min(firstMs * factor ** (tries - 1), maxMs)
  const jitteredMs = Math.ceil(pauseMs * (1 - JITTER + 2 * JITTER * random))
  if (provenInMs === undefined) return jitteredMs
  // The last look is kept for the moment from which it settles the matter.
  const isLastNext = tries === schedule.tries - 1
  return isLastNext ? provenInMs : Math.min(jitteredMs, provenInMs)
}
