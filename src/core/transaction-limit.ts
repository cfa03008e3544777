import type { Clock } from './clock.ts'
import { StoreFailedError } from './errors.ts'
import { NoAnswerError } from './store-advice.ts'

export interface TransactionLimitOptions {
  /** The store's name, for messages. */
  readonly store: string
  /** How long the beginning may take, and how long the end. */
  readonly timeoutMs: number
}

/**
 * Limits what a store does before and after the work of a transaction. On a timeout the call fails
 * and the signal is aborted, so that the store destroys the connection. The time of the work does
 * not count.
 */
export class TransactionLimit {
  readonly #clock: Clock
  readonly #options: TransactionLimitOptions
  readonly #onTimeout: (error: StoreFailedError) => void
  readonly #givenUp = new AbortController()
  #cancel: () => void = () => undefined
  #reject: (error: unknown) => void = () => undefined
  #isOver = false

  constructor(
    clock: Clock,
    options: TransactionLimitOptions,
    onTimeout: (error: StoreFailedError) => void,
  ) {
    this.#clock = clock
    this.#options = options
    this.#onTimeout = onTimeout
  }

  get signal(): AbortSignal {
    return this.#givenUp.signal
  }

  /** Rejects on a timeout, also where the store does not react to the signal. */
  run<Result>(transact: (limit: TransactionLimit) => Promise<Result>): Promise<Result> {
    return new Promise<Result>((resolve, reject) => {
      this.#reject = reject
      this.#start('begin a transaction')
      transact(this).then(resolve, reject)
    }).finally(() => {
      this.#isOver = true
      this.#cancel()
    })
  }

  /** Wraps the work. Synchronous work stays synchronous: SQLite needs that. */
  readonly during =
    <Tx, Given>(work: (tx: Tx) => Given | Promise<Given>) =>
    (tx: Tx): Given | Promise<Given> => {
      this.#cancel()
      try {
        const given = work(tx)
        return given instanceof Promise ? given.then(this.#done, this.#failed) : this.#done(given)
      } catch (error) {
        return this.#failed(error)
      }
    }

  readonly #done = <Given>(given: Given): Given => {
    this.#start('commit a transaction')
    return given
  }

  /** On a timeout of the rollback, the caller still gets the error of its work. */
  readonly #failed = (error: unknown): never => {
    this.#start('roll back a transaction', { error })
    throw error
  }

  #start(operation: string, of?: { readonly error: unknown }): void {
    // Work that outlives its transaction has nothing left to limit.
    if (this.#isOver) return
    const { store, timeoutMs } = this.#options
    this.#cancel()
    this.#cancel = this.#clock.after(timeoutMs, () => {
      const cause = new NoAnswerError(timeoutMs)
      const error = new StoreFailedError({ store, operation, failure: 'unavailable', cause })
      this.#onTimeout(error)
      this.#reject(of === undefined ? error : of.error)
      this.#givenUp.abort(cause)
    })
  }
}
