import { StoreFailedError, type StoreFailure } from '../../core/errors.ts'
import { ValueFault } from '../kit/value-fault.ts'
import { isRefused } from './refusals.ts'

/**
 * Wraps every error of the store. A client may attach the arguments of the command to its error,
 * and they contain the keys of requests. So only the message, stack and code are passed on.
 */
export function storeFailed(
  operation: string,
  cause: unknown,
  failure: StoreFailure = isRowFault(cause) ? 'rejected' : 'unavailable',
  /** No script of the call ran. `false` if another script of the same call may have run. */
  wroteNothing: boolean = failure === 'rejected' || didNotRun(cause),
): StoreFailedError {
  if (cause instanceof StoreFailedError) return withWroteNothing(cause, wroteNothing)
  const advice = adviceOn(cause)
  const details = { failure, wroteNothing, cause: withoutArgs(cause), advice }
  return new StoreFailedError({ store: 'redis', operation, ...details })
}

/** The error of a call that was not sent, because an earlier step has failed. */
export function notSent(operation: string, cause: unknown): StoreFailedError {
  return storeFailed(operation, cause, undefined, true)
}

/** Whether the script that failed with this error certainly did not run. */
export function didNotRun(error: unknown): boolean {
  return error instanceof StoreFailedError ? error.wroteNothing : isRefused(error)
}

/** Returns a copy and does not change the error: calls that wait for the same answer share it. */
function withWroteNothing(failed: StoreFailedError, wroteNothing: boolean): StoreFailedError {
  if (failed.wroteNothing === wroteNothing) return failed
  const { store, operation, failure, cause, advice } = failed
  return new StoreFailedError({ store, operation, failure, cause, advice, wroteNothing })
}

const CHECK_LOGIN = 'check the user and the password of the client'

/** Advice for operators on errors that affect every call, by the first word of the answer. */
const ADVICE: Readonly<Record<string, string>> = {
  NOAUTH: CHECK_LOGIN,
  WRONGPASS: CHECK_LOGIN,
  NOPERM: 'give the user of the client the rights that the Redis guide of oncekey lists',
  READONLY: 'connect to the master: this server is read-only',
  OOM: 'raise maxmemory of the server, or remove other data',
  MISCONF: 'free disk space on the server: it cannot write its snapshot',
  LOADING: 'wait until the server has loaded its data',
  CLUSTERDOWN: 'check the masters of the cluster: some slots have none',
  MASTERDOWN: 'check the master of this replica',
  NOREPLICAS: 'check the replicas: fewer than min-replicas-to-write are connected',
}

function adviceOn(cause: unknown): string | undefined {
  const word = cause instanceof Error ? (/^[A-Z]+(?= )/.exec(cause.message)?.[0] ?? '') : ''
  return Object.hasOwn(ADVICE, word) ? ADVICE[word] : undefined
}

function withoutArgs(cause: unknown): unknown {
  if (!(cause instanceof Error) || cause instanceof ValueFault) return cause
  const clean = new Error(cause.message)
  clean.name = cause.name
  if (cause.stack !== undefined) clean.stack = cause.stack
  if ('code' in cause) Object.assign(clean, { code: cause.code })
  return clean
}

/** The server was restarted, has failed over, or its script cache was flushed. */
export function isScriptMissing(error: unknown): boolean {
  return startsWith(error, 'NOSCRIPT')
}

/** The client is for single servers, and the server belongs to a cluster. Nothing has run. */
export function isCrossSlot(error: unknown): boolean {
  return startsWith(error, 'CROSSSLOT')
}

/**
 * The user may not run the command, the server does not know it, or a managed service blocks it.
 * Other errors, such as `ERR max number of clients reached`, are temporary.
 */
export function isNotAllowed(error: unknown): boolean {
  return error instanceof Error && NOT_ALLOWED.test(error.message)
}

const NOT_ALLOWED =
  /^(NOPERM|ERR unknown (sub)?command|ERR .*\b(not|n't) (allowed|available|permitted|supported)\b)/i

/** A value cannot be stored, or a newer version wrote the record. The script wrote nothing. */
export function isRowFault(error: unknown): boolean {
  return error instanceof ValueFault || startsWith(error, 'LAYOUT')
}

function startsWith(error: unknown, code: string): boolean {
  return error instanceof Error && error.message.startsWith(code)
}
