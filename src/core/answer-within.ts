import { CallDeadline } from './call-deadline.ts'
import type { Clock } from './clock.ts'
import { StoreFailedError, hasCode } from './errors.ts'

export interface StoreCall {
  /** For messages: the store's name and the call that is made. */
  readonly store: string
  readonly call: string
  readonly timeoutMs: number
}

/**
 * Makes a store call and waits for its answer, at most `timeoutMs`. After that the call fails, and
 * its signal is aborted, so that the store gives up the connection the call uses. Every failure
 * comes out as `STORE_FAILED`, also where the call throws instead of rejecting.
 */
export function answerWithin<Answer>(
  clock: Clock,
  { store, call, timeoutMs }: StoreCall,
  ask: (signal: AbortSignal) => Promise<Answer>,
  deadline: CallDeadline = new CallDeadline(clock, timeoutMs),
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const failed = (cause: unknown) =>
      new StoreFailedError({ store, operation: call, failure: 'unavailable', cause })
    const giveUp = (cause: unknown) => reject(failed(cause))
    deadline.join(giveUp)
    const fail = (error: unknown) => {
      deadline.leave(giveUp)
      reject(hasCode(error, 'STORE_FAILED') ? error : failed(error))
    }
    const done = (answer: Answer) => {
      deadline.leave(giveUp)
      resolve(answer)
    }
    try {
      ask(deadline.signal).then(done, fail)
    } catch (error) {
      fail(error)
    }
  })
}
