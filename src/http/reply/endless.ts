import { mediaTypeOf } from '../fingerprint/fingerprint-body.ts'

/** Types of replies that are sent in parts for as long as the client stays connected. */
const ENDLESS: ReadonlySet<string> = new Set(['text/event-stream', 'multipart/x-mixed-replace'])

/**
 * Whether a reply is a stream of events. The client waits for each event, so the reply cannot be
 * held until it is complete. It is recorded without its body, like a reply that is too large.
 */
export function isEndless(contentType: string): boolean {
  return ENDLESS.has(mediaTypeOf(contentType))
}
