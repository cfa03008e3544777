import type { Clock } from '../time/clock.ts'
import type { TimeLimit } from '../time/time-limit.ts'
import { StoreFailedError } from '../errors.ts'
import { storeLimit } from './store-call.ts'

export interface TransactionLimitOptions {
  /** The name of the store, for error messages. */
  readonly store: string
  /** The time limit of the begin, and again of the commit or rollback. */
  readonly timeoutMs: number
}

/**
 * Limits the time of the begin and of the commit or rollback of a transaction, but not of the work
 * between them. On a timeout the call fails and the signal aborts, so that the store destroys the
 * connection.
 */
export class TransactionLimit {
  readonly #store: string
  readonly #onTimeout: (error: StoreFailedError) => void
  readonly #limit: TimeLimit
  #onLimit: (reason: Error) => void = () => undefined
  #reject: (error: unknown) => void = () => undefined
  #isOver = false

  constructor(
    clock: Clock,
    options: TransactionLimitOptions,
    onTimeout: (error: StoreFailedError) => void,
  ) {
    this.#store = options.store
    this.#onTimeout = onTimeout
    this.#limit = storeLimit(clock, options.timeoutMs)
  }

  get signal(): AbortSignal {
    return this.#limit.signal
  }

  /** Rejects on a timeout, even if the store ignores the signal. */
  run<Result>(transact: (limit: TransactionLimit) => Promise<Result>): Promise<Result> {
    return new Promise<Result>((resolve, reject) => {
      this.#reject = reject
      this.#start('begin a transaction')
      transact(this).then(resolve, reject)
    }).finally(() => {
      this.#isOver = true
      this.#stop()
    })
  }

  /** Wraps the work, to stop the timer during it. Synchronous work stays so, as SQLite requires. */
  readonly during =
    <Tx, Result>(work: (tx: Tx) => Result | Promise<Result>) =>
    (tx: Tx): Result | Promise<Result> => {
      this.#stop()
      try {
        const result = work(tx)
        return result instanceof Promise
          ? result.then(this.#done, this.#failed)
          : this.#done(result)
      } catch (error) {
        return this.#failed(error)
      }
    }

  readonly #done = <Result>(result: Result): Result => {
    this.#start('commit a transaction')
    return result
  }

  /** If the rollback times out, the caller still gets the error of the work. */
  readonly #failed = (error: unknown): never => {
    this.#start('roll back a transaction', { error })
    throw error
  }

  #start(operation: string, failure?: { readonly error: unknown }): void {
    // The work outlived its transaction: there is no commit or rollback to limit.
    if (this.#isOver) return
    this.#stop()
    this.#onLimit = (cause) => {
      const details = { store: this.#store, operation, cause }
      const error = new StoreFailedError({ ...details, failure: 'unavailable' })
      this.#onTimeout(error)
      this.#reject(failure === undefined ? error : failure.error)
    }
    this.#limit.join(this.#onLimit)
  }

  #stop(): void {
    this.#limit.leave(this.#onLimit)
  }
}
