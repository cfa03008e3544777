/** Failures of the store in a transaction of the handler. The guard answers them. */
import { hasCode, isRejected } from '../../core/errors.ts'
import { RETRY_AFTER_SECONDS_MIN } from '../../protocol/limits.ts'
import type { Produced } from './exchange.ts'

/**
 * Whether a transaction failed because of the store: it could not begin, or its commit is
 * uncertain. A value that the store rejects does not count, because a retry would fail again.
 */
export function isStoreFailure(error: unknown): error is Error {
  if (hasCode(error, 'OUTCOME_UNKNOWN')) return true
  return hasCode(error, 'STORE_FAILED') && !isRejected(error)
}

/** The header of replies that a framework has made from such an error. */
const MARK = 'idempotency-transaction-failed'

/**
 * Adds a status and headers to an error. In an Express app without `idempotencyErrors()`, the guard
 * sees no errors, but the error handler of Express sends their status and headers.
 */
export function markForFrameworks(error: Error): void {
  const headers = { [MARK]: 'true', 'retry-after': String(RETRY_AFTER_SECONDS_MIN) }
  for (const [name, value] of Object.entries({ status: 503, statusCode: 503, headers })) {
    // Properties are not enumerable, so that a log of the error does not show them.
    Object.defineProperty(error, name, { value, configurable: true, writable: true })
  }
}

export function isMarked(produced: Produced): boolean {
  const { headers } = produced.kind === 'reply' ? produced.reply : produced
  return headers.some(([name]) => name.toLowerCase() === MARK)
}
