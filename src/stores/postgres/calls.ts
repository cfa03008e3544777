import { sleep, systemClock, type Clock } from '../../core/time/clock.ts'
import type { Driver, Row, Value } from './driver/driver.ts'
import { isConflict, isWrongIsolation, storeFailed } from './failures.ts'
import { forTable, type TableName } from './sql.ts'

/** A deadlock or a serialization failure has ended when the database reports it. */
const TRIES_MAX = 5
const BACKOFF_MS_MAX = 20

/** Sends each call as a separate transaction, and repeats a call that lost a conflict. */
export class Calls {
  readonly #driver: Driver
  readonly #name: TableName
  readonly #clock: Clock | undefined
  readonly #texts = new Map<string, string>()
  /** A call was refused because the connections have another default isolation level. */
  #needsTransaction = false
  #isClosed = false

  constructor(driver: Driver, { name, clock }: { name: TableName; clock: Clock | undefined }) {
    this.#driver = driver
    this.#name = name
    this.#clock = clock
  }

  /** Null in production: the function then reads the database's clock, which all nodes share. */
  get nowMs(): number | null {
    return this.#clock?.nowMs() ?? null
  }

  close(): void {
    this.#isClosed = true
  }

  checkOpen(operation: string): void {
    if (this.#isClosed) throw storeFailed(operation, new Error('the store is closed'))
  }

  textOf(sql: string): string {
    let text = this.#texts.get(sql)
    if (text === undefined) this.#texts.set(sql, (text = forTable(this.#name, sql)))
    return text
  }

  /** `values` is a function, so that a value that cannot be sent fails as a rejected call. */
  async send(
    operation: string,
    sql: string,
    values: () => Value[],
    signal?: AbortSignal,
  ): Promise<readonly Row[]> {
    this.checkOpen(operation)
    for (let tries = 1; ; tries++) {
      const isPlain = !this.#needsTransaction
      try {
        return await this.#sendOnce(this.textOf(sql), values(), signal)
      } catch (error) {
        // On a shared connection, the caller's statements could get into the transaction.
        const mayTransact = isPlain && this.#driver.isShared !== true
        if (isWrongIsolation(error) && mayTransact) this.#needsTransaction = true
        else if (!isConflict(error) || tries === TRIES_MAX) throw storeFailed(operation, error)
      }
      await sleep(systemClock, Math.random() * BACKOFF_MS_MAX, signal)
    }
  }

  #sendOnce(
    text: string,
    values: Value[],
    signal: AbortSignal | undefined,
  ): Promise<readonly Row[]> {
    if (!this.#needsTransaction) return this.#driver.query(text, values, signal)
    return this.#driver.transact((session) => session.query(text, values), undefined, signal)
  }
}
