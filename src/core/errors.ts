import { networkAdvice, messageOf } from './health/store-advice.ts'

/** The code of each error of this package. Each has a heading in `docs/reference/errors.md`. */
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
 * The base class of all errors of this package. Branch on `code`, not on the class: two copies of
 * the package in one process have two classes, but one set of codes.
 */
export abstract class OncekeyError extends Error {
  abstract readonly code: ErrorCode

  override get name(): string {
    return this.constructor.name
  }
}

/**
 * An option is missing, out of range, unknown or contradictory. Thrown when an object is created,
 * and at run time if the calling code is wrong. The message names the option and its value.
 */
export class InvalidOptionsError extends OncekeyError {
  readonly code = 'INVALID_OPTIONS'
}

/** The tenant, operation, key or fingerprint is not valid for a record. Nothing was recorded. */
export class InvalidRequestError extends OncekeyError {
  readonly code = 'INVALID_REQUEST'
}

/**
 * Why a store call failed.
 *
 * - `unavailable`: no answer, or an error. The call may have been carried out.
 * - `rejected`: nothing was written, because a row cannot be stored. Other rows of the same batch
 *   may be tried alone.
 * - `overloaded`: the call was never sent, because too many calls wait.
 * - `refused`: the call was never sent, because the breaker is open.
 */
export type StoreFailure = 'unavailable' | 'rejected' | 'overloaded' | 'refused'

/**
 * The store could not answer. From `engine.run` it means that the work did not run, unless the work
 * threw this error itself. `cause` has the error of the store.
 */
export class StoreFailedError extends OncekeyError {
  readonly code = 'STORE_FAILED'
  readonly store: string
  readonly operation: string
  readonly failure: StoreFailure
  /** Advice for an operator, if there is any. Do not send it to clients. */
  readonly advice: string | undefined
  /** After this time the call may be tried again. Set if the breaker refused the call. */
  readonly retryAfterMs: number | undefined
  /** The key is known to be in use: running its work unprotected would run it twice. */
  keyInUse = false
  /** `false`: this request was never sent. It was refused, or it shared the call of another. */
  readonly wasSent: boolean
  /**
   * `true`: the call certainly changed nothing, and no copy of it is on its way to the store. Such
   * a claim needs no release.
   */
  readonly wroteNothing: boolean

  constructor(details: {
    readonly store: string
    readonly operation: string
    /** @default 'unavailable' */
    readonly failure?: StoreFailure
    /** @default false if `failure` is `overloaded` or `refused`, otherwise true */
    readonly wasSent?: boolean
    /**
     * Set by a store that is certain. A connection error alone is no proof: an earlier statement of
     * the same call may have been committed.
     *
     * @default true if the call was not sent or was `rejected`, otherwise false
     */
    readonly wroteNothing?: boolean
    readonly cause: unknown
    /** @default the advice for a network error, if `cause` is one */
    readonly advice?: string | undefined
    readonly retryAfterMs?: number
  }) {
    const { store, operation, failure = 'unavailable', cause } = details
    const advice = details.advice ?? networkAdvice(cause)
    const hint = advice === undefined ? '' : ` (${advice})`
    super(`${store} store failed to ${operation} (${failure})${causeText(cause)}${hint}`, { cause })
    this.store = store
    this.operation = operation
    this.failure = failure
    this.wasSent = details.wasSent ?? (failure !== 'overloaded' && failure !== 'refused')
    this.wroteNothing = details.wroteNothing ?? (!this.wasSent || failure === 'rejected')
    this.advice = advice
    this.retryAfterMs = details.retryAfterMs
  }

  /** Returns the same failure for a request that waited to share the answer. */
  asUnsent(): StoreFailedError {
    const { store, operation, failure, cause, advice } = this
    return new StoreFailedError({ store, operation, failure, cause, advice, wasSent: false })
  }
}

/**
 * The work ran, but its result could not be recorded in time. Recording continues in the
 * background. Do not report the work as done or as failed until then.
 */
export class OutcomeNotRecordedError extends OncekeyError {
  readonly code = 'OUTCOME_NOT_RECORDED'
  readonly recordId: string

  constructor(recordId: string, cause: unknown) {
    super(`the work of record ${recordId} ran, but its result is not recorded yet`, { cause })
    this.recordId = recordId
  }
}

/** `engine.close()` was called: the engine takes no new work. */
export class EngineClosedError extends OncekeyError {
  readonly code = 'ENGINE_CLOSED'

  constructor() {
    super('the engine is closing and takes no new work; retry later, or on another node')
  }
}

/** This attempt no longer holds its key: another attempt may run. */
export class LeaseLostError extends OncekeyError {
  readonly code = 'LEASE_LOST'
  readonly recordId: string

  constructor(recordId: string) {
    super(`the lease on record ${recordId} is lost; stop before the next outside effect`)
    this.recordId = recordId
  }
}

/**
 * Throw this from a handler that failed **before** it had any effect. It counts as proof: the key
 * may run again, even after `downstreamKey()`.
 */
export class NotExecutedError extends OncekeyError {
  readonly code = 'NOT_EXECUTED'

  constructor(message = 'the work was not executed', options?: ErrorOptions) {
    super(message, options)
  }
}

/**
 * Throw this from a handler that cannot know whether its effect happened. The key becomes
 * `unknown`: it does not run again until a verdict.
 */
export class OutcomeUnknownError extends OncekeyError {
  readonly code = 'OUTCOME_UNKNOWN'

  constructor(message = 'the outcome of the work is unknown', options?: ErrorOptions) {
    super(message, options)
  }
}

/**
 * The phases of an operation differ from the recorded ones: its code was changed while operations
 * were in progress. This attempt did nothing. The message says what to do.
 */
export class OperationChangedError extends OncekeyError {
  readonly code = 'OPERATION_CHANGED'
}

/** Recognises errors of this package by their code, also those of another copy of it. */
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

/** The store answered that it cannot store a row, and wrote nothing. */
export function isRejected(error: unknown): boolean {
  return hasCode(error, 'STORE_FAILED') && 'failure' in error && error.failure === 'rejected'
}

/**
 * The call may have been carried out, and the store may be down. Errors of other kinds count as
 * unavailable, too.
 */
export function isUnavailable(error: unknown): boolean {
  if (!hasCode(error, 'STORE_FAILED')) return true
  return !('failure' in error) || error.failure === 'unavailable'
}

function causeText(cause: unknown): string {
  return cause instanceof Error ? `: ${messageOf(cause)}` : ''
}
