import type { DatabaseSync } from 'node:sqlite'
import type { Clock } from '../../core/clock.ts'
import { decideSettle } from '../../core/decide.ts'
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
 * Set around the work. If it is gone afterwards, the work has committed or rolled back by itself,
 * even where it has begun another transaction since.
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

  guarded(() => writer.db.exec(`SAVEPOINT ${SEAL}`))
  const completion = await runWork(writer.db, work, { clock, transactionMs })
  breakSeal(writer.db)

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

/** The work's own errors pass through as they are. */
async function runWork(
  db: DatabaseSync,
  work: TransactionWork,
  limits: { readonly clock: Clock; readonly transactionMs: number },
): Promise<Completion> {
  const { tx, revoke } = revocable(db)
  try {
    const completion = work(tx)
    return isThenable(completion) ? await bounded(completion, limits) : completion
  } finally {
    revoke()
  }
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

function breakSeal(db: DatabaseSync): void {
  try {
    db.exec(`RELEASE ${SEAL}`)
  } catch (error) {
    const cause = new Error(
      'its work ended the transaction itself (COMMIT or ROLLBACK in its SQL, or a conflict ' +
        'clause that rolls back), so what it wrote is not tied to the key',
      { cause: error },
    )
    throw storeFailed('commit a transaction', cause)
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
