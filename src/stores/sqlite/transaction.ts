import { withTimeLimit } from '../../core/time/time-limit.ts'
import type { DatabaseSync } from 'node:sqlite'
import { OutcomeUnknownError } from '../../core/errors.ts'
import { isThenable } from '../../core/thenable.ts'
import { systemClock } from '../../core/time/clock.ts'
import type { Completion } from '../../core/store/store.ts'
import { storeFailed, whileBusy } from './failures.ts'
import type { FileAccess } from './driver/file-access.ts'

/** A value of an SQLite column. */
export type SqliteValue = null | number | bigint | string | Uint8Array

/** A prepared statement. It throws after its transaction has ended. */
export interface SqliteStatement {
  run(...values: SqliteValue[]): { changes: number | bigint; lastInsertRowid: number | bigint }
  get(...values: SqliteValue[]): Record<string, unknown> | undefined
  all(...values: SqliteValue[]): Record<string, unknown>[]
}

/**
 * The open transaction in which a key is completed. All statements that run through it commit
 * together with the key, or none does. Valid until the work ends. The store begins and commits it;
 * the work must not run BEGIN, COMMIT or ROLLBACK.
 */
export interface SqliteTransaction {
  exec(sql: string): void
  prepare(sql: string): SqliteStatement
}

/** Writes the caller's rows, and returns the result that completes the key. */
export type TransactionWork = (tx: SqliteTransaction) => Completion | Promise<Completion>

/** The work of a transaction, with the check before it and the writes after it. */
export interface TransactionPlan<Value, Outcome> {
  readonly work: (tx: SqliteTransaction) => Value | Promise<Value>
  /** Returns an outcome if the work must not run. */
  readonly before: (nowMs: number) => Outcome | undefined
  /** Runs the last statements. If `isKept` is false, the whole transaction is rolled back. */
  readonly after: (value: Value, nowMs: number) => { outcome: Outcome; isKept: boolean }
}

/**
 * A savepoint around the work. If it is missing afterwards, the transaction ended during the work:
 * by a COMMIT or ROLLBACK of the work, or by an error that makes SQLite roll back (a full disk).
 * This holds even if the work has begun another transaction since.
 */
const SEAL = 'oncekey_seal'

/**
 * Runs within a turn of the writer, which it holds until it settles. If the work is synchronous, no
 * other code of this process runs between BEGIN and COMMIT, not even a promise callback: the
 * application may wait for the lock on another connection, which blocks the whole process.
 */
export async function transact<Value, Outcome>(
  access: FileAccess,
  plan: TransactionPlan<Value, Outcome>,
): Promise<Outcome> {
  const { writer } = access
  let isBegun = false
  try {
    return await whileBusy(() => {
      writer.beginNow()
      isBegun = true
      return runWithin(access, plan)
    })
  } catch (error) {
    throw isBegun ? error : storeFailed('begin a transaction', error)
  } finally {
    // Does nothing after a commit. Without a commit, no row of the transaction is kept.
    writer.rollback()
  }
}

/** Awaits only asynchronous work, and a commit while another process is busy. */
async function runWithin<Value, Outcome>(
  access: FileAccess,
  { work, before, after }: TransactionPlan<Value, Outcome>,
): Promise<Outcome> {
  const { writer, clock } = access
  // Before the work, because a rollback does not undo the work's effects outside the file.
  access.refuseIfReplaced('begin a transaction')
  const refusal = guarded(() => before(clock.nowMs()))
  if (refusal !== undefined) return refusal

  const open = revocable(writer.db)
  access.open.add(open.tx, open)
  const sealed = startWork(writer.db, open, work)
  const value = sealed instanceof Promise ? await endWork(access, open, sealed) : sealed.value

  try {
    const { outcome, isKept } = after(value, clock.nowMs())
    if (!isKept) return outcome
    if (!writer.commitNow()) await writer.commit()
    if (open.hasMessages) access.open.wake()
    return outcome
  } catch (error) {
    throw storeFailed('commit a transaction', error)
  }
}

/** Rethrows an error of the work unchanged, unless the transaction ended during the work. */
function startWork<Value>(
  db: DatabaseSync,
  { tx, revoke }: Revocable,
  work: TransactionPlan<Value, unknown>['work'],
): { readonly value: Value } | Promise<Value> {
  guarded(() => db.exec(`SAVEPOINT ${SEAL}`))
  let value: Value | Promise<Value>
  try {
    value = work(tx)
  } catch (error) {
    revoke()
    breakSeal(db, { cause: error })
    throw error
  }
  if (isThenable(value)) return Promise.resolve(value)
  revoke()
  breakSeal(db)
  return { value }
}

async function endWork<Value>(
  access: FileAccess,
  { revoke }: Revocable,
  result: Promise<Value>,
): Promise<Value> {
  const { db } = access.writer
  let value: Value
  try {
    value = await bounded(result, access)
  } catch (error) {
    breakSeal(db, { cause: error })
    throw error
  } finally {
    revoke()
  }
  breakSeal(db)
  return value
}

/** Rejects after the limit, because work that never ends would keep the whole file locked. */
function bounded<Result>(
  result: Promise<Result>,
  { clock, transactionTimeoutMs }: FileAccess,
): Promise<Result> {
  const reason = (limitMs: number) =>
    storeFailed(
      'commit a transaction',
      new Error(`its work took longer than ${limitMs} ms and was rolled back`),
    )
  return withTimeLimit({ clock, limitMs: transactionTimeoutMs, reason }, () => result)
}

/** Throws if the savepoint is missing: rows written after it may be kept without the key. */
function breakSeal(db: DatabaseSync, options?: ErrorOptions): void {
  try {
    db.exec(`RELEASE ${SEAL}`)
  } catch {
    throw new OutcomeUnknownError(
      "the callback ended the store's transaction itself (COMMIT or ROLLBACK in its SQL, or an " +
        'error that rolls back), so what it wrote may be kept without the key',
      options,
    )
  }
}

/** A transaction that the store has passed to a handler. */
interface OpenTransaction {
  /** Throws after the transaction has ended. */
  readonly use: <Result>(run: () => Result) => Result
  hasMessages: boolean
}

/** Open transactions by the `tx` object of the handler, and the watchers to wake on a commit. */
export class OpenTransactions {
  readonly #open = new WeakMap<object, OpenTransaction>()
  readonly #watchers = new Set<() => void>()

  add(tx: object, open: OpenTransaction): void {
    this.#open.set(tx, open)
  }

  find(tx: unknown): OpenTransaction | undefined {
    return typeof tx === 'object' && tx !== null ? this.#open.get(tx) : undefined
  }

  watch(wake: () => void): () => void {
    const watcher = () => wake()
    this.#watchers.add(watcher)
    return () => {
      this.#watchers.delete(watcher)
    }
  }

  /** Deferred, so that no watcher runs in the middle of a commit. */
  wake(): void {
    for (const watcher of this.#watchers) {
      systemClock.soon(() => {
        if (this.#watchers.has(watcher)) watcher()
      })
    }
  }
}

interface Revocable extends OpenTransaction {
  readonly tx: SqliteTransaction
  readonly revoke: () => void
}

/**
 * A transaction that throws once it is revoked: a handler that continues after its turn would
 * otherwise write into the transaction of another call.
 */
function revocable(db: DatabaseSync): Revocable {
  let isRevoked = false
  const use = <Result>(run: () => Result): Result => {
    if (isRevoked) throw storeFailed('use a transaction', new Error('the transaction has ended'))
    return run()
  }
  const tx: SqliteTransaction = {
    exec: (sql) => use(() => db.exec(sql)),
    prepare: (sql) => {
      const statement = use(() => db.prepare(sql))
      return {
        run: (...values) => use(() => statement.run(...values)),
        get: (...values) => use(() => statement.get(...values)),
        all: (...values) => use(() => statement.all(...values)),
      }
    },
  }
  const revoke = () => {
    isRevoked = true
  }
  return { tx, use, revoke, hasMessages: false }
}

function guarded<Result>(run: () => Result): Result {
  try {
    return run()
  } catch (error) {
    throw storeFailed('begin a transaction', error)
  }
}
