import type { DatabaseSync } from 'node:sqlite'
import { OutcomeUnknownError } from '../../core/errors.ts'
import type { Completion } from '../../core/store.ts'
import { storeFailed, whileBusy } from './failures.ts'
import type { FileAccess } from './file-access.ts'
import type { OpenTransaction } from './open-transactions.ts'

/** What SQLite can hold. */
export type SqliteValue = null | number | bigint | string | Uint8Array

export interface SqliteStatement {
  run(...values: SqliteValue[]): { changes: number | bigint; lastInsertRowid: number | bigint }
  get(...values: SqliteValue[]): Record<string, unknown> | undefined
  all(...values: SqliteValue[]): Record<string, unknown>[]
}

/**
 * The open transaction in which a key is completed: what is written through it commits with the
 * key or not at all. Valid until the work ends; it begins and commits by itself.
 */
export interface SqliteTransaction {
  exec(sql: string): void
  prepare(sql: string): SqliteStatement
}

export type TransactionWork = (tx: SqliteTransaction) => Completion | Promise<Completion>

/** What a transaction is for: what is asked before its work, and written after it. */
export interface Purpose<Given, Outcome> {
  readonly work: (tx: SqliteTransaction) => Given | Promise<Given>
  /** An outcome here means that the work may not run. */
  readonly before: (nowMs: number) => Outcome | undefined
  /** The last statements. Where they are not to be kept, nothing of the work is. */
  readonly after: (given: Given, nowMs: number) => { outcome: Outcome; isKept: boolean }
}

/**
 * Set around the work. If it is gone afterwards, the transaction has ended under the work, by its
 * own COMMIT or ROLLBACK or by an error that makes SQLite roll back (a full disk), even where
 * another one has begun since.
 */
const SEAL = 'oncekey_seal'

/**
 * Runs within a turn of the writer, which it holds until it settles. Where the work is synchronous
 * nothing else of this process runs between its beginning and its commit, not even a promise: the
 * application may have a connection of its own, and block the process until it is free.
 */
export async function transact<Given, Outcome>(
  access: FileAccess,
  purpose: Purpose<Given, Outcome>,
): Promise<Outcome> {
  const { writer } = access
  let isBegun = false
  try {
    return await whileBusy(() => {
      writer.beginNow()
      isBegun = true
      return runWithin(access, purpose)
    })
  } catch (error) {
    throw isBegun ? error : storeFailed('begin a transaction', error)
  } finally {
    // Whatever ended it: nothing but a commit leaves anything behind.
    writer.rollback()
  }
}

/** Waits only for work that is asynchronous, and for a commit that somebody is in the way of. */
async function runWithin<Given, Outcome>(
  access: FileAccess,
  { work, before, after }: Purpose<Given, Outcome>,
): Promise<Outcome> {
  const { writer, clock } = access
  // Before the work, whose effects outside the file no rollback takes back.
  access.refuseIfReplaced('begin a transaction')
  const refusal = guarded(() => before(clock.nowMs()))
  if (refusal !== undefined) return refusal

  const open = revocable(writer.db)
  access.open.handOut(open.tx, open)
  const sealed = startWork(writer.db, open, work)
  const given = sealed instanceof Promise ? await endWork(access, open, sealed) : sealed.given

  try {
    const { outcome, isKept } = after(given, clock.nowMs())
    if (!isKept) return outcome
    if (!writer.commitNow()) await writer.commit()
    if (open.hasMessages) access.open.wake()
    return outcome
  } catch (error) {
    throw storeFailed('commit a transaction', error)
  }
}

/** The work's own errors pass through as they are, unless its transaction has ended under it. */
function startWork<Given>(
  db: DatabaseSync,
  { tx, revoke }: Revocable,
  work: Purpose<Given, unknown>['work'],
): { readonly given: Given } | Promise<Given> {
  guarded(() => db.exec(`SAVEPOINT ${SEAL}`))
  let given: Given | Promise<Given>
  try {
    given = work(tx)
  } catch (error) {
    revoke()
    breakSeal(db, { cause: error })
    throw error
  }
  if (isThenable(given)) return Promise.resolve(given)
  revoke()
  breakSeal(db)
  return { given }
}

async function endWork<Given>(
  access: FileAccess,
  { revoke }: Revocable,
  result: Promise<Given>,
): Promise<Given> {
  const { db } = access.writer
  let given: Given
  try {
    given = await bounded(result, access)
  } catch (error) {
    breakSeal(db, { cause: error })
    throw error
  } finally {
    revoke()
  }
  breakSeal(db)
  return given
}

/** Work that never ends must not keep the whole file locked for ever. */
function bounded<Result>(
  result: Promise<Result>,
  { clock, transactionMs }: FileAccess,
): Promise<Result> {
  let cancel = () => {}
  const limit = new Promise<never>((_, reject) => {
    cancel = clock.after(transactionMs, () => {
      const cause = new Error(`its work took longer than ${transactionMs} ms and was rolled back`)
      reject(storeFailed('commit a transaction', cause))
    })
  })
  // What comes after the limit is neither used nor an accident: the race listens and forgets.
  return Promise.race([result, limit]).finally(cancel)
}

/** Not `instanceof Promise`: query builders return promises of their own making. */
function isThenable<Given>(value: Given | PromiseLike<Given>): value is PromiseLike<Given> {
  return typeof value === 'object' && value !== null && 'then' in value
}

/** Whatever else the work says: of what it wrote outside the seal, nobody knows what is kept. */
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

interface Revocable extends OpenTransaction {
  readonly tx: SqliteTransaction
  readonly revoke: () => void
}

/**
 * A transaction that can be taken back: a handler that outlives its turn would otherwise write
 * into the transaction of somebody else.
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
