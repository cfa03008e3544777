/** Classifies errors of the driver, and wraps them for the caller. */
import { StoreFailedError, type StoreFailure } from '../../core/errors.ts'
import { ValueFault } from '../kit/value-fault.ts'

const LOCK_WAIT_TIMEOUT = 1205
const LOCK_TABLE_FULL = 1206
const DEADLOCK = 1213
const NO_SUCH_SAVEPOINT = 1305
const DUPLICATE_COLUMN = 1060
const DUPLICATE_KEY_NAME = 1061
const NOTHING_TO_DROP = 1091
const DUPLICATE = 1062
const TRANSACTION_OPEN = 1568

/**
 * A deadlock between connections or between the nodes of a cluster; or, on MariaDB with
 * `innodb_snapshot_isolation`, a row that has changed since the transaction began.
 */
const CONFLICTS: readonly (number | undefined)[] = [DEADLOCK, 1020, 3101]

/** Data exception and integrity constraint violation: a row causes the error. */
const ROW_FAULT_CLASSES: readonly string[] = ['22', '23']

/**
 * Errors about a row that the class does not show: packet too large, data truncated, wrong text for
 * the character set, and a failed CHECK (on MySQL and on MariaDB).
 */
const ROW_FAULTS: readonly (number | undefined)[] = [1153, 1265, 1366, 3819, 4025]

/** A database, a table or a column is missing. */
const NOT_MIGRATED: readonly (number | undefined)[] = [1049, 1054, 1146]

const CHECK_LOGIN = 'check the user, the password and the host of the client'
const GRANT =
  'give the user of the client SELECT, INSERT, UPDATE and DELETE on the tables of the store; ' +
  'store.migrate() needs CREATE, ALTER and INDEX as well'
const TO_PRIMARY = 'connect to the primary: this server is read-only'

/** Advice for operators on errors that affect every call, by error number. */
const ADVICE: ReadonlyMap<number | undefined, string> = new Map([
  [1049, 'create the database, or correct its name in the settings of the client'],
  [1146, 'call store.migrate() once before the first request'],
  [1044, GRANT],
  [1142, GRANT],
  [1143, GRANT],
  [1045, CHECK_LOGIN],
  [1130, CHECK_LOGIN],
  [1698, CHECK_LOGIN],
  [1021, 'free disk space on the server'],
  [1114, 'free disk space on the server'],
  [1040, 'raise max_connections of the server, or use fewer connections in each process'],
  [1290, TO_PRIMARY],
  [1792, TO_PRIMARY],
  [1836, TO_PRIMARY],
])

/** Killed or shut down: the server has closed the connection after this error. */
const CLOSED_STATES: readonly string[] = ['08S01', '70100']

/** The server has become a replica. A new connection may reach the new primary. */
const READ_ONLY: readonly (number | undefined)[] = [1290, 1792, 1836]

/**
 * Wraps every error of the store. The text of a constraint violation may contain a key, so it stays
 * in the driver's error, the `cause`, and is not part of this message.
 */
export function storeFailed(operation: string, cause: unknown): StoreFailedError {
  if (cause instanceof StoreFailedError) return cause
  forgetStatement(cause)
  const failure: StoreFailure = isRowFault(cause) ? 'rejected' : 'unavailable'
  const advice = ADVICE.get(numberOf(cause))
  const safe = withoutValues(cause)
  return new StoreFailedError({ store: 'mysql', operation, failure, cause: safe, advice })
}

/** The call can be repeated with the same tokens, also if its commit failed with this error. */
export function isConflict(error: unknown): boolean {
  const cause = error instanceof StoreFailedError ? error.cause : error
  return CONFLICTS.includes(numberOf(cause))
}

/** A repeated call may succeed, but the wait has taken seconds already. */
export function isLockTimeout(error: unknown): boolean {
  return numberOf(error) === LOCK_WAIT_TIMEOUT
}

/** After this error the server may have rolled back the whole transaction. */
export function isRollback(error: unknown): boolean {
  const number = numberOf(error)
  return number === DEADLOCK || number === LOCK_WAIT_TIMEOUT || number === LOCK_TABLE_FULL
}

/** After this error the server has certainly rolled back the whole transaction. */
export function isCertainRollback(error: unknown): boolean {
  return numberOf(error) === DEADLOCK
}

/** The savepoint does not exist: the transaction in which it was set has ended. */
export function isSavepointMissing(error: unknown): boolean {
  return numberOf(error) === NO_SUCH_SAVEPOINT
}

/** A row with the same key exists. */
export function isDuplicate(error: unknown): boolean {
  return numberOf(error) === DUPLICATE
}

/** The column or index to add exists, or the index to drop does not. */
export function isAlreadyChanged(error: unknown): boolean {
  const number = numberOf(error)
  const isThere = number === DUPLICATE_COLUMN || number === DUPLICATE_KEY_NAME
  return isThere || number === NOTHING_TO_DROP
}

export function isTransactionOpen(error: unknown): boolean {
  return numberOf(error) === TRANSACTION_OPEN
}

export function isNotMigrated(error: unknown): boolean {
  return NOT_MIGRATED.includes(numberOf(error))
}

/** The server has answered, so the connection can be reused. Other errors are network errors. */
export function isAnswer(error: unknown): boolean {
  if (error instanceof ValueFault) return true
  const isFatal = error instanceof Error && 'fatal' in error && error.fatal === true
  const state = sqlStateOf(error)
  if (isFatal || READ_ONLY.includes(numberOf(error))) return false
  return state !== undefined && !CLOSED_STATES.includes(state)
}

function isRowFault(error: unknown): boolean {
  if (error instanceof ValueFault) return true
  if (ROW_FAULTS.includes(numberOf(error))) return true
  return ROW_FAULT_CLASSES.includes(sqlStateOf(error)?.slice(0, 2) ?? '')
}

/** Query builders and others wrap errors. A chain that is longer than this is not followed. */
const CAUSES_MAX = 8

/**
 * The driver and some tools keep the whole statement in their errors. The statement contains the
 * reply, which would be logged together with the error.
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

function withoutValues(cause: unknown): unknown {
  if (!(cause instanceof Error) || cause instanceof ValueFault) return cause
  // The driver's message contains the value, which may be a key.
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
