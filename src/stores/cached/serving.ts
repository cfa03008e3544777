/**
 * The two questions an entry must answer before it may speak for the durable store. A completed
 * record never changes until it expires, so an entry that was true once is true until then; after
 * that its key may have a new record, which only the durable store knows.
 */
import type { ClaimMode } from '../../core/store.ts'
import type { ReplyEntry } from './entry.ts'

/**
 * Entries that expire so soon are left to the durable store: for what the estimate of its clock
 * cannot know, and for a pause of this process that went unnoticed.
 */
export const MARGIN_MS = 1000

/** A worker takes what was accepted: its claims are few, and nearly none finds a reply. */
export function mayAskCache({ mode }: { readonly mode: ClaimMode }): boolean {
  return mode !== 'take'
}

/** Another request under the same key: what it gets is for the durable store to say. */
export function isSameRequest(entry: ReplyEntry, request: { fingerprint: string }): boolean {
  return entry.fingerprint === request.fingerprint
}

/** `latestMs` is the latest that the durable store's clock may show. */
export function isStillKept({ expiresAtMs }: { expiresAtMs: number }, latestMs: number): boolean {
  return latestMs + MARGIN_MS < expiresAtMs
}
