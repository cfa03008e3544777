import { NO_BYTES } from '../../core/bytes.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, rejectUnknownOptions, wholeNumber } from '../../core/options.ts'
import { resolveEncryption, type Encryption } from '../../core/encryption.ts'
import type { EventSubject } from '../../core/events.ts'
import type { HttpReply } from '../guard/exchange.ts'
import { encodeReply, type StoredReply } from './reply-codec.ts'
import { storedForm } from './reply-encryption.ts'
import { isHeaderValue, resolveStoredHeaders, type HeaderPair } from './stored-headers.ts'

/** A reply that a handler passes to `completeIn`, or returns from `transaction`. */
export interface ReplyInit {
  /** 200 to 599. */
  status: number
  /**
   * All of these are recorded and replayed. A header that no replay may repeat, such as
   * `Set-Cookie`, is an error.
   *
   * @default none
   */
  headers?: Readonly<Record<string, string>>
  /**
   * Strings and `Uint8Array`s are sent unchanged, other values as JSON. Sets the `Content-Type`,
   * unless `headers` has one: `text/plain`, `application/octet-stream` or `application/json`.
   *
   * @default an empty body
   */
  body?: unknown
}

/** A reply for `encodeHttpReply`: the verdict on an `unknown` record of an HTTP route. */
export interface HttpReplyInput extends ReplyInit {
  /** The `replyVersion` of the route. @default 1 */
  replyVersion?: number
  /**
   * The `encryption` of the route. A route with `requireEncryption` replays no reply without it.
   *
   * @default none: the reply is stored unencrypted
   */
  encryption?: Encryption
}

/** One reply for all abandoned records. It is bound to no record, so it cannot be encrypted. */
export type AbandonedReplyInput = Omit<HttpReplyInput, 'encryption'>

/**
 * Encodes a reply as an HTTP route replays it, for
 * `engine.resolve(…, { kind: 'completed', result })`. The bytes are bound to `record`, which comes
 * from `engine.read`: in any other record they are unreadable.
 *
 * @example
 * ```ts
 * const record = await engine.read({ recordId })
 * if (record === undefined) throw new Error('there is no such record')
 * const result = await encodeHttpReply(record, { status: 201, body: { paymentId: 'pay_1' } })
 * await engine.resolve({ recordId, attempt: record.attempt }, { kind: 'completed', result })
 * ```
 */
export async function encodeHttpReply(
  record: EventSubject,
  input: HttpReplyInput,
): Promise<Uint8Array> {
  const where = 'encodeHttpReply'
  checkRecord(where, record)
  rejectUnknownOptions(where, input, ['status', 'headers', 'body', 'replyVersion', 'encryption'])
  const { encryption, ...given } = input
  const hooks = resolveEncryption(where, { encryption })
  return storedForm(toStored(where, given), record, hooks.encryption)
}

/**
 * Encodes the reply with which `engine.reap({ abandoned })` completes abandoned records of HTTP
 * routes. The bytes are bound to no record, so a route with `requireEncryption` refuses them.
 */
export function encodeAbandonedReply(input: AbandonedReplyInput): Uint8Array {
  return encodeUnbound('encodeAbandonedReply', input)
}

/** `where` is the name of the caller, for messages. */
export function encodeUnbound(where: string, input: AbandonedReplyInput): Uint8Array {
  rejectUnknownOptions(where, input, ['status', 'headers', 'body', 'replyVersion'])
  return encodeReply(toStored(where, input), undefined)
}

function toStored(where: string, { replyVersion, ...given }: AbandonedReplyInput): StoredReply {
  const bounds = { fallback: 1, min: 0, max: 65_535 }
  const schemaVersion = wholeNumber(`${where}.replyVersion`, replyVersion, bounds)
  return { ...toReply(where, given), elided: false, schemaVersion }
}

/** An incomplete record would bind the reply to the text "undefined", which fits many records. */
function checkRecord(where: string, record: unknown): void {
  const { identity, recordId, tenant, operation } = (record ?? {}) as Partial<EventSubject>
  const isRecord = [identity, recordId, tenant, operation].every((name) => {
    return typeof name === 'string' && name !== ''
  })
  if (isRecord) return
  throw new InvalidOptionsError(
    `${where} takes the record from engine.read() and then the reply, got ${describe(record)} as ` +
      'the record',
  )
}

/** Checks a reply of the application. `where` is the name of the caller, for messages. */
export function toReply(where: string, given: ReplyInit): HttpReply {
  checkPlain(where, given)
  rejectUnknownOptions(where, given, ['status', 'headers', 'body'])
  const bounds = { fallback: Number.NaN, min: 200, max: 599 }
  const status = wholeNumber(`${where}.status`, given.status, bounds)
  if (Number.isNaN(status)) {
    throw new InvalidOptionsError(`${where}.status is missing: give a status of 200 to 599`)
  }
  const headers = toHeaders(where, given.headers ?? {})
  const { bytes, mediaType } = toBody(where, given.body)
  if (mediaType !== undefined && !headers.some(([name]) => name === 'content-type')) {
    headers.push(['content-type', mediaType])
  }
  return { status, headers, body: bytes }
}

function toHeaders(where: string, headers: Readonly<Record<string, unknown>>): HeaderPair[] {
  resolveStoredHeaders(Object.keys(headers), `${where}.headers`)
  return Object.entries(headers).map(([name, value]) => {
    if (typeof value === 'string' && isHeaderValue(value)) return [name.toLowerCase(), value]
    throw new InvalidOptionsError(
      `${where}.headers: ${name.toLowerCase()} must be a string without control characters or ` +
        `characters above U+00FF, got ${describe(value)}`,
    )
  })
}

/** Refuses a response object of a framework, which may have the same members as a reply. */
function checkPlain(where: string, given: unknown): void {
  const isObject = typeof given === 'object' && given !== null
  const prototype: unknown = isObject ? Object.getPrototypeOf(given) : undefined
  if (isObject && (prototype === Object.prototype || prototype === null)) return
  throw new InvalidOptionsError(
    `${where} takes a reply as { status, headers, body }, got ${describe(given)}`,
  )
}

function toBody(where: string, body: unknown): { bytes: Uint8Array; mediaType?: string } {
  if (body === undefined) return { bytes: NO_BYTES }
  if (body instanceof Uint8Array) return { bytes: body, mediaType: 'application/octet-stream' }
  if (typeof body === 'string') {
    return { bytes: Buffer.from(body), mediaType: 'text/plain; charset=utf-8' }
  }
  const json = isOpaque(body) ? undefined : JSON.stringify(body)
  if (json !== undefined) {
    return { bytes: Buffer.from(json), mediaType: 'application/json; charset=utf-8' }
  }
  throw new InvalidOptionsError(
    `${where}.body must be a string, a Uint8Array or a value with a JSON form, got ` +
      describe(body),
  )
}

/** `JSON.stringify` would turn such a value into `{}` without an error. */
function isOpaque(body: unknown): boolean {
  const isStream = typeof (body as { readonly pipe?: unknown } | null)?.pipe === 'function'
  const opaque = [ReadableStream, Blob, ArrayBuffer, FormData, URLSearchParams, Map, Set]
  return isStream || opaque.some((type) => body instanceof type)
}
