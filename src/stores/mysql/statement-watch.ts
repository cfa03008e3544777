import type { Session } from './driver.ts'
import { isCertainRollback, isRollback } from './failures.ts'

/**
 * Knows whether the database itself has rolled a caller's transaction back, which MySQL does at
 * every deadlock: the transaction is over, and what is sent next would commit by itself.
 *
 * It is sure only where every statement was of a kind that cannot end a transaction, and nothing
 * was sent after the one that failed. Otherwise nobody can tell what is kept.
 */
export class StatementWatch {
  #isPlain = true
  #underWay = 0
  #error: unknown

  /** The error with which the database has rolled everything back, where that is certain. */
  get rollback(): unknown {
    return this.#isPlain ? this.#error : undefined
  }

  /** Something was used that may do anything. */
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
        // They are in the driver's queue already, and run outside of any transaction.
        if (this.#underWay > 1) this.#isPlain = false
      }
      throw error
    } finally {
      this.#underWay--
    }
  }
}

/** One statement that reads or writes rows, or that keeps to savepoints. */
const PLAIN =
  /^\s*(select|insert|update|delete|replace|with|savepoint|release\s+savepoint|rollback\s+to)\b/i

function isPlainSql(sql: unknown): boolean {
  const text = typeof sql === 'object' && sql !== null && 'sql' in sql ? sql.sql : sql
  return typeof text === 'string' && PLAIN.test(text) && !/;\s*\S/.test(text)
}

/** What ends the connection, or the transaction, is the store's to do. */
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

/** The driver's own connection, without what would end the transaction, and watched. */
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
        watch.send(values[0], () => session.untilGone(async () => call(...values)))
    },
  })
}
