import { InvalidOptionsError } from '../../core/errors.ts'
import { describe } from '../../core/options.ts'
import type { FileAccess } from './file-access.ts'
import type { SqliteStatement } from './transaction.ts'

/** What is used of a client of the caller's: `DatabaseSync` of node:sqlite has it, and others. */
export interface ForeignClient {
  prepare(sql: string): Pick<SqliteStatement, 'run' | 'all'>
  /** Of node:sqlite. */
  readonly isTransaction?: unknown
  /** Of better-sqlite3. */
  readonly inTransaction?: unknown
}

/**
 * A client on which the caller has begun a transaction, on the same file. Throws
 * `InvalidOptionsError` for anything else: what is added outside a transaction would be there
 * although what it belongs to is not.
 */
export function openForeign(access: FileAccess, tx: unknown): ForeignClient {
  if (typeof tx !== 'object' || tx === null || !hasPrepare(tx)) {
    throw new InvalidOptionsError(
      'outbox.add takes the transaction that the store handed out, or a connection with ' +
        `prepare() on which a transaction is open, got ${describe(tx)}`,
    )
  }
  refuseOtherFile(access, tx)
  if (!isInTransaction(tx)) {
    throw new InvalidOptionsError(
      'outbox.add was given a connection on which no transaction is open: begin one, so that the ' +
        'message commits with what it belongs to',
    )
  }
  return tx
}

function hasPrepare(tx: object): tx is ForeignClient {
  return 'prepare' in tx && typeof tx.prepare === 'function'
}

function isInTransaction(tx: ForeignClient): boolean {
  const told = tx.isTransaction ?? tx.inTransaction
  if (typeof told === 'boolean') return told
  // A client that does not say: within a transaction no other can begin.
  try {
    tx.prepare('BEGIN').run()
  } catch (error) {
    if (error instanceof Error && error.message.includes('within a transaction')) return true
    throw error
  }
  tx.prepare('ROLLBACK').run()
  return false
}

/** A connection stays with its file, so it is asked once. */
function refuseOtherFile({ writer, onSameFile }: FileAccess, tx: ForeignClient): void {
  if (onSameFile.has(tx)) return
  const own = writer.file
  const file = mainFileOf(tx)
  if (file === own) {
    onSameFile.add(tx)
    return
  }
  throw new InvalidOptionsError(
    `outbox.add was given a connection to ${JSON.stringify(file)}, and the store keeps its ` +
      `messages in ${JSON.stringify(own)}: they can only commit together in one file`,
  )
}

export function mainFileOf(db: ForeignClient): string {
  const rows = db.prepare('PRAGMA database_list').all()
  const main = rows.find((row) => row['name'] === 'main')
  return typeof main?.['file'] === 'string' ? main['file'] : ''
}
