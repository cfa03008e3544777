/** Decides what a failure of the work means for its key. */
import { hasCode } from '../errors.ts'
import { describe } from '../options.ts'
import { warnOnce } from '../warn.ts'

/** The argument of `onError`: what is known about the failure. */
export interface Failure {
  /** The error that was thrown, if it is known. */
  readonly error: unknown
  /** The failure is known only by its reply: an error may have been thrown, but was not seen. */
  readonly blind: boolean
  /** The attempt has begun an outside effect (`downstreamKey()`) whose result is not recorded. */
  readonly effectBegun: boolean
  /** The error is the one that rolled back the store transaction of this attempt. */
  readonly rolledBack: boolean
  readonly attempt: number
}

export type FailureChoice = 'retry' | 'store' | 'unknown'

export type OnError = 'auto' | FailureChoice | ((failure: Failure) => FailureChoice)

/**
 * `proven` and `declared` free the key for a retry, and say how it is known that there was no
 * effect. `store` records the result, `unknown` marks the record for reconciliation.
 */
export type FailureVerdict = 'proven' | 'declared' | 'store' | 'unknown'

/**
 * Errors that state the outcome (`NotExecutedError`, `OutcomeUnknownError`) decide first, then the
 * `onError` of the route. The default is cautious.
 */
export function judgeFailure(failure: Failure, onError: OnError): FailureVerdict {
  if (hasCode(failure.error, 'OUTCOME_UNKNOWN')) return 'unknown'
  if (hasCode(failure.error, 'NOT_EXECUTED')) return 'proven'
  if (onError === 'auto') return judgeByDefault(failure)

  const choice = typeof onError === 'function' ? ask(onError, failure) : onError
  switch (choice) {
    case 'retry':
      return isProven(failure) ? 'proven' : 'declared'
    case 'store':
    case 'unknown':
      return choice
    default:
      // An `onError` that returns another value decides nothing, so the work must not run again.
      return 'unknown'
  }
}

function judgeByDefault(failure: Failure): FailureVerdict {
  if (mayHaveActed(failure)) return 'unknown'
  if (isProven(failure)) return 'proven'
  return failure.blind ? 'unknown' : 'declared'
}

/** Whether an outside effect may have happened, as far as the engine can tell. */
export function mayHaveActed({
  effectBegun,
  error,
}: Pick<Failure, 'effectBegun' | 'error'>): boolean {
  return effectBegun || looksLikeLostCall(error)
}

/** A rollback proves nothing about an outside effect that the attempt has begun. */
function isProven({ rolledBack, effectBegun }: Failure): boolean {
  return rolledBack && !effectBegun
}

/** An `onError` that throws has decided nothing. The caller gets the error of the work. */
function ask(onError: (failure: Failure) => FailureChoice, failure: Failure): FailureChoice {
  try {
    return onError(failure)
  } catch (error) {
    const why = error instanceof Error ? error.message : describe(error)
    warnOnce(`onError threw, so the outcome counts as unknown: ${why}`, 'onError threw')
    return 'unknown'
  }
}

/** Error names and codes of calls that may have reached the provider although they failed here. */
const LOST_NAMES: ReadonlySet<string> = new Set([
  'AbortError',
  'TimeoutError',
  'RequestTimeoutError',
])
const LOST_CODES: ReadonlySet<string> = new Set([
  'ABORT_ERR',
  'ECONNABORTED',
  'ECONNRESET',
  'EPIPE',
  'ERR_CANCELED',
  'ERR_STREAM_PREMATURE_CLOSE',
  'ESOCKETTIMEDOUT',
  'ETIMEDOUT',
  'UND_ERR_ABORTED',
  'UND_ERR_BODY_TIMEOUT',
  'UND_ERR_HEADERS_TIMEOUT',
  'UND_ERR_SOCKET',
])
const LOST_MESSAGE = /fetch failed|socket hang up|network error|timed? ?out\b|\baborted\b/i

/** The call was never sent: the name did not resolve, or the connection was refused. */
const NOT_SENT_CODES: ReadonlySet<string> = new Set(['ECONNREFUSED', 'ENOTFOUND'])

/** Causes are followed to this depth; deeper ones say nothing about the call. */
const CAUSES_MAX = 8

/**
 * Whether an error looks like an outside call whose answer was lost. If several calls failed
 * together (`Promise.any`), one lost call is enough.
 */
export function looksLikeLostCall(error: unknown): boolean {
  if (isLost(error)) return true
  if (!(error instanceof AggregateError) || codeOf(error) !== '') return false
  return error.errors.some(isLost)
}

function isLost(error: unknown): boolean {
  let lost = false
  let current: unknown = error
  for (let depth = 0; depth < CAUSES_MAX && current instanceof Error; depth++) {
    // A failure of the store says nothing about an outside call.
    if (hasCode(current, 'STORE_FAILED')) return false
    const code = codeOf(current)
    if (NOT_SENT_CODES.has(code)) return false
    lost ||=
      LOST_NAMES.has(current.name) || LOST_CODES.has(code) || LOST_MESSAGE.test(current.message)
    current = current.cause
  }
  return lost
}

function codeOf(error: Error): string {
  return 'code' in error && typeof error.code === 'string' ? error.code : ''
}

/** Returns a short name of the error, which the record keeps for operators. */
export function errorCodeOf(error: unknown): string | undefined {
  if (error === undefined) return undefined
  if (!(error instanceof Error)) return 'thrown_value'
  // Databases reject NUL and lone surrogates, and a rejected code would leave the record open.
  const name = (firstCode(error) || error.name).replaceAll('\0', '')
  return name.slice(0, ERROR_CODE_LENGTH_MAX).toWellFormed()
}

/** Errors such as `fetch failed` have no code: the code of the cause says more than the name. */
function firstCode(error: Error): string {
  let current: unknown = error
  for (let depth = 0; depth < CAUSES_MAX && current instanceof Error; depth++) {
    const code = codeOf(current)
    if (code !== '') return code
    current = current.cause
  }
  return ''
}

const ERROR_CODE_LENGTH_MAX = 100
