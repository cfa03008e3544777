import type { Clock } from '../core/time/clock.ts'
import { withTimeLimit } from '../core/time/time-limit.ts'

export interface SharedCall<Result> {
  readonly limitMs: number
  /** The error at the limit. */
  readonly atLimit: () => Error
  readonly begin: (signal: AbortSignal) => Promise<Result>
  /** Called once with the result, before the callers use it. */
  readonly arrived: (result: Result) => void
}

interface Waiter<Result> {
  readonly use: (result: Result) => void
  readonly fail: (error: unknown) => void
}

/** Callers that ask for the same thing at the same time share one call. Failures are not kept. */
export class SharedCalls<Result> {
  readonly #clock: Clock
  readonly #waiters = new Map<string, Waiter<Result>[]>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /**
   * Begins the call, or joins the one of this name. `use` runs in the turn in which the result
   * arrives: with a promise of the result, another call could drop it before its caller runs.
   */
  join<Value>(
    name: string,
    call: SharedCall<Result>,
    use: (result: Result) => Value,
  ): Promise<Value> {
    return new Promise((resolve, reject) => {
      const waiter: Waiter<Result> = {
        fail: reject,
        // The inner promise calls `use` at once, and turns its error into a rejection.
        use: (result) => resolve(new Promise((settle) => settle(use(result)))),
      }
      const waiters = this.#waiters.get(name)
      if (waiters !== undefined) waiters.push(waiter)
      else this.#begin(name, call, waiter)
    })
  }

  #begin(name: string, call: SharedCall<Result>, first: Waiter<Result>): void {
    const waiters = [first]
    this.#waiters.set(name, waiters)
    const { limitMs, atLimit: reason, begin, arrived } = call
    withTimeLimit({ clock: this.#clock, limitMs, reason, afterInput: true }, begin)
      .then((result) => {
        this.#waiters.delete(name)
        arrived(result)
        for (const { use } of waiters) use(result)
      })
      .catch((error: unknown) => {
        this.#waiters.delete(name)
        for (const { fail } of waiters) fail(error)
      })
  }
}
