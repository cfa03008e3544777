/**
 * Watches the statements of a caller's work in a transaction of the store.
 *
 * Tests: test/stores/mysql/transaction.server.test.ts.
 */
import type { Session } from './driver/driver.ts'
import { isCertainRollback, isRollback } from './failures.ts'

/**
 * Detects whether the database has rolled back the transaction of the work, as MySQL does at every
 * deadlock: the transaction has ended, and the next statement would commit on its own.
 *
 * The rollback is certain only if every statement was of a kind that cannot end a transaction, and
 * no statement was sent after the one that failed. Otherwise it is unknown what is kept.
 */
export class StatementWatch {
  #isPlain = true
  #underWay = 0
  #error: unknown

  /** The error after which the database has certainly rolled back the whole transaction. */
  get rollback(): unknown {
    return this.#isPlain ? this.#error : undefined
  }

  /** Notes that the work has used a method whose statements are not watched. */
  doubt(): void {
    this.#isPlain = false
  }

  async send<Answer>(sql: unknown, run: () => Promise<Answer>): Promise<Answer> {
    if (isCertainRollback(this.#error)) {
      throw new Error('the database has rolled this transaction back', { cause: this.#error })
    }
    this.#error = undefined
    if (!isPlainSql(sql)) this.#isPlain = false
    this.#underWay++
    try {
      return await run()
    } catch (error) {
      if (isRollback(error)) {
        this.#error = error
        // The other statements are in the driver's queue already, and run outside a transaction.
        if (this.#underWay > 1) this.#isPlain = false
      }
      throw error
    } finally {
      this.#underWay--
    }
  }
}

/** A statement that reads or writes rows or uses savepoints, and so cannot end a transaction. */
const PLAIN =
  /^\s*(select|insert|update|delete|replace|with|savepoint|release\s+savepoint|rollback\s+to)\b/i

function isPlainSql(sql: unknown): boolean {
  const text = typeof sql === 'object' && sql !== null && 'sql' in sql ? sql.sql : sql
  return typeof text === 'string' && PLAIN.test(text) && !/;\s*\S/.test(text)
}

/** Only the store may end the transaction or the connection. */
const WITHHELD: readonly (string | symbol)[] = [
  'beginTransaction',
  'commit',
  'rollback',
  'release',
  'end',
  'destroy',
  'close',
  'reset',
  'changeUser',
  'connection',
  'promise',
  Symbol.asyncDispose,
  Symbol.dispose,
]

/** The driver's connection with watched statements, without the members of `WITHHELD`. */
export function watched(session: Session, watch: StatementWatch): object {
  return new Proxy(session.connection, {
    get(target, name) {
      if (WITHHELD.includes(name)) return undefined
      const value: unknown = Reflect.get(target, name, target)
      if (typeof value !== 'function') return value
      const call = (...values: unknown[]): unknown => Reflect.apply(value, target, values)
      if (name === 'prepare') watch.doubt()
      if (name !== 'query' && name !== 'execute') return call
      return (...values: unknown[]) =>
        watch.send(values[0], () => session.untilDestroyed(async () => call(...values)))
    },
  })
}
