/** How far down the causes of an error are looked at: drivers and query builders wrap errors. */
const CAUSES_MAX = 8

const CODES: readonly unknown[] = ['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN']

/**
 * Whether the error says that no connection was opened, so that nothing was sent. Not for clients
 * that send a call again by themselves: their last error says nothing about the first try.
 */
export function isNeverConnected(error: unknown): boolean {
  let current = error
  for (let depth = 0; depth < CAUSES_MAX && current instanceof Error; depth++) {
    if ('code' in current && CODES.includes(current.code)) return true
    current = current.cause
  }
  return false
}
