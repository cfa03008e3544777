/** The only source of time in the package. Nothing else may read the system's clocks. */
export interface Clock {
  /** Wall time in epoch milliseconds: for what is stored and published. It may jump. */
  nowMs(): number

  /** Time that only ever grows, from an arbitrary start: for measuring how long a lease lasts. */
  monotonicMs(): number

  /**
   * Calls `run` once after `ms`. The returned function cancels it.
   *
   * A `background` timer does not keep the process alive: for upkeep that nobody waits for.
   */
  after(ms: number, run: () => void, options?: { readonly background?: boolean }): () => void

  /**
   * Calls `run` once the current burst of input has been handled. It is what lets requests that
   * arrived together share one store call without anybody waiting on a timer.
   */
  soon(run: () => void): void
}

/** Longest delay `setTimeout` takes; beyond it Node fires at once. */
const TIMER_MS_MAX = 2 ** 31 - 1

export const systemClock: Clock = {
  nowMs: () => Date.now(),
  monotonicMs: () => performance.now(),
  after: (ms, run, options) => {
    const timer = setTimeout(run, Math.min(Math.max(0, ms), TIMER_MS_MAX))
    // On Workers a timer is a number, and keeps nothing alive.
    if (options?.background === true && typeof timer === 'object') timer.unref()
    return () => clearTimeout(timer)
  },
  soon: (run) => {
    setImmediate(run)
  },
}

/** Resolves after `ms`, or as soon as `signal` aborts. Never rejects. */
export function sleep(clock: Clock, ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted === true) return resolve()
    const wake = () => {
      cancel()
      signal?.removeEventListener('abort', wake)
      resolve()
    }
    const cancel = clock.after(ms, wake)
    signal?.addEventListener('abort', wake)
  })
}
