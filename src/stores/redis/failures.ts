import { StoreFailedError, type StoreFailure } from '../../core/errors.ts'
import { ValueFault } from './packer.ts'

/**
 * The one wrapper of errors. A client may attach the arguments of the command to its error, and
 * with them the keys of our callers: only its words and its code are passed on.
 */
export function storeFailed(
  operation: string,
  cause: unknown,
  failure: StoreFailure = isRowFault(cause) ? 'rejected' : 'unavailable',
): StoreFailedError {
  if (cause instanceof StoreFailedError) return cause
  return new StoreFailedError({ store: 'redis', operation, failure, cause: withoutArgs(cause) })
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
