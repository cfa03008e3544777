/** Causes of an error that are checked: drivers and query builders wrap errors. */
const CAUSES_MAX = 8

const CODES: readonly unknown[] = ['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN']

/**
 * Whether the error means that no connection was opened, so nothing was sent. Proves nothing for a
 * client that retries by itself: its last error does not describe its first attempt.
 */
export function isNeverConnected(error: unknown): boolean {
  let current = error
  for (let depth = 0; depth < CAUSES_MAX && current instanceof Error; depth++) {
    if ('code' in current && CODES.includes(current.code)) return true
    current = current.cause
  }
  return false
}
