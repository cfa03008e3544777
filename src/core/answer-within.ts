import type { Clock } from './clock.ts'
import { StoreFailedError, hasCode } from './errors.ts'
import { NoAnswerError } from './store-advice.ts'

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
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const failed = (cause: unknown) =>
      new StoreFailedError({ store, operation: call, failure: 'unavailable', cause })
    const givenUp = new AbortController()
    const cancel = clock.after(timeoutMs, () => {
      const cause = new NoAnswerError(timeoutMs)
      // First, or a store that rejects at once would be heard before this failure.
      reject(failed(cause))
      givenUp.abort(cause)
    })
    const fail = (error: unknown) => {
      cancel()
      reject(hasCode(error, 'STORE_FAILED') ? error : failed(error))
    }
    const done = (answer: Answer) => {
      cancel()
      resolve(answer)
    }
    try {
      ask(givenUp.signal).then(done, fail)
    } catch (error) {
      fail(error)
    }
  })
}
