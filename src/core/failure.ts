import { hasCode } from './errors.ts'
import { describe } from './options.ts'
import { warnOnce } from './warn.ts'

/** What `onError` is told about work that failed. */
export interface Failure {
  /** What was thrown, where that is known. */
  readonly error: unknown
  /** Something may have been thrown, but whoever reports the failure could not see what. */
  readonly blind: boolean
  /** An outside effect was begun under this attempt (`downstreamKey()`), its result unrecorded. */
  readonly effectBegun: boolean
  /** The error is the one with which the store's transaction of this attempt was rolled back. */
  readonly rolledBack: boolean
  readonly attempt: number
}

export type FailureChoice = 'retry' | 'store' | 'unknown'

export type OnError = 'auto' | FailureChoice | ((failure: Failure) => FailureChoice)

/** What the record is told: may it be run again, and how is that known? */
export type FailureVerdict = 'proven' | 'declared' | 'store' | 'unknown'

/**
 * Decides what failed work means for its key. The work's own word comes first
 * (`NotExecutedError`, `OutcomeUnknownError`), then the route's, then caution.
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
      // A policy that answers nonsense has decided nothing, and may not cause a second run.
      return 'unknown'
  }
}

function judgeByDefault(failure: Failure): FailureVerdict {
  if (mayHaveActed(failure)) return 'unknown'
  if (isProven(failure)) return 'proven'
  return failure.blind ? 'unknown' : 'declared'
}

/** Whether an outside effect may have happened, as far as the engine itself can tell. */
export function mayHaveActed({
  effectBegun,
  error,
}: Pick<Failure, 'effectBegun' | 'error'>): boolean {
  return effectBegun || looksLikeLostCall(error)
}

/** A rollback proves nothing about an outside effect that was begun beside it. */
function isProven({ rolledBack, effectBegun }: Failure): boolean {
  return rolledBack && !effectBegun
}

/** A policy that throws has decided nothing either; the error to throw on is the work's own. */
function ask(onError: (failure: Failure) => FailureChoice, failure: Failure): FailureChoice {
  try {
    return onError(failure)
  } catch (error) {
    const why = error instanceof Error ? error.message : describe(error)
    warnOnce(`onError threw, so the outcome counts as unknown: ${why}`, 'onError threw')
    return 'unknown'
  }
}

/** Names and codes under which a call may have reached the other side although it failed here. */
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

/** The call was never sent: the name did not resolve, or nobody listened. */
const NOT_SENT_CODES: ReadonlySet<string> = new Set(['ECONNREFUSED', 'ENOTFOUND'])

/** Causes are followed this far; a longer chain is no longer about the call. */
const CAUSES_MAX = 8

/**
 * Whether an error looks like an outside call whose answer was lost. Of several calls that failed
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
    // Our own store's trouble says nothing about an outside call.
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

/** A short name for what went wrong, as the record keeps it for operators. */
export function errorCodeOf(error: unknown): string | undefined {
  if (error === undefined) return undefined
  if (!(error instanceof Error)) return 'thrown_value'
  // No database takes a NUL or half of a character, and a record must not stay open for that.
  const name = (firstCode(error) || error.name).replaceAll('\0', '')
  return name.slice(0, ERROR_CODE_LENGTH_MAX).toWellFormed()
}

/** `fetch failed` has no code of its own; what it was caused by tells more than its name. */
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
