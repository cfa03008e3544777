import type { Clock } from './clock.ts'
import { StoreFailedError, hasCode } from './errors.ts'

export interface StoreCall {
  /** For messages: the store's name and the call that is made. */
  readonly store: string
  readonly call: string
  readonly timeoutMs: number
}

/**
 * The store's answer, given up after `timeoutMs`: what waits for it must not wait for ever. Every
 * failure comes out as `STORE_FAILED`, also where the call throws instead of rejecting.
 */
export function answerWithin<Answer>(
  clock: Clock,
  { store, call, timeoutMs }: StoreCall,
  ask: () => Promise<Answer>,
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const failed = (cause: unknown) =>
      new StoreFailedError({ store, operation: call, failure: 'unavailable', cause })
    const cancel = clock.after(timeoutMs, () => {
      reject(failed(new Error(`no answer within ${timeoutMs} ms`)))
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
      ask().then(done, fail)
    } catch (error) {
      fail(error)
    }
  })
}
