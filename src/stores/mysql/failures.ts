import { StoreFailedError, type StoreFailure } from '../../core/errors.ts'
import { ValueFault } from './values.ts'

const LOCK_WAIT_TIMEOUT = 1205
const LOCK_TABLE_FULL = 1206
const DEADLOCK = 1213
const NO_SUCH_SAVEPOINT = 1305
const DUPLICATE_COLUMN = 1060
const DUPLICATE_KEY_NAME = 1061
const DUPLICATE = 1062
const TRANSACTION_OPEN = 1568

/**
 * A deadlock, between connections or between the nodes of a cluster; or, on MariaDB with
 * `innodb_snapshot_isolation`, a row that has moved on since the transaction began.
 */
const CONFLICTS: readonly (number | undefined)[] = [DEADLOCK, 1020, 3101]

/** Data exception, integrity constraint violation: a row is at fault. */
const ROW_FAULT_CLASSES: readonly string[] = ['22', '23']

/**
 * The same, where the class of the error says nothing: packet too large, data cut, wrong text for
 * the character set, a check that failed (MySQL, MariaDB).
 */
const ROW_FAULTS: readonly (number | undefined)[] = [1153, 1265, 1366, 3819, 4025]

/** A database, a table or a column is missing. */
const NOT_MIGRATED: readonly (number | undefined)[] = [1049, 1054, 1146]

const CHECK_LOGIN = 'check the user, the password and the host of the client'
const GRANT =
  'give the user of the client SELECT, INSERT, UPDATE and DELETE on the tables of the store; ' +
  'store.migrate() needs CREATE, ALTER and INDEX as well'
const TO_PRIMARY = 'connect to the primary: this server takes no writes'

/** What an operator can do about errors that every call meets, by their number. */
const ADVICE: ReadonlyMap<number | undefined, string> = new Map([
  [1049, 'create the database, or correct its name in the settings of the client'],
  [1146, 'call store.migrate() once before the first request'],
  [1044, GRANT],
  [1142, GRANT],
  [1143, GRANT],
  [1045, CHECK_LOGIN],
  [1130, CHECK_LOGIN],
  [1698, CHECK_LOGIN],
  [1021, 'make room on the disk of the server'],
  [1114, 'make room on the disk of the server'],
  [1040, 'raise max_connections of the server, or use fewer connections in each process'],
  [1290, TO_PRIMARY],
  [1792, TO_PRIMARY],
  [1836, TO_PRIMARY],
])

/** Killed, or shut down: with this answer the server has ended the connection. */
const LAST_WORDS: readonly string[] = ['08S01', '70100']

/** The server has become a replica: a new connection leads to the one that took its place. */
const READ_ONLY: readonly (number | undefined)[] = [1290, 1792, 1836]

/**
 * The one wrapper of errors. The text of a constraint violation may hold a key; it stays in the
 * driver's error, the `cause`, and out of our message.
 */
export function storeFailed(operation: string, cause: unknown): StoreFailedError {
  if (cause instanceof StoreFailedError) return cause
  forgetStatement(cause)
  const failure: StoreFailure = isRowFault(cause) ? 'rejected' : 'unavailable'
  const advice = ADVICE.get(numberOf(cause))
  return new StoreFailedError({ store: 'mysql', operation, failure, cause: told(cause), advice })
}

/** The same call with the same tokens will do. Also where it was the commit that failed so. */
export function isConflict(error: unknown): boolean {
  const cause = error instanceof StoreFailedError ? error.cause : error
  return CONFLICTS.includes(numberOf(cause))
}

/** It may pass, but has cost much time already. */
export function isLockTimeout(error: unknown): boolean {
  return numberOf(error) === LOCK_WAIT_TIMEOUT
}

/** An error with which the server may have rolled the whole transaction back. */
export function isRollback(error: unknown): boolean {
  const number = numberOf(error)
  return number === DEADLOCK || number === LOCK_WAIT_TIMEOUT || number === LOCK_TABLE_FULL
}

/** An error with which the server has certainly rolled the whole transaction back. */
export function isCertainRollback(error: unknown): boolean {
  return numberOf(error) === DEADLOCK
}

/** The savepoint is gone: the transaction it was set in has ended. */
export function isSealBroken(error: unknown): boolean {
  return numberOf(error) === NO_SUCH_SAVEPOINT
}

/** A row of the same key is there already. */
export function isDuplicate(error: unknown): boolean {
  return numberOf(error) === DUPLICATE
}

/** The column or the index that was to be added is there. */
export function isDuplicateName(error: unknown): boolean {
  const number = numberOf(error)
  return number === DUPLICATE_COLUMN || number === DUPLICATE_KEY_NAME
}

export function isTransactionOpen(error: unknown): boolean {
  return numberOf(error) === TRANSACTION_OPEN
}

export function isNotMigrated(error: unknown): boolean {
  return NOT_MIGRATED.includes(numberOf(error))
}

/** The server has answered, so that the connection can go on; other errors are the network's. */
export function isAnswer(error: unknown): boolean {
  if (error instanceof ValueFault) return true
  const isFatal = error instanceof Error && 'fatal' in error && error.fatal === true
  const state = sqlStateOf(error)
  if (isFatal || READ_ONLY.includes(numberOf(error))) return false
  return state !== undefined && !LAST_WORDS.includes(state)
}

function isRowFault(error: unknown): boolean {
  if (error instanceof ValueFault) return true
  if (ROW_FAULTS.includes(numberOf(error))) return true
  return ROW_FAULT_CLASSES.includes(sqlStateOf(error)?.slice(0, 2) ?? '')
}

/** Errors are wrapped on their way, by query builders for one; further in, it is another's. */
const CAUSES_MAX = 8

/**
 * The driver keeps the whole statement in its error, and so do some tools. It holds the reply, and
 * whoever prints the error would print that, too.
 */
function forgetStatement(error: unknown): void {
  let current = error
  for (let depth = 0; depth < CAUSES_MAX && current instanceof Error; depth++) {
    for (const name of ['sql', 'query', 'parameters', 'params']) {
      Reflect.deleteProperty(current, name)
    }
    current = current.cause
  }
}

function told(cause: unknown): unknown {
  if (!(cause instanceof Error) || cause instanceof ValueFault) return cause
  // Says which value was there already: perhaps a key.
  if (isRowFault(cause)) return new Error(`error ${numberOf(cause)} about a value`, { cause })
  return cause
}

function numberOf(error: unknown): number | undefined {
  if (!(error instanceof Error && 'errno' in error)) return undefined
  return typeof error.errno === 'number' ? error.errno : undefined
}

function sqlStateOf(error: unknown): string | undefined {
  if (!(error instanceof Error && 'sqlState' in error)) return undefined
  return typeof error.sqlState === 'string' ? error.sqlState : undefined
}
