import type { Clock } from '../core/clock.ts'

/**
 * The answer of code that is not ours, given up after `timeoutMs`: its `signal` then aborts, and
 * whatever it brings later is neither used nor an accident.
 */
export function askWithin<Answer>(
  clock: Clock,
  timeoutMs: number,
  ask: (signal: AbortSignal) => Answer | Promise<Answer>,
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const ending = new AbortController()
    const cancel = clock.after(timeoutMs, () => {
      const error = new Error(`no answer within ${timeoutMs} ms`)
      ending.abort(error)
      reject(error)
    })
    new Promise<Answer>((asked) => asked(ask(ending.signal))).then(resolve, reject).finally(cancel)
  })
}
