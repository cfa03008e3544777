import { StoreFailedError, type StoreFailure } from '../../core/errors.ts'
import type { FoundItem } from './client.ts'

/** A row that the table cannot hold, found before anything was sent. */
export class RowFault extends Error {}

/** The condition of a write did not hold: the item is there as the service saw it, if it says. */
export function isConditionFailed(error: unknown): error is Error & { Item?: FoundItem } {
  return error instanceof Error && error.name === 'ConditionalCheckFailedException'
}

/**
 * The one wrapper of errors. `isAlone`: nothing else was sent with the row that the service found
 * invalid; otherwise its neighbours may have been written, and `rejected` would be a lie.
 *
 * Throttling is `unavailable` and not `overloaded`: the SDK has tried several times, and the
 * answer to an earlier try may have been lost.
 */
export function storeFailed(operation: string, cause: unknown, isAlone = false): StoreFailedError {
  if (cause instanceof StoreFailedError) return cause
  const isRejected = cause instanceof RowFault || (isAlone && isInvalid(cause))
  const failure: StoreFailure = isRejected ? 'rejected' : 'unavailable'
  return new StoreFailedError({ store: 'dynamodb', operation, failure, cause: hinted(cause) })
}

function isInvalid(error: unknown): boolean {
  return error instanceof Error && error.name === 'ValidationException'
}

function hinted(cause: unknown): unknown {
  if (!(cause instanceof Error)) return cause
  if (cause.name === 'ResourceNotFoundException') {
    return new Error(`${cause.message} (create the table that tableDefinition() describes)`, {
      cause,
    })
  }
  if (isInvalid(cause) && /index/i.test(cause.message)) {
    return new Error(`${cause.message} (it needs the indexes of tableDefinition())`, { cause })
  }
  return cause
}
