/** Transactions that the caller has begun, and that the store writes into. */
import { InvalidOptionsError } from '../../core/errors.ts'
import {
  causesOf,
  driverErrorOf,
  foreignTransaction,
  type RunSql,
} from '../../core/foreign-transaction.ts'
import { isConflict, isLockTimeout, isSealBroken, storeFailed } from './failures.ts'
import { END_PROBE, PROBE } from './sql.ts'

/** What the store was called for, in the words of its messages. */
export interface Errand {
  readonly caller: string
  readonly operation: string
  readonly advice: string
}

export interface Joined extends Errand {
  readonly run: RunSql
}

export function joinTransaction(tx: unknown, errand: Errand): Joined {
  return { ...errand, run: foreignTransaction(tx, errand.caller) }
}

/**
 * Without a transaction each statement would be committed at once, whatever becomes of the rest. A
 * user variable proves nothing here: it lasts as long as its connection.
 */
export async function checkOpen(joined: Joined, open: string): Promise<void> {
  if (open === 'none') throw notOpen(joined)
  if (open === 'open') return
  // MySQL. Outside of a transaction a savepoint is gone as soon as it is set. By its documentation
  // MySQL takes no savepoints in its protocol for prepared statements: a tool that knows no other
  // gets the server's error here, and nothing is written.
  await send(joined, PROBE)
  try {
    await joined.run(END_PROBE)
  } catch (error) {
    if (causesOf(error).some(isSealGone)) throw notOpen(joined, error)
    throw toFailure(joined, error, END_PROBE)
  }
}

/** By its number, or by what the server says where a tool keeps only that. */
function isSealGone(error: Error): boolean {
  return isSealBroken(error) || /savepoint oncekey_settle does not exist/i.test(error.message)
}

export function notOpen({ caller, advice }: Errand, cause?: unknown): InvalidOptionsError {
  return new InvalidOptionsError(
    `${caller} was given a connection on which no transaction is open: ${advice}. What was ` +
      'written on it before is committed already',
    { cause },
  )
}

export async function send(
  joined: Joined,
  sql: string,
): Promise<readonly Record<string, unknown>[]> {
  try {
    return await joined.run(sql)
  } catch (error) {
    throw toFailure(joined, error, sql)
  }
}

/** A conflict is left as it is: whoever repeats transactions for it must recognise it. */
function toFailure({ operation }: Errand, error: unknown, sql: string): unknown {
  if (error instanceof InvalidOptionsError) return error
  if (causesOf(error).some((cause) => isConflict(cause) || isLockTimeout(cause))) return error
  return storeFailed(operation, driverErrorOf(error, sql))
}
