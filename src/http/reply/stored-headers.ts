import { describe } from '../../core/options.ts'
import { InvalidOptionsError } from '../../core/errors.ts'

/**
 * Headers that every replay repeats, because they describe the reply itself. Headers that describe
 * the connection, the time or the caller are made anew for each request.
 */
export const STORED_HEADERS_DEFAULT: readonly string[] = [
  'cache-control',
  'content-disposition',
  'content-encoding', // The stored bytes are encoded: without it a client cannot read them.
  'content-language',
  'content-location',
  'content-type',
  'etag',
  'last-modified',
  'link',
  'location',
  'retry-after', // In a 202 of the handler: when to poll again.
  'vary',
]

const HOP_BY_HOP = 'it belongs to one connection (RFC 9110, section 7.6.1), not to the reply'
const CREDENTIALS = 'a replay would give one caller the session or challenge of another'
const PER_MESSAGE = 'the server computes it for each message; an old value would be wrong'
const OURS = 'oncekey sets it itself on replies under a key'

/** Headers that are never stored, with the reason. `whyForbidden` adds `proxy-*`. */
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

/**
 * Control characters would split a replay, or make sending it fail. Characters above U+00FF do not
 * fit into a byte.
 */
const HEADER_VALUE = /^[\t\x20-\x7e\x80-\xff]*$/

export const isHeaderName = (name: string): boolean => HEADER_NAME.test(name)
export const isHeaderValue = (value: string): boolean => HEADER_VALUE.test(value)

/** Known to be valid, so their characters need no check. Nearly all recorded names are usual. */
const USUAL: ReadonlySet<string> = new Set(STORED_HEADERS_DEFAULT)
export const isUsualHeader = (name: string): boolean => USUAL.has(name)

/** One header line, as sent. A header that was sent twice is two pairs. */
export type HeaderPair = readonly [name: string, value: string]

/**
 * The default names and `extra`, in lower case. Throws for a header that no replay may repeat.
 * `where` names the source of `extra` in messages.
 */
export function resolveStoredHeaders(
  extra: readonly string[] = [],
  where = 'storeHeaders',
): ReadonlySet<string> {
  if (!Array.isArray(extra)) {
    throw new InvalidOptionsError(
      `${where} must be an array of header names, got ${describe(extra)}`,
    )
  }
  const allowed = new Set(STORED_HEADERS_DEFAULT)
  for (const name of extra as readonly unknown[]) {
    if (typeof name !== 'string' || !isHeaderName(name)) {
      throw new InvalidOptionsError(`${where}: ${describe(name)} is not a header name`)
    }
    const lower = name.toLowerCase()
    const why = whyForbidden(lower)
    if (why !== undefined) {
      throw new InvalidOptionsError(`${where}: ${lower} cannot be stored, because ${why}`)
    }
    allowed.add(lower)
  }
  return allowed
}

/**
 * The allowed pairs, in their order, with names in lower case. A header that the `Connection` of
 * the reply names is dropped even if it is allowed, because it is meant for one hop.
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
 * Removes pairs that no replay may repeat. A record has such a pair only if other software wrote
 * it, or an earlier release that did not forbid the header.
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

/**
 * Headers that a client of a protected route may need to read. A browser hides them from scripts of
 * another origin unless `Access-Control-Expose-Headers` names them.
 *
 * @example
 * ```ts
 * app.use(cors({ exposedHeaders: [...EXPOSED_HEADERS] }))
 * ```
 */
export const EXPOSED_HEADERS = [
  'Idempotent-Replayed',
  'Idempotent-Body-Elided',
  'Idempotency-Expires',
  'Retry-After',
  'Location',
  'Link',
] as const
