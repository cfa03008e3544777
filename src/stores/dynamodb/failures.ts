/** Classifies errors of the service, and wraps them for the caller. */
import { ValueFault } from '../kit/value-fault.ts'
import { StoreFailedError, type StoreFailure } from '../../core/errors.ts'
import type { FoundItem } from './client.ts'

/** The condition of a write failed. `Item`: the item that the service found, if it returns it. */
export function isConditionFailed(error: unknown): error is Error & { Item?: FoundItem } {
  return error instanceof Error && error.name === 'ConditionalCheckFailedException'
}

/**
 * A row has failed with `cause` and has changed nothing. Wraps the error instead of marking it,
 * because all calls of an aborted signal share one error object, its reason.
 */
export class NothingWritten extends Error {
  constructor(cause: unknown) {
    super('nothing was written', { cause })
  }
}

/**
 * Wraps every error of the store. `isAlone`: the call had only this row. Otherwise other rows of
 * the call may have been written, and `rejected` would be wrong.
 *
 * Throttling is `unavailable` and not `overloaded`: the call was sent and counts for the breaker.
 */
export function storeFailed(operation: string, error: unknown, isAlone = false): StoreFailedError {
  const cause = error instanceof NothingWritten ? error.cause : error
  if (cause instanceof StoreFailedError) return cause
  const isRejected = cause instanceof ValueFault || (isAlone && isInvalid(cause))
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

/** Advice for operators on errors that affect every call, by name of the error. */
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
