import { networkAdvice, wordsOf } from './store-advice.ts'

/** Every code this package throws. Each has a heading in `docs/reference/errors.md`. */
export const ERROR_CODES = [
  'INVALID_OPTIONS',
  'INVALID_REQUEST',
  'STORE_FAILED',
  'OUTCOME_NOT_RECORDED',
  'ENGINE_CLOSED',
  'LEASE_LOST',
  'NOT_EXECUTED',
  'OUTCOME_UNKNOWN',
  'OPERATION_CHANGED',
] as const

export type ErrorCode = (typeof ERROR_CODES)[number]

/**
 * Base of all errors thrown by this package. Branch on `code`, not on the class: two copies of
 * the package in one process have two classes but one set of codes.
 */
export abstract class OncekeyError extends Error {
  abstract readonly code: ErrorCode

  override get name(): string {
    return this.constructor.name
  }
}

/** An option was missing, out of range, unknown or contradictory. Thrown at construction. */
export class InvalidOptionsError extends OncekeyError {
  readonly code = 'INVALID_OPTIONS'
}

/** No record can be kept under this tenant, operation, key or fingerprint. None was. */
export class InvalidRequestError extends OncekeyError {
  readonly code = 'INVALID_REQUEST'
}

/**
 * Why a store call failed: `unavailable` says nothing about what it did; `rejected` says that it
 * wrote nothing because one of the rows cannot be stored (so its neighbours may be tried alone);
 * `overloaded` says that it was never sent because too much is waiting; `refused` that it was never
 * sent because the breaker is open.
 */
export type StoreFailure = 'unavailable' | 'rejected' | 'overloaded' | 'refused'

/** The store could not answer, so the work did not run. `cause` says why. */
export class StoreFailedError extends OncekeyError {
  readonly code = 'STORE_FAILED'
  readonly store: string
  readonly operation: string
  readonly failure: StoreFailure
  /** What to do about it, where that is known: for operators, never for clients. */
  readonly advice: string | undefined
  /** When to try again, where that is known. */
  readonly retryAfterMs: number | undefined
  /** The key is known to be in use: to run its work unprotected would be to run it twice. */
  keyInUse = false
  /** `false`: the request waited for the answer to another one and was never sent itself. */
  readonly wasSent: boolean
  /**
   * `true`: the call certainly changed nothing, and no copy of it is on its way to the store. A
   * claim that failed so need not be released.
   */
  readonly wroteNothing: boolean

  constructor(details: {
    readonly store: string
    readonly operation: string
    readonly failure?: StoreFailure
    readonly wasSent?: boolean
    /**
     * Said by a store that knows it. A connection error alone does not prove it: an earlier
     * statement of the same call may have been committed.
     *
     * @default what `wasSent` and `failure` say
     */
    readonly wroteNothing?: boolean
    readonly cause: unknown
    /** @default that of a network error, if it is one */
    readonly advice?: string | undefined
    readonly retryAfterMs?: number
  }) {
    const { store, operation, failure = 'unavailable', cause } = details
    const advice = details.advice ?? networkAdvice(cause)
    const hint = advice === undefined ? '' : ` (${advice})`
    super(`${store} store failed to ${operation} (${failure})${why(cause)}${hint}`, { cause })
    this.store = store
    this.operation = operation
    this.failure = failure
    this.wasSent = details.wasSent ?? (failure !== 'overloaded' && failure !== 'refused')
    this.wroteNothing = details.wroteNothing ?? (!this.wasSent || failure === 'rejected')
    this.advice = advice
    this.retryAfterMs = details.retryAfterMs
  }

  /** The same failure, for a request that was to share the answer. */
  asUnsent(): StoreFailedError {
    const { store, operation, failure, cause, advice } = this
    return new StoreFailedError({ store, operation, failure, cause, advice, wasSent: false })
  }
}

/**
 * The work ran, but its result could not be recorded in time. It is still being recorded in the
 * background; until then nobody may report it as done.
 */
export class OutcomeNotRecordedError extends OncekeyError {
  readonly code = 'OUTCOME_NOT_RECORDED'
  readonly recordId: string

  constructor(recordId: string, cause: unknown) {
    super(`the work of record ${recordId} ran, but its result is not recorded yet`, { cause })
    this.recordId = recordId
  }
}

/** `engine.close()` was called: no new work is taken. */
export class EngineClosedError extends OncekeyError {
  readonly code = 'ENGINE_CLOSED'

  constructor() {
    super('the engine is closing and takes no new work; another node, or a later retry, will')
  }
}

/** The lease under which this work ran is gone, so another attempt may be running. */
export class LeaseLostError extends OncekeyError {
  readonly code = 'LEASE_LOST'
  readonly recordId: string

  constructor(recordId: string) {
    super(`the lease on record ${recordId} is lost; stop before the next outside effect`)
    this.recordId = recordId
  }
}

/**
 * Throw this from a handler that failed **before** it had any effect. It is proof that the key
 * may be run again, even where an outside effect had been prepared.
 */
export class NotExecutedError extends OncekeyError {
  readonly code = 'NOT_EXECUTED'

  constructor(message = 'the work was not executed', options?: ErrorOptions) {
    super(message, options)
  }
}

/**
 * Throw this from a handler that cannot know whether its effect happened. The key becomes
 * `unknown`: nobody runs it again until a verdict is given.
 */
export class OutcomeUnknownError extends OncekeyError {
  readonly code = 'OUTCOME_UNKNOWN'

  constructor(message = 'the outcome of the work is unknown', options?: ErrorOptions) {
    super(message, options)
  }
}

/**
 * The phases of an operation are not those that are on record: it was changed while some of it was
 * under way. Nothing was done; its message says what to do.
 */
export class OperationChangedError extends OncekeyError {
  readonly code = 'OPERATION_CHANGED'
}

export function isOncekeyError(error: unknown): error is OncekeyError {
  if (!(error instanceof Error && 'code' in error)) return false
  return ERROR_CODES.some((code) => code === error.code)
}

export function hasCode<Code extends ErrorCode>(
  error: unknown,
  code: Code,
): error is OncekeyError & { readonly code: Code } {
  return isOncekeyError(error) && error.code === code
}

/** The store was reached and cannot take what it was given; nothing of it was written. */
export function isRejected(error: unknown): boolean {
  return hasCode(error, 'STORE_FAILED') && 'failure' in error && error.failure === 'rejected'
}

/** The call may have been carried out, and the store may be down. So with any unknown error. */
export function isUnavailable(error: unknown): boolean {
  if (!hasCode(error, 'STORE_FAILED')) return true
  return !('failure' in error) || error.failure === 'unavailable'
}

function why(cause: unknown): string {
  return cause instanceof Error ? `: ${wordsOf(cause)}` : ''
}
