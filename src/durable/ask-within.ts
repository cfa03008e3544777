import type { Clock } from '../core/clock.ts'

export interface AskOptions {
  readonly clock: Clock
  readonly timeoutMs: number
  /** Who is asked, for the message. */
  readonly who: string
}

/**
 * The answer of code that is not ours, given up after `timeoutMs`: its `signal` then aborts, and
 * whatever it brings later is neither used nor an accident.
 */
export function askWithin<Answer>(
  { clock, timeoutMs, who }: AskOptions,
  ask: (signal: AbortSignal) => Answer | Promise<Answer>,
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const ending = new AbortController()
    const cancel = clock.after(timeoutMs, () => {
      const error = new Error(`${who} gave no answer within ${timeoutMs} ms`)
      ending.abort(error)
      reject(error)
    })
    new Promise<Answer>((asked) => asked(ask(ending.signal))).then(resolve, reject).finally(cancel)
  })
}
