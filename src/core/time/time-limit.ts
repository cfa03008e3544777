import type { Clock } from './clock.ts'

export interface TimeLimitOptions {
  readonly clock: Clock
  readonly limitMs: number
  /** The error at the limit, and the reason of `signal`. @default `no answer within … ms` */
  readonly reason?: (limitMs: number) => Error
  /** The timer does not keep the process alive. @default false */
  readonly background?: boolean
  /**
   * Accepts a value that arrived before the limit while this process was too busy to read it: the
   * event loop fires timers before it reads input. @default false
   */
  readonly afterInput?: boolean
}

export interface LimitedCallOptions<AtLimit> {
  /** Returns the value at the limit, or throws the error. @default throws the reason */
  readonly onLimit?: (reason: Error) => AtLimit
  /** Translates the error of the call. @default the error as it is */
  readonly toError?: (error: unknown) => Error
}

/**
 * A time limit for one call, or for calls that start together: they share one timer and one signal.
 * The timer starts with the first call and is cancelled when the last one has ended.
 */
export class TimeLimit {
  readonly #options: TimeLimitOptions
  readonly #aborting = new AbortController()
  readonly #listeners = new Set<(reason: Error) => void>()
  #cancel: (() => void) | undefined

  constructor(options: TimeLimitOptions) {
    this.#options = options
  }

  /** Aborts at the limit. */
  get signal(): AbortSignal {
    return this.#aborting.signal
  }

  /**
   * Settles as the call does, or as `onLimit` does when the limit comes first. The handlers stay
   * attached to the call, so a late rejection is not unhandled.
   */
  run<Value, AtLimit = never>(
    call: (signal: AbortSignal) => PromiseLike<Value>,
    { onLimit = rethrow, toError = asItIs }: LimitedCallOptions<AtLimit> = {},
  ): Promise<Value | AtLimit> {
    return new Promise((resolve, reject) => {
      const expire = (reason: Error) => {
        try {
          resolve(onLimit(reason))
        } catch (error) {
          reject(asItIs(error))
        }
      }
      const fail = (error: unknown) => {
        this.leave(expire)
        reject(toError(error))
      }
      this.join(expire)
      try {
        call(this.signal).then((value) => {
          this.leave(expire)
          resolve(value)
        }, fail)
      } catch (error) {
        fail(error)
      }
    })
  }

  /** Calls `onLimit` at the limit, unless `leave` is called with it before. */
  join(onLimit: (reason: Error) => void): void {
    const { clock, limitMs, background = false, afterInput } = this.#options
    const expire = () => this.#expire()
    const run = afterInput === true ? () => clock.soon(expire) : expire
    this.#listeners.add(onLimit)
    this.#cancel ??= clock.after(limitMs, run, { background })
  }

  leave(onLimit: (reason: Error) => void): void {
    if (!this.#listeners.delete(onLimit) || this.#listeners.size > 0) return
    this.#cancel?.()
    this.#cancel = undefined
  }

  #expire(): void {
    // With `afterInput`, the last call may have ended after the timer fired.
    if (this.#listeners.size === 0) return
    const { limitMs, reason = noAnswer } = this.#options
    const error = reason(limitMs)
    // Before the abort, or the rejection of a call that obeys the signal would come first.
    for (const onLimit of this.#listeners) onLimit(error)
    this.#listeners.clear()
    this.#aborting.abort(error)
  }
}

/** Makes one call under a limit. */
export function withTimeLimit<Value, AtLimit = never>(
  options: TimeLimitOptions & LimitedCallOptions<AtLimit>,
  call: (signal: AbortSignal) => PromiseLike<Value>,
): Promise<Value | AtLimit> {
  return new TimeLimit(options).run(call, options)
}

function noAnswer(limitMs: number): Error {
  return new Error(`no answer within ${limitMs} ms`)
}

function rethrow(reason: Error): never {
  throw reason
}

/** The call may reject with a value that is no error. The caller gets what the call gave. */
function asItIs(error: unknown): Error {
  return error as Error
}
