/** The codes of `unknown` records after a failed attempt, and the pause before the next attempt. */
import { MINUTE_MS, SECOND_MS } from '../../core/time/durations.ts'
import { backoffMs, type Backoff } from '../../core/time/retry.ts'

/** `errorCode` of a record: an outside effect was sent, and its outcome could not be found out. */
export const EFFECT_UNKNOWN = 'effect_unknown'

/** `errorCode` of a record: an outside effect happened, and its result may not be on record. */
export const RESULT_NOT_RECORDED = 'result_not_recorded'

/** `errorCode` of a record: `maxAttempts` attempts failed, so an operator has to decide. */
export const ATTEMPTS_EXHAUSTED = 'attempts_exhausted'

const RESUME_BACKOFF: Backoff = { firstMs: SECOND_MS, maxMs: 5 * MINUTE_MS }

/** How long workers wait before they resume a failed operation: doubles with every attempt. */
export function resumeAfterMs(attempt: number): number {
  return backoffMs(RESUME_BACKOFF, attempt)
}
