import { TimeLimit } from '../../core/time/time-limit.ts'
import type { Clock } from '../../core/time/clock.ts'

export interface Bounds {
  readonly clock: Clock
  readonly limitMs: number
  /** Ends the transaction of the work, and returns the error to reject with. */
  readonly giveUp: (cause: Error) => Error
}

/**
 * Limits how long work may run: work that never ends would keep its connection and its locks. The
 * limit stays until `stop`, so that it also covers the statements that follow the work.
 */
export function boundedWork<Result>(
  { clock, limitMs, giveUp }: Bounds,
  run: () => Result | Promise<Result>,
) {
  const reason = () => new Error(`its work took longer than ${limitMs} ms and was rolled back`)
  const limit = new TimeLimit({ clock, limitMs, reason })
  let stop = () => {}
  const result = new Promise<Result>((resolve, reject) => {
    const onLimit = (cause: Error) => reject(giveUp(cause))
    limit.join(onLimit)
    stop = () => limit.leave(onLimit)
    new Promise<Result>((start) => start(run())).then(resolve, reject)
  })
  return { result, isOver: () => limit.signal.aborted, stop }
}
