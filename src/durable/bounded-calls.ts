/** Waits for code of the application or of a provider that may never answer. */
import type { Clock } from '../core/time/clock.ts'
import { withTimeLimit } from '../core/time/time-limit.ts'

export interface CallLimits {
  readonly clock: Clock
  readonly timeoutMs: number
  /** Names the called code in the timeout error. */
  readonly who: string
  /** Called at the timeout if the code still runs. `ended` resolves when it stops. */
  readonly onOverdue?: (ended: Promise<unknown>) => void
}

/**
 * Calls `call` and rejects after `timeoutMs`; its `signal` aborts then. A later result or rejection
 * is dropped and is not an unhandled rejection.
 */
export function callWithin<Result>(
  { clock, timeoutMs, who, onOverdue }: CallLimits,
  call: (signal: AbortSignal) => Result | Promise<Result>,
): Promise<Result> {
  let ended: Promise<unknown>
  const reason = () => new Error(`${who} gave no answer within ${timeoutMs} ms`)
  const onLimit = (error: Error) => {
    onOverdue?.(ended)
    throw error
  }
  return withTimeLimit({ clock, limitMs: timeoutMs, reason, onLimit }, (signal) => {
    const result = new Promise<Result>((resolve) => resolve(call(signal)))
    ended = result.catch(() => undefined)
    return result
  })
}

/**
 * Settles as `value` does, or rejects with the reason of `signal` if that aborts first. A later
 * result or rejection of `value` is dropped and is not an unhandled rejection.
 */
export function unlessAborted<Value>(
  signal: AbortSignal | undefined,
  value: Value | Promise<Value>,
): Promise<Value> {
  return new Promise((resolve, reject) => {
    const onAbort = () => reject(signal?.reason as Error)
    Promise.resolve(value)
      .then(resolve, reject)
      .finally(() => signal?.removeEventListener('abort', onAbort))
    if (signal?.aborted === true) onAbort()
    else signal?.addEventListener('abort', onAbort)
  })
}
