import { StoreFailedError, type StoreFailure } from '../../core/errors.ts'
import type { FoundItem } from './client.ts'

/** A row that the table cannot hold, found before anything was sent. */
export class RowFault extends Error {}

/** The condition of a write did not hold: the item is there as the service saw it, if it says. */
export function isConditionFailed(error: unknown): error is Error & { Item?: FoundItem } {
  return error instanceof Error && error.name === 'ConditionalCheckFailedException'
}

/**
 * A row has failed with `cause`, and has changed nothing. Around the error and not a mark on it:
 * the reason of a signal is one object for all that are given up with it.
 */
export class NothingWritten extends Error {
  constructor(cause: unknown) {
    super('nothing was written', { cause })
  }
}

/**
 * The one wrapper of errors. `isAlone`: nothing else was sent with the row that failed; otherwise
 * its neighbours may have been written, and `rejected` would be wrong.
 *
 * Throttling is `unavailable` and not `overloaded`: it was sent, and counts against the store.
 */
export function storeFailed(operation: string, error: unknown, isAlone = false): StoreFailedError {
  const cause = error instanceof NothingWritten ? error.cause : error
  if (cause instanceof StoreFailedError) return cause
  const isRejected = cause instanceof RowFault || (isAlone && isInvalid(cause))
  const failure: StoreFailure = isRejected ? 'rejected' : 'unavailable'
  return new StoreFailedError({
    store: 'dynamodb',
    operation,
    failure,
    wroteNothing: isRejected || (isAlone && error instanceof NothingWritten),
    cause,
    advice: adviceOn(cause),
  })
}

function isInvalid(error: unknown): boolean {
  return error instanceof Error && error.name === 'ValidationException'
}

const CHECK_CREDENTIALS = 'check the credentials and the region of the client'

/** What an operator can do about errors that every call meets, by their name. */
const ADVICE: Readonly<Record<string, string>> = {
  ResourceNotFoundException: 'create the table that tableDefinition() describes',
  AccessDeniedException:
    'allow dynamodb:GetItem, BatchGetItem, PutItem, DeleteItem and Query on the table, and Query ' +
    'on its indexes',
  UnrecognizedClientException: CHECK_CREDENTIALS,
  InvalidSignatureException: CHECK_CREDENTIALS,
  ExpiredTokenException: CHECK_CREDENTIALS,
  CredentialsProviderError: CHECK_CREDENTIALS,
  ProvisionedThroughputExceededException: 'raise the capacity of the table and its indexes',
  ThrottlingException: 'raise the capacity of the table and its indexes',
  RequestLimitExceeded: 'raise the capacity of the table and its indexes',
}

function adviceOn(cause: unknown): string | undefined {
  if (!(cause instanceof Error)) return undefined
  if (isInvalid(cause) && /index/i.test(cause.message)) {
    return 'give the table the indexes of tableDefinition()'
  }
  return Object.hasOwn(ADVICE, cause.name) ? ADVICE[cause.name] : undefined
}
