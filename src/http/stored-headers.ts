import { describe } from '../core/options.ts'
import { InvalidOptionsError } from '../core/errors.ts'

/**
 * What a replay repeats without being asked: headers that describe the reply itself. Whatever
 * describes the connection, the moment or the caller is made anew for each request.
 */
export const STORED_HEADERS_DEFAULT: readonly string[] = [
  'cache-control',
  'content-disposition',
  'content-encoding', // The stored bytes are the encoded ones; without it they are noise.
  'content-language',
  'content-location',
  'content-type',
  'etag',
  'last-modified',
  'link',
  'location',
  'retry-after', // A 202 of the handler's own says when to ask again; so must its replay.
  'vary',
]

const HOP_BY_HOP = 'it belongs to one connection (RFC 9110, section 7.6.1), not to the reply'
const CREDENTIALS = 'a replay would hand one caller the session or challenge of another'
const PER_MESSAGE = 'the server computes it for each message; an old value would be wrong'
const OURS = 'this package sets it itself on every reply under a key'

/** Never stored, and why. `proxy-*` is added by `whyForbidden`. */
const FORBIDDEN: ReadonlyMap<string, string> = new Map([
  ['connection', HOP_BY_HOP],
  ['keep-alive', HOP_BY_HOP],
  ['te', HOP_BY_HOP],
  ['trailer', HOP_BY_HOP],
  ['transfer-encoding', HOP_BY_HOP],
  ['upgrade', HOP_BY_HOP],
  ['http2-settings', HOP_BY_HOP],
  ['set-cookie', CREDENTIALS],
  ['set-cookie2', CREDENTIALS],
  ['www-authenticate', CREDENTIALS],
  ['authentication-info', CREDENTIALS],
  ['age', PER_MESSAGE],
  ['content-length', PER_MESSAGE],
  ['date', PER_MESSAGE],
  ['idempotent-replayed', OURS],
  ['idempotency-expires', OURS],
])

const HEADER_NAME = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/

/** Control characters would fail when a replay is sent, or split it; others have no byte. */
const HEADER_VALUE = /^[\t\x20-\x7e\x80-\xff]*$/

export const isHeaderName = (name: string): boolean => HEADER_NAME.test(name)
export const isHeaderValue = (value: string): boolean => HEADER_VALUE.test(value)

/** Names that need no look at each of their characters: nearly all that are ever read. */
const USUAL: ReadonlySet<string> = new Set(STORED_HEADERS_DEFAULT)
export const isUsualHeader = (name: string): boolean => USUAL.has(name)

/** One header, as sent. A header sent twice is two pairs. */
export type HeaderPair = readonly [name: string, value: string]

/** The default list and the route's own, in lower case. Throws on a header no replay may repeat. */
export function resolveStoredHeaders(extra: readonly string[] = []): ReadonlySet<string> {
  if (!Array.isArray(extra)) {
    throw new InvalidOptionsError(
      `storeHeaders must be an array of header names, got ${describe(extra)}`,
    )
  }
  const allowed = new Set(STORED_HEADERS_DEFAULT)
  for (const name of extra as readonly unknown[]) {
    if (typeof name !== 'string' || !isHeaderName(name)) {
      throw new InvalidOptionsError(`storeHeaders: ${describe(name)} is no header name`)
    }
    const lower = name.toLowerCase()
    const why = whyForbidden(lower)
    if (why !== undefined) {
      throw new InvalidOptionsError(`storeHeaders: ${lower} cannot be stored, because ${why}`)
    }
    allowed.add(lower)
  }
  return allowed
}

/**
 * The pairs worth storing, in their order, names in lower case. A header that the reply's own
 * `Connection` names is dropped even if allowed: it was meant for one hop.
 */
export function pickStored(
  headers: Iterable<HeaderPair>,
  allowed: ReadonlySet<string>,
): HeaderPair[] {
  const picked: HeaderPair[] = []
  let hops: Set<string> | undefined
  for (const [name, value] of headers) {
    const lower = name.toLowerCase()
    if (allowed.has(lower)) picked.push([lower, value])
    else if (lower === 'connection') hops = addHops(hops, value)
  }
  return hops === undefined ? picked : picked.filter(([name]) => !hops.has(name))
}

/**
 * Stored pairs without those that no replay may repeat. Such a pair is in a record only where
 * other software wrote it, or an earlier release that did not know the header.
 */
export function dropForbidden(headers: readonly HeaderPair[]): readonly HeaderPair[] {
  let hops: Set<string> | undefined
  for (const [name, value] of headers) {
    if (name.toLowerCase() === 'connection') hops = addHops(hops, value)
  }
  return headers.filter(([name]) => {
    const lower = name.toLowerCase()
    return whyForbidden(lower) === undefined && hops?.has(lower) !== true
  })
}

function whyForbidden(name: string): string | undefined {
  return FORBIDDEN.get(name) ?? (name.startsWith('proxy-') ? HOP_BY_HOP : undefined)
}

function addHops(hops = new Set<string>(), connection: string): Set<string> {
  for (const name of connection.split(',')) hops.add(name.trim().toLowerCase())
  return hops
}
