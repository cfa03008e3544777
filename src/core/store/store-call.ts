import type { Clock } from '../time/clock.ts'
import { TimeLimit } from '../time/time-limit.ts'
import { StoreFailedError, hasCode } from '../errors.ts'
import { NoAnswerError } from '../health/store-advice.ts'

export interface StoreCall {
  /** The name of the store and the call, for error messages. */
  readonly store: string
  readonly call: string
  readonly timeoutMs: number
}

/**
 * Makes a store call and waits for its answer, at most `timeoutMs`. After that the call fails and
 * its signal aborts, so that the store gives up the connection that the call uses. Every failure
 * becomes `STORE_FAILED`, also when the call throws instead of rejecting.
 */
export function callStore<Answer>(
  clock: Clock,
  { store, call, timeoutMs }: StoreCall,
  ask: (signal: AbortSignal) => Promise<Answer>,
  limit: TimeLimit = storeLimit(clock, timeoutMs),
): Promise<Answer> {
  const failed = (cause: unknown) =>
    new StoreFailedError({ store, operation: call, failure: 'unavailable', cause })
  return limit.run(ask, {
    onLimit: (reason): never => {
      throw failed(reason)
    },
    toError: (error) => (hasCode(error, 'STORE_FAILED') ? error : failed(error)),
  })
}

/** The time limit of one store call, or of calls that are sent together. */
export function storeLimit(clock: Clock, limitMs: number): TimeLimit {
  return new TimeLimit({ clock, limitMs, reason: (ms) => new NoAnswerError(ms) })
}
