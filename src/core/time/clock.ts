/** The only source of time in the package. No other code may read the system's clocks. */
export interface Clock {
  /** Wall time in epoch milliseconds, for times that are stored or published. It may jump. */
  nowMs(): number

  /** Time from an arbitrary start that never goes back, for durations such as a lease. */
  monotonicMs(): number

  /**
   * Calls `run` once after `ms`. The returned function cancels it.
   *
   * A `background` timer does not keep the process alive. Upkeep uses it.
   */
  after(ms: number, run: () => void, options?: { readonly background?: boolean }): () => void

  /**
   * Calls `run` after the event loop has handled the input that is already there. Requests that
   * arrive together can so share one store call, and none of them waits on a timer.
   */
  soon(run: () => void): void
}

/** The longest delay of `setTimeout`. With a longer one, Node fires at once. */
const TIMER_MS_MAX = 2 ** 31 - 1

export const systemClock: Clock = {
  nowMs: () => Date.now(),
  monotonicMs: () => performance.now(),
  after: (ms, run, options) => {
    const timer = setTimeout(run, Math.min(Math.max(0, ms), TIMER_MS_MAX))
    // On Workers a timer is a number, and does not keep the process alive.
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
