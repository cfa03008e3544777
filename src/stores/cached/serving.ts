/**
 * Checks of an entry before it answers a claim instead of the durable store. A completed record
 * does not change until it expires, so a valid entry stays valid until then; afterwards the key may
 * have a new record, which only the durable store knows.
 */
import type { ClaimMode } from '../../core/store/store.ts'
import type { ReplyEntry } from './entry.ts'

/**
 * Entries that expire within this time are not used: the margin covers errors in the estimate of
 * the durable store's clock, and undetected pauses of this process.
 */
export const MARGIN_MS = 1000

/** A worker claims accepted work: such claims are few, and almost none has a reply. */
export function mayAskCache({ mode }: { readonly mode: ClaimMode }): boolean {
  return mode !== 'take'
}

/** `false` if the key was reused for another request: the durable store decides about that. */
export function isSameRequest(entry: ReplyEntry, request: { fingerprint: string }): boolean {
  return entry.fingerprint === request.fingerprint
}

/** `latestMs` is the latest time that the durable store's clock may show. */
export function isStillKept({ expiresAtMs }: { expiresAtMs: number }, latestMs: number): boolean {
  return latestMs + MARGIN_MS < expiresAtMs
}
