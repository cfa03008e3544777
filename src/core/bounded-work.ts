import type { Clock } from './clock.ts'

export interface Bounds {
  readonly clock: Clock
  readonly limitMs: number
  /** Ends what the work holds, and says with which error. */
  readonly giveUp: (cause: Error) => Error
}

/** Work that never ends must not keep its connection, and what it has locked, for ever. */
export function boundedWork<Result>(
  { clock, limitMs, giveUp }: Bounds,
  run: () => Result | Promise<Result>,
) {
  let isOver = false
  let stop = () => {}
  const limit = new Promise<never>((_, reject) => {
    stop = clock.after(limitMs, () => {
      isOver = true
      reject(giveUp(new Error(`its work took longer than ${limitMs} ms and was rolled back`)))
    })
  })
  // What comes after the limit is neither used nor an accident: the race listens and forgets.
  const result = Promise.race([new Promise<Result>((resolve) => resolve(run())), limit])
  return { result, isOver: () => isOver, stop: () => stop() }
}
