/** Failures of the store that reach a handler: they are ours to answer, not the handler's. */
import { hasCode, isRejected } from '../core/errors.ts'
import { RETRY_AFTER_SECONDS_MIN } from '../protocol/limits.ts'
import type { Produced } from './exchange.ts'

/**
 * Whether a transaction failed because of the store: it could not begin, or its commit is not
 * certain. A store that rejects a value would reject it again, so that is no reason to retry.
 */
export function isStoreTrouble(error: unknown): error is Error {
  if (hasCode(error, 'OUTCOME_UNKNOWN')) return true
  return hasCode(error, 'STORE_FAILED') && !isRejected(error)
}

/** By this header the guard recognises a reply that a framework made of such an error. */
const MARK = 'idempotency-transaction-failed'

/**
 * Adds what frameworks read of an error. An Express app without `idempotencyErrors()` shows the
 * guard no errors, but its own error handler sends their status and headers.
 */
export function markForFrameworks(error: Error): void {
  const headers = { [MARK]: 'true', 'retry-after': String(RETRY_AFTER_SECONDS_MIN) }
  for (const [name, value] of Object.entries({ status: 503, statusCode: 503, headers })) {
    // Not enumerable: a log of the error shows the error, not this.
    Object.defineProperty(error, name, { value, configurable: true, writable: true })
  }
}

export function isMarked(produced: Produced): boolean {
  const { headers } = produced.kind === 'reply' ? produced.reply : produced
  return headers.some(([name]) => name.toLowerCase() === MARK)
}
