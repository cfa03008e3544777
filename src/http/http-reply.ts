import { InvalidOptionsError } from '../core/errors.ts'
import { describe, rejectUnknownOptions, wholeNumber } from '../core/options.ts'
import type { HttpReply } from './exchange.ts'
import { encodeReply, type SealHook, sealReply } from './reply-codec.ts'
import { resolveStoredHeaders, type HeaderPair } from './stored-headers.ts'

/** A reply as a handler gives it to `completeIn`. */
export interface GivenReply {
  status: number
  headers?: Readonly<Record<string, string>>
  /** Text and bytes as they are; anything else as JSON. */
  body?: unknown
}

/** A reply given by hand: the verdict on an `unknown` record of an HTTP route. */
export interface HttpReplyInput extends GivenReply {
  /** The route's `replyVersion`. @default 1 */
  replyVersion?: number
  /** The route's `seal` hook, where it has one. */
  seal?: SealHook
}

/**
 * The bytes an HTTP route replays, for `engine.resolve(…, { kind: 'completed', result })`.
 *
 * @example
 * ```ts
 * const result = await encodeHttpReply({ status: 201, body: { paymentId: 'pay_1' } })
 * await engine.resolve({ recordId }, { kind: 'completed', result })
 * ```
 */
export async function encodeHttpReply(input: HttpReplyInput): Promise<Uint8Array> {
  const known = ['status', 'headers', 'body', 'replyVersion', 'seal']
  rejectUnknownOptions('encodeHttpReply', input, known)
  const { replyVersion, seal, ...given } = input
  const bounds = { fallback: 1, min: 0, max: 65_535 }
  const schemaVersion = wholeNumber('encodeHttpReply.replyVersion', replyVersion, bounds)
  const reply = toReply('encodeHttpReply', given)
  return sealReply(encodeReply({ ...reply, elided: false, schemaVersion }), seal)
}

/** Checks what was given by hand. `where` is for messages. */
export function toReply(where: string, given: GivenReply): HttpReply {
  rejectUnknownOptions(where, given, ['status', 'headers', 'body'])
  const bounds = { fallback: Number.NaN, min: 200, max: 599 }
  const status = wholeNumber(`${where}.status`, given.status, bounds)
  if (Number.isNaN(status)) {
    throw new InvalidOptionsError(`${where}.status must be given, got ${describe(status)}`)
  }
  const headers = toHeaders(where, given.headers ?? {})
  const { bytes, mediaType } = toBody(given.body)
  if (mediaType !== undefined && !headers.some(([name]) => name === 'content-type')) {
    headers.push(['content-type', mediaType])
  }
  return { status, headers, body: bytes }
}

/** What a header may hold; anything else would fail in every replay. */
const HEADER_VALUE = /^[\t\x20-\x7e\x80-\xff]*$/

function toHeaders(where: string, headers: Readonly<Record<string, unknown>>): HeaderPair[] {
  resolveStoredHeaders(Object.keys(headers))
  return Object.entries(headers).map(([name, value]) => {
    if (typeof value === 'string' && HEADER_VALUE.test(value)) return [name.toLowerCase(), value]
    throw new InvalidOptionsError(
      `${where}.headers: ${name.toLowerCase()} cannot be ${describe(value)}`,
    )
  })
}

function toBody(body: unknown): { bytes: Uint8Array; mediaType: string | undefined } {
  if (body === undefined) return { bytes: new Uint8Array(0), mediaType: undefined }
  if (body instanceof Uint8Array) return { bytes: body, mediaType: 'application/octet-stream' }
  if (typeof body === 'string') {
    return { bytes: Buffer.from(body), mediaType: 'text/plain; charset=utf-8' }
  }
  const mediaType = 'application/json; charset=utf-8'
  return { bytes: Buffer.from(JSON.stringify(body)), mediaType }
}
