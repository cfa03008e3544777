import { InvalidOptionsError } from '../core/errors.ts'
import { describe, rejectUnknownOptions, wholeNumber } from '../core/options.ts'
import type { Encryption } from '../core/encryption.ts'
import type { EventSubject } from '../core/events.ts'
import type { HttpReply } from './exchange.ts'
import { encodeReply, type StoredReply } from './reply-codec.ts'
import { resolveEncryption, storedForm } from './reply-encryption.ts'
import { isHeaderValue, resolveStoredHeaders, type HeaderPair } from './stored-headers.ts'

/** A reply as a handler gives it to `completeIn`, or returns it from `transaction`. */
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
  /** The route's `encryption`, where it has one. */
  encryption?: Encryption
}

/** A reply for every record that `reap` finds abandoned, so it cannot be encrypted for one. */
export type AbandonedReplyInput = Omit<HttpReplyInput, 'encryption'>

/**
 * The bytes an HTTP route replays, for `engine.resolve(…, { kind: 'completed', result })`. They
 * are bound to `record`, as `engine.read` gives it: no other record can be completed with them.
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
 * The bytes that `engine.reap({ abandoned })` completes every abandoned record of HTTP routes with.
 * They are bound to no record, so a route with `requireEncryption` refuses them.
 */
export function encodeAbandonedReply(input: AbandonedReplyInput): Uint8Array {
  return encodeUnbound('encodeAbandonedReply', input)
}

/** `where` is for messages. */
export function encodeUnbound(where: string, input: AbandonedReplyInput): Uint8Array {
  rejectUnknownOptions(where, input, ['status', 'headers', 'body', 'replyVersion'])
  return encodeReply(toStored(where, input), undefined)
}

function toStored(where: string, { replyVersion, ...given }: AbandonedReplyInput): StoredReply {
  const bounds = { fallback: 1, min: 0, max: 65_535 }
  const schemaVersion = wholeNumber(`${where}.replyVersion`, replyVersion, bounds)
  return { ...toReply(where, given), elided: false, schemaVersion }
}

/** A record without its names would be bound to the text "undefined", and fit many. */
function checkRecord(where: string, record: unknown): void {
  const { identity, recordId, tenant, operation } = (record ?? {}) as Partial<EventSubject>
  const isRecord = [identity, recordId, tenant, operation].every((name) => {
    return typeof name === 'string' && name !== ''
  })
  if (isRecord) return
  throw new InvalidOptionsError(
    `${where} takes the record that the reply is for, as engine.read() gives it, and then the ` +
      `reply; got ${describe(record)} as the record`,
  )
}

/** Checks what was given by hand. `where` is for messages. */
export function toReply(where: string, given: GivenReply): HttpReply {
  checkPlain(where, given)
  rejectUnknownOptions(where, given, ['status', 'headers', 'body'])
  const bounds = { fallback: Number.NaN, min: 200, max: 599 }
  const status = wholeNumber(`${where}.status`, given.status, bounds)
  if (Number.isNaN(status)) {
    throw new InvalidOptionsError(`${where}.status must be given, got ${describe(status)}`)
  }
  const headers = toHeaders(where, given.headers ?? {})
  const { bytes, mediaType } = toBody(where, given.body)
  if (mediaType !== undefined && !headers.some(([name]) => name === 'content-type')) {
    headers.push(['content-type', mediaType])
  }
  return { status, headers, body: bytes }
}

function toHeaders(where: string, headers: Readonly<Record<string, unknown>>): HeaderPair[] {
  resolveStoredHeaders(Object.keys(headers))
  return Object.entries(headers).map(([name, value]) => {
    if (typeof value === 'string' && isHeaderValue(value)) return [name.toLowerCase(), value]
    throw new InvalidOptionsError(
      `${where}.headers: ${name.toLowerCase()} cannot be ${describe(value)}`,
    )
  })
}

/** A framework's response is no reply yet, although it may look like one. */
function checkPlain(where: string, given: unknown): void {
  const isObject = typeof given === 'object' && given !== null
  const prototype: unknown = isObject ? Object.getPrototypeOf(given) : undefined
  if (isObject && (prototype === Object.prototype || prototype === null)) return
  throw new InvalidOptionsError(
    `${where} takes a reply as { status, headers, body }, got ${describe(given)}`,
  )
}

function toBody(where: string, body: unknown): { bytes: Uint8Array; mediaType?: string } {
  if (body === undefined) return { bytes: new Uint8Array(0) }
  if (body instanceof Uint8Array) return { bytes: body, mediaType: 'application/octet-stream' }
  if (typeof body === 'string') {
    return { bytes: Buffer.from(body), mediaType: 'text/plain; charset=utf-8' }
  }
  const json = isOpaque(body) ? undefined : JSON.stringify(body)
  if (json !== undefined) {
    return { bytes: Buffer.from(json), mediaType: 'application/json; charset=utf-8' }
  }
  throw new InvalidOptionsError(
    `${where}.body must be text, a Uint8Array or what JSON can say, got ${describe(body)}`,
  )
}

/** JSON would make `{}` of these, and nobody would notice. */
function isOpaque(body: unknown): boolean {
  const isStream = typeof (body as { readonly pipe?: unknown } | null)?.pipe === 'function'
  const opaque = [ReadableStream, Blob, ArrayBuffer, FormData, URLSearchParams, Map, Set]
  return isStream || opaque.some((type) => body instanceof type)
}
