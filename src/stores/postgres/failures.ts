import { StoreFailedError, type StoreFailure } from '../../core/errors.ts'
import { ValueFault } from '../kit/value-fault.ts'
import { WRONG_ISOLATION } from './functions/parts.ts'

/** Data exception, integrity constraint violation, program limit exceeded: a row is at fault. */
const ROW_FAULT_CLASSES: readonly string[] = ['22', '23', '54']

const SERIALIZATION_FAILURE = '40001'
const DEADLOCK = '40P01'
const UNIQUE_VIOLATION = '23505'
const NO_SUCH_SAVEPOINT = '3B001'
const NO_TRANSACTION = '25P01'
const LOCK_TIMEOUT = '55P03'
const QUERY_CANCELED = '57014'

const NOT_MIGRATED = 'call store.migrate() once before the first request'

/** Advice for the operator on errors that every call would get, by SQLSTATE. */
const ADVICE: Readonly<Record<string, string>> = {
  // A function, a table or a schema is missing.
  '42883': NOT_MIGRATED,
  '42P01': NOT_MIGRATED,
  '3F000': NOT_MIGRATED,
  '3D000': 'create the database, or correct its name in the settings of the client',
  '28000': 'check the user of the client, and pg_hba.conf of the server',
  '28P01': 'check the user and the password of the client',
  '42501':
    'give the user of the client USAGE on the schema, SELECT, INSERT, UPDATE and DELETE on its ' +
    'tables, and EXECUTE on its functions; store.migrate() needs a user that may create them',
  '25006': 'connect to the primary: this server, or this session, takes no writes',
  '53100': 'free space on the disk of the server',
  '53300': 'raise max_connections of the server, or use fewer connections in each process',
  '57P03': 'wait until the server has started',
}

/**
 * Wraps every error of the store. The detail of a constraint violation may contain a key, so it
 * stays in the driver's error, the `cause`, and is not part of the message.
 */
export function storeFailed(operation: string, cause: unknown): StoreFailedError {
  if (cause instanceof StoreFailedError) return cause
  const failure: StoreFailure = isRowFault(cause) ? 'rejected' : 'unavailable'
  return new StoreFailedError({
    store: 'postgres',
    operation,
    failure,
    cause,
    advice: adviceOn(cause),
  })
}

/** The same call with the same tokens can be sent again. */
export function isConflict(error: unknown): boolean {
  const code = sqlStateOf(error)
  return code === SERIALIZATION_FAILURE || code === DEADLOCK
}

/** Two calls inserted the same value at once, and this call is the second. */
export function isUniqueViolation(error: unknown): boolean {
  return isCausedBy(error, (cause) => sqlStateOf(cause) === UNIQUE_VIOLATION)
}

/** Another transaction held a lock for longer than `lock_timeout`. */
export function isLockTimeout(error: unknown): boolean {
  return isCausedBy(error, (cause) => sqlStateOf(cause) === LOCK_TIMEOUT)
}

/** The statement took longer than `statement_timeout`, or an operator has cancelled it. */
export function isStatementTimeout(error: unknown): boolean {
  return isCausedBy(error, (cause) => sqlStateOf(cause) === QUERY_CANCELED)
}

export function isWrongIsolation(error: unknown): boolean {
  return sqlStateOf(error) === WRONG_ISOLATION
}

/** The savepoint does not exist any more, so its transaction has ended. */
export function isSealBroken(error: unknown): boolean {
  const code = sqlStateOf(error)
  return code === NO_SUCH_SAVEPOINT || code === NO_TRANSACTION
}

/** The network, the driver or the server reports that the connection has ended. */
export function isConnectionLost(error: unknown): boolean {
  return /^(E[A-Z]+|CONNECTION_.+|57P0[1-5]|08.{3})$/.test(sqlStateOf(error) ?? '')
}

/** Query builders and other tools wrap errors; a deeper cause belongs to another failure. */
const CAUSES_MAX = 8

/** Whether `error` or one of its causes matches. */
export function isCausedBy(error: unknown, matches: (cause: Error) => boolean): boolean {
  let current = error
  for (let depth = 0; depth < CAUSES_MAX && current instanceof Error; depth++) {
    if (matches(current)) return true
    current = current.cause
  }
  return false
}

function isRowFault(error: unknown): boolean {
  if (error instanceof ValueFault) return true
  const code = sqlStateOf(error)
  return code !== undefined && ROW_FAULT_CLASSES.includes(code.slice(0, 2))
}

function adviceOn(cause: unknown): string | undefined {
  const code = sqlStateOf(cause) ?? ''
  return Object.hasOwn(ADVICE, code) ? ADVICE[code] : undefined
}

/** Both drivers put the SQLSTATE into `code`; network errors have a code of Node there. */
function sqlStateOf(error: unknown): string | undefined {
  if (!(error instanceof Error && 'code' in error)) return undefined
  return typeof error.code === 'string' ? error.code : undefined
}
