/** Tests: test/stores/sqlite/durable/durable.test.ts. */
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe } from '../../core/options.ts'
import type { FileAccess } from './driver/file-access.ts'
import type { SqliteStatement } from './transaction.ts'

/** The part of the caller's client that is used. `DatabaseSync` of node:sqlite has it. */
export interface CallerClient {
  prepare(sql: string): Pick<SqliteStatement, 'run' | 'all'>
  /** Set by node:sqlite. */
  readonly isTransaction?: unknown
  /** Set by better-sqlite3. */
  readonly inTransaction?: unknown
}

/**
 * Checks that the client has the store's file open, and that the caller has begun a transaction on
 * it. Throws `InvalidOptionsError` otherwise: a message added outside the transaction would be kept
 * even if the caller's rows are rolled back.
 */
export function openCallerTransaction(access: FileAccess, tx: unknown): CallerClient {
  if (typeof tx !== 'object' || tx === null || !hasPrepare(tx)) {
    throw new InvalidOptionsError(
      'outbox.add takes the transaction of the store, or a connection with ' +
        `prepare() on which a transaction is open, got ${describe(tx)}`,
    )
  }
  refuseOtherFile(access, tx)
  if (!isInTransaction(tx)) {
    throw new InvalidOptionsError(
      'outbox.add got a connection on which no transaction is open: begin one, so that the ' +
        "message commits together with the caller's rows",
    )
  }
  return tx
}

function hasPrepare(tx: object): tx is CallerClient {
  return 'prepare' in tx && typeof tx.prepare === 'function'
}

function isInTransaction(tx: CallerClient): boolean {
  const isOpen = tx.isTransaction ?? tx.inTransaction
  if (typeof isOpen === 'boolean') return isOpen
  // The client has no such property: BEGIN fails if a transaction is open.
  try {
    tx.prepare('BEGIN').run()
  } catch (error) {
    if (error instanceof Error && error.message.includes('within a transaction')) return true
    throw error
  }
  tx.prepare('ROLLBACK').run()
  return false
}

/** The file of a connection never changes, so each connection is checked once. */
function refuseOtherFile({ writer, onSameFile }: FileAccess, tx: CallerClient): void {
  if (onSameFile.has(tx)) return
  const own = writer.file
  const file = mainFileOf(tx)
  if (file === own) {
    onSameFile.add(tx)
    return
  }
  throw new InvalidOptionsError(
    `outbox.add got a connection to ${JSON.stringify(file)}, but the store keeps its messages ` +
      `in ${JSON.stringify(own)}: they can only commit together in the same file`,
  )
}

export function mainFileOf(db: CallerClient): string {
  const rows = db.prepare('PRAGMA database_list').all()
  const main = rows.find((row) => row['name'] === 'main')
  return typeof main?.['file'] === 'string' ? main['file'] : ''
}
