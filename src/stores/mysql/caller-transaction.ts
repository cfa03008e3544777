/**
 * Statements of the store inside a transaction that the caller has begun.
 *
 * Tests: test/stores/mysql/caller-transaction/.
 */
import { InvalidOptionsError } from '../../core/errors.ts'
import {
  causesOf,
  driverErrorOf,
  foreignTransaction,
  type RunSql,
} from '../kit/foreign-transaction.ts'
import { isConflict, isLockTimeout, isSavepointMissing, storeFailed } from './failures.ts'
import { END_PROBE, PROBE } from './sql.ts'

/** Words for error messages: the method that was called, its operation, and advice. */
export interface JoinPurpose {
  readonly caller: string
  readonly operation: string
  readonly advice: string
}

/** A transaction of the caller, and why the store writes in it. */
export interface JoinedTransaction extends JoinPurpose {
  readonly run: RunSql
}

export function joinTransaction(tx: unknown, purpose: JoinPurpose): JoinedTransaction {
  return { ...purpose, run: foreignTransaction(tx, purpose.caller) }
}

/**
 * Throws if no transaction is open: each statement would be committed at once, even if the caller's
 * other statements fail. A user variable proves nothing, because it lives as long as its
 * connection.
 */
export async function checkOpen(joined: JoinedTransaction, open: string): Promise<void> {
  if (open === 'none') throw notOpen(joined)
  if (open === 'open') return
  // MySQL: outside of a transaction a savepoint does not outlive its statement. According to its
  // documentation MySQL does not support savepoints as prepared statements: with a tool that only
  // prepares, the server's error is thrown here and nothing is written.
  await send(joined, PROBE)
  try {
    await joined.run(END_PROBE)
  } catch (error) {
    if (causesOf(error).some(isProbeMissing)) throw notOpen(joined, error)
    throw toFailure(joined, error, END_PROBE)
  }
}

/** Checks the error number, or the message if the tool keeps only that. */
function isProbeMissing(error: Error): boolean {
  return isSavepointMissing(error) || /savepoint oncekey_settle does not exist/i.test(error.message)
}

export function notOpen({ caller, advice }: JoinPurpose, cause?: unknown): InvalidOptionsError {
  return new InvalidOptionsError(
    `${caller} was given a connection on which no transaction is open: ${advice}. Earlier ` +
      'statements on this connection are committed already',
    { cause },
  )
}

export async function send(
  joined: JoinedTransaction,
  sql: string,
): Promise<readonly Record<string, unknown>[]> {
  try {
    return await joined.run(sql)
  } catch (error) {
    throw toFailure(joined, error, sql)
  }
}

/** Does not wrap a conflict: the caller's retry loop must recognise the driver's error. */
function toFailure({ operation }: JoinPurpose, error: unknown, sql: string): unknown {
  if (error instanceof InvalidOptionsError) return error
  if (causesOf(error).some((cause) => isConflict(cause) || isLockTimeout(cause))) return error
  return storeFailed(operation, driverErrorOf(error, sql))
}
