import { mediaTypeOf } from './fingerprint-body.ts'

/** Sent piece by piece for as long as the client stays. */
const ENDLESS: ReadonlySet<string> = new Set(['text/event-stream', 'multipart/x-mixed-replace'])

/**
 * Whether a reply is a stream of events. Its client waits for each of them, so it cannot be held
 * back until it is whole: it is recorded without its body, like one that is too large.
 */
export function isEndless(contentType: string): boolean {
  return ENDLESS.has(mediaTypeOf(contentType))
}
