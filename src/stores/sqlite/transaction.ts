import type { DatabaseSync } from 'node:sqlite'
import type { Clock } from '../../core/clock.ts'
import { decideSettle } from '../../core/decide.ts'
import { OutcomeUnknownError } from '../../core/errors.ts'
import type { Completion, Lease, SettleOutcome } from '../../core/store.ts'
import { storeFailed } from './failures.ts'
import type { RecordTable } from './record-table.ts'
import type { Writer } from './writer.ts'

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

export interface TransactionContext {
  readonly writer: Writer
  readonly records: RecordTable
  readonly clock: Clock
  readonly transactionMs: number
}

/**
 * Set around the work. If it is gone afterwards, the transaction has ended under the work, by its
 * own COMMIT or ROLLBACK or by an error that makes SQLite roll back (a full disk), even where
 * another one has begun since.
 */
const SEAL = 'oncekey_seal'

/** Runs within a turn of the writer, which it holds until it settles. */
export async function transact(
  context: TransactionContext,
  lease: Lease,
  work: TransactionWork,
): Promise<SettleOutcome> {
  const { writer } = context
  try {
    await writer.begin()
  } catch (error) {
    throw storeFailed('begin a transaction', error)
  }
  try {
    return await settleWith(context, lease, work)
  } finally {
    // Whatever ended it: nothing but a commit leaves anything behind.
    writer.rollback()
  }
}

async function settleWith(
  { writer, records, clock, transactionMs }: TransactionContext,
  lease: Lease,
  work: TransactionWork,
): Promise<SettleOutcome> {
  const record = guarded(() => records.find(lease.identity))
  const trial = { kind: 'complete', lease, result: NO_BYTES, retentionMs: 0 } as const
  const asked = decideSettle(record, trial, clock.nowMs())
  // Lost to somebody else, or committed by an earlier call whose answer was lost: in neither case
  // may the work run.
  if (asked.write === undefined) return asked.outcome

  const completion = await runWork(writer.db, work, { clock, transactionMs })

  // The record as it was read above: nobody else can have written since.
  const settlement = { kind: 'complete', lease, ...completion } as const
  const { outcome, write } = decideSettle(record, settlement, clock.nowMs())
  try {
    if (write !== undefined) records.update(write)
    await writer.commit()
  } catch (error) {
    throw storeFailed('commit a transaction', error)
  }
  return outcome
}

/** The work's own errors pass through as they are, unless its transaction has ended under it. */
async function runWork(
  db: DatabaseSync,
  work: TransactionWork,
  limits: { readonly clock: Clock; readonly transactionMs: number },
): Promise<Completion> {
  const { tx, revoke } = revocable(db)
  guarded(() => db.exec(`SAVEPOINT ${SEAL}`))
  let completion: Completion
  try {
    const returned = work(tx)
    completion = isThenable(returned) ? await bounded(returned, limits) : returned
  } catch (error) {
    breakSeal(db, { cause: error })
    throw error
  } finally {
    revoke()
  }
  breakSeal(db)
  return completion
}

/** Work that never ends must not keep the whole file locked for ever. */
function bounded<Result>(
  result: PromiseLike<Result>,
  { clock, transactionMs }: { readonly clock: Clock; readonly transactionMs: number },
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
function isThenable(value: unknown): value is PromiseLike<Completion> {
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

/**
 * A transaction that can be taken back: a handler that outlives its turn would otherwise write
 * into the transaction of somebody else.
 */
function revocable(db: DatabaseSync): { tx: SqliteTransaction; revoke: () => void } {
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
  return {
    tx,
    revoke: () => {
      isRevoked = true
    },
  }
}

function guarded<Result>(run: () => Result): Result {
  try {
    return run()
  } catch (error) {
    throw storeFailed('begin a transaction', error)
  }
}

const NO_BYTES = new Uint8Array(0)
