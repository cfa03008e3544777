import { StoreFailedError, type StoreFailure } from '../../core/errors.ts'
import { ValueFault } from './packer.ts'
import { isRefused } from './refusals.ts'

/**
 * The one wrapper of errors. A client may attach the arguments of the command to its error, and
 * with them the keys of our callers: only its words and its code are passed on.
 */
export function storeFailed(
  operation: string,
  cause: unknown,
  failure: StoreFailure = isRowFault(cause) ? 'rejected' : 'unavailable',
  /** Nothing of the call ran: `false` where another script of it may have. */
  wroteNothing: boolean = failure === 'rejected' || ranNothing(cause),
): StoreFailedError {
  if (cause instanceof StoreFailedError) return saying(wroteNothing, cause)
  const advice = adviceOn(cause)
  const details = { failure, wroteNothing, cause: withoutArgs(cause), advice }
  return new StoreFailedError({ store: 'redis', operation, ...details })
}

/** Of a call that was not sent, because what comes before it has failed. */
export function notSent(operation: string, cause: unknown): StoreFailedError {
  return storeFailed(operation, cause, undefined, true)
}

/** Whether the script that failed with this error certainly did not run. */
export function ranNothing(error: unknown): boolean {
  return error instanceof StoreFailedError ? error.wroteNothing : isRefused(error)
}

/** Never by a change of the error: calls that wait for the same answer share it. */
function saying(wroteNothing: boolean, failed: StoreFailedError): StoreFailedError {
  if (failed.wroteNothing === wroteNothing) return failed
  const { store, operation, failure, cause, advice } = failed
  return new StoreFailedError({ store, operation, failure, cause, advice, wroteNothing })
}

const CHECK_LOGIN = 'check the user and the password of the client'

/** What an operator can do about errors that every call meets, by the first word of the answer. */
const ADVICE: Readonly<Record<string, string>> = {
  NOAUTH: CHECK_LOGIN,
  WRONGPASS: CHECK_LOGIN,
  NOPERM: 'give the user of the client the commands that the guide of the store lists',
  READONLY: 'connect to the master: this server takes no writes',
  OOM: 'raise maxmemory of the server, or move other data away',
  MISCONF: 'make room on the disk of the server: it cannot write its snapshot',
  LOADING: 'wait until the server has read its data',
  CLUSTERDOWN: 'check the masters of the cluster: some of its slots have none',
  MASTERDOWN: 'check the master of this replica',
  NOREPLICAS: 'check the replicas: fewer than min-replicas-to-write are up',
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

/** The server restarted, failed over or was told to forget its scripts. */
export function isScriptMissing(error: unknown): boolean {
  return startsWith(error, 'NOSCRIPT')
}

/** A server of a cluster, behind a client of single servers. Nothing of the script ran. */
export function isCrossSlot(error: unknown): boolean {
  return startsWith(error, 'CROSSSLOT')
}

/**
 * The user of the connection may not ask this, or the server does not know the question, or a
 * managed one does not answer it. Any other error (`ERR max number of clients reached`) passes.
 */
export function isNotAllowed(error: unknown): boolean {
  return error instanceof Error && NOT_ALLOWED.test(error.message)
}

const NOT_ALLOWED =
  /^(NOPERM|ERR unknown (sub)?command|ERR .*\b(not|n't) (allowed|available|permitted|supported)\b)/i

/** A value that cannot be kept, or a record that a newer version has written. Nothing has run. */
export function isRowFault(error: unknown): boolean {
  return error instanceof ValueFault || startsWith(error, 'LAYOUT')
}

function startsWith(error: unknown, code: string): boolean {
  return error instanceof Error && error.message.startsWith(code)
}
