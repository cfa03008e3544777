import type { Clock } from '../core/clock.ts'

export interface AskOptions {
  readonly clock: Clock
  readonly timeoutMs: number
  /** Who is asked, for the message. */
  readonly who: string
  /** Called when the answer is given up and the code runs on; `ended` resolves when it stops. */
  readonly onOverdue?: (ended: Promise<unknown>) => void
}

/**
 * The answer of code that is not ours, given up after `timeoutMs`: its `signal` then aborts, and
 * whatever it brings later is neither used nor an accident.
 */
export function askWithin<Answer>(
  { clock, timeoutMs, who, onOverdue }: AskOptions,
  ask: (signal: AbortSignal) => Answer | Promise<Answer>,
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const ending = new AbortController()
    const cancel = clock.after(timeoutMs, () => {
      const error = new Error(`${who} gave no answer within ${timeoutMs} ms`)
      ending.abort(error)
      reject(error)
      onOverdue?.(ended)
    })
    const ended = new Promise<Answer>((asked) => asked(ask(ending.signal)))
      .then(resolve, reject)
      .finally(cancel)
  })
}
