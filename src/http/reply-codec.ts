import { crc32 } from 'node:zlib'
import type { EventSubject } from '../core/events.ts'
import {
  dropForbidden,
  isHeaderName,
  isHeaderValue,
  isUsualHeader,
  type HeaderPair,
} from './stored-headers.ts'

/** What a replay needs. */
export interface StoredReply {
  readonly status: number
  readonly headers: readonly HeaderPair[]
  /** Empty when `elided`. */
  readonly body: Uint8Array
  /** The body was above the cap, so it was sent once and not kept. */
  readonly elided: boolean
  /** The route's own version of its replies, 0 to 65535, for `upgrade`. */
  readonly schemaVersion: number
}

export type ReplyDecode = { readonly kind: 'reply'; readonly reply: StoredReply } | Unreadable

/** The work was done, so it must not run again; `detail` is for the operator. */
export interface Unreadable {
  readonly kind: 'unreadable'
  readonly detail: string
}

/** What the bytes are before anything is decrypted. */
export type FrameDecode =
  | { readonly kind: 'reply'; readonly reply: StoredReply; readonly unbound: boolean }
  | {
      readonly kind: 'encrypted'
      readonly version: number
      readonly flags: number
      readonly payload: Uint8Array
    }
  | Unreadable

// Layout of version 2, integers big-endian:
//   u8 version, u8 flags, u32 number of all bytes,
//   the content, or what `encrypt` made of a whole frame (FLAG_ENCRYPTED),
//   u32 CRC-32 of everything before it, begun with the CRC-32 of the record's identity and id, so
//   that the bytes of one record do not fit another one (unless FLAG_UNBOUND).
// Content: u16 schema version, u16 status, u16 number of headers,
//   for each header u16 name bytes, u32 value bytes, name, value (UTF-8),
//   and the body.
// Version 1, which is still read: u8 version, u8 flags, then the content to the end, or what a hook
// made of the content alone.
const VERSION = 2
const FLAG_ELIDED = 1
const FLAG_ENCRYPTED = 2
const FLAG_UNBOUND = 4
const PREFIX_BYTES = 6
const CHECKSUM_BYTES = 4
const FIXED_BYTES = 6
const LENGTHS_BYTES = 6

export const VERSION_1 = 1
const VERSION_1_PREFIX_BYTES = 2

/** A final status. An informational one would leave the client waiting for its reply. */
const STATUS_MIN = 200
const STATUS_MAX = 599

const EMPTY = new Uint8Array(0)

/** One buffer, written once. `undefined`: the reply fits every record (see `abandoned-reply`). */
export function encodeReply(reply: StoredReply, record: EventSubject | undefined): Uint8Array {
  const { headers, status, schemaVersion } = reply
  const body = reply.elided ? EMPTY : reply.body
  let size = FIXED_BYTES + body.length
  for (const [name, value] of headers) {
    size += LENGTHS_BYTES + Buffer.byteLength(name) + Buffer.byteLength(value)
  }
  const flags = (reply.elided ? FLAG_ELIDED : 0) | (record === undefined ? FLAG_UNBOUND : 0)
  const bytes = openFrame(flags, size)
  bytes.writeUInt16BE(schemaVersion, PREFIX_BYTES)
  bytes.writeUInt16BE(status, PREFIX_BYTES + 2)
  bytes.writeUInt16BE(headers.length, PREFIX_BYTES + 4)
  let at = PREFIX_BYTES + FIXED_BYTES
  for (const [name, value] of headers) {
    const nameBytes = bytes.write(name, at + LENGTHS_BYTES)
    const valueBytes = bytes.write(value, at + LENGTHS_BYTES + nameBytes)
    bytes.writeUInt16BE(nameBytes, at)
    bytes.writeUInt32BE(valueBytes, at + 2)
    at += LENGTHS_BYTES + nameBytes + valueBytes
  }
  bytes.set(body, at)
  return closeFrame(bytes, record)
}

/** The stored form of an encrypted frame. */
export function encodeEncrypted(payload: Uint8Array, record: EventSubject): Uint8Array {
  const bytes = openFrame(FLAG_ENCRYPTED, payload.length)
  bytes.set(payload, PREFIX_BYTES)
  return closeFrame(bytes, record)
}

/** Never throws. The body is a view into the bytes, not a copy. */
export function decodeFrame(stored: Uint8Array, record: EventSubject): FrameDecode {
  const bytes = Buffer.from(stored.buffer, stored.byteOffset, stored.length)
  if (bytes.length < VERSION_1_PREFIX_BYTES) {
    return unreadable(`the recorded reply has only ${bytes.length} bytes`)
  }
  if (bytes[0] === VERSION_1) return decodeVersion1(bytes)
  if (bytes[0] !== VERSION) {
    return unreadable(
      `the recorded reply has format version ${bytes[0]}; this release reads 1 to ${VERSION}`,
    )
  }
  const refusal = refuseFrame(bytes, record)
  if (refusal !== undefined) return unreadable(refusal)
  const flags = bytes[1]!
  const end = bytes.length - CHECKSUM_BYTES
  if (flags !== FLAG_ENCRYPTED) return decodeContent(flags, bytes, PREFIX_BYTES, end)
  return encrypted(VERSION, flags, bytes.subarray(PREFIX_BYTES, end))
}

/** The content that a hook of an earlier release encrypted, without the frame around it. */
export function decodeVersion1Content(flags: number, content: Uint8Array): ReplyDecode {
  const bytes = Buffer.from(content.buffer, content.byteOffset, content.length)
  return decodeContent(flags, bytes, 0, bytes.length)
}

function openFrame(flags: number, contentBytes: number): Buffer {
  const bytes = Buffer.allocUnsafe(PREFIX_BYTES + contentBytes + CHECKSUM_BYTES)
  bytes[0] = VERSION
  bytes[1] = flags
  bytes.writeUInt32BE(bytes.length, 2)
  return bytes
}

function closeFrame(bytes: Buffer, record: EventSubject | undefined): Uint8Array {
  const end = bytes.length - CHECKSUM_BYTES
  bytes.writeUInt32BE(checksumOf(bytes.subarray(0, end), record), end)
  return bytes
}

function checksumOf(bytes: Uint8Array, record: EventSubject | undefined): number {
  // The identity has 32 characters, always: no other pair gives the same text.
  return crc32(bytes, record === undefined ? 0 : crc32(record.identity + record.recordId))
}

/** Why a frame of this version cannot be trusted. */
function refuseFrame(bytes: Buffer, record: EventSubject): string | undefined {
  const flags = bytes[1]!
  const isKnown = flags === FLAG_ENCRYPTED || (flags & ~(FLAG_ELIDED | FLAG_UNBOUND)) === 0
  if (!isKnown) return unknownFlags(flags)
  if (bytes.length < PREFIX_BYTES + CHECKSUM_BYTES) return TRUNCATED
  const size = bytes.readUInt32BE(2)
  if (size !== bytes.length) {
    return `the recorded reply has ${bytes.length} bytes and says that it has ${size}`
  }
  const end = bytes.length - CHECKSUM_BYTES
  const bound = (flags & FLAG_UNBOUND) === 0 ? record : undefined
  if (checksumOf(bytes.subarray(0, end), bound) === bytes.readUInt32BE(end)) return undefined
  return (
    'the checksum of the recorded reply is wrong: the bytes are damaged, or belong ' +
    'to another record'
  )
}

function decodeVersion1(bytes: Buffer): FrameDecode {
  const flags = bytes[1]!
  if ((flags & ~(FLAG_ELIDED | FLAG_ENCRYPTED)) !== 0) return unreadable(unknownFlags(flags))
  if ((flags & FLAG_ENCRYPTED) === 0) {
    return decodeContent(flags, bytes, VERSION_1_PREFIX_BYTES, bytes.length)
  }
  return encrypted(VERSION_1, flags, bytes.subarray(VERSION_1_PREFIX_BYTES))
}

function decodeContent(
  flags: number,
  bytes: Buffer,
  start: number,
  end: number,
): Exclude<FrameDecode, { readonly kind: 'encrypted' }> {
  if (start + FIXED_BYTES > end) return unreadable(TRUNCATED)
  const status = bytes.readUInt16BE(start + 2)
  if (status < STATUS_MIN || status > STATUS_MAX) {
    return unreadable(`the recorded reply has status ${status}, which no reply may end with`)
  }
  const headers: HeaderPair[] = []
  let isUsual = true
  let at = start + FIXED_BYTES
  for (let left = bytes.readUInt16BE(start + 4); left > 0; left -= 1) {
    if (at + LENGTHS_BYTES > end) return unreadable(TRUNCATED)
    const valueStart = at + LENGTHS_BYTES + bytes.readUInt16BE(at)
    const valueEnd = valueStart + bytes.readUInt32BE(at + 2)
    if (valueEnd > end) return unreadable(TRUNCATED)
    const name = bytes.toString('utf8', at + LENGTHS_BYTES, valueStart)
    const value = bytes.toString('utf8', valueStart, valueEnd)
    // The text itself may be part of a damaged body, so it is not repeated to the operator.
    if (!isUsualHeader(name)) {
      if (!isHeaderName(name)) return unreadable('the recorded reply has an invalid header name')
      isUsual = false
    }
    if (!isHeaderValue(value)) return unreadable('the recorded reply has an invalid header value')
    headers.push([name, value])
    at = valueEnd
  }
  const elided = (flags & FLAG_ELIDED) !== 0
  if (elided && at !== end) return unreadable('an elided reply has a body all the same')
  const reply: StoredReply = {
    status,
    headers: isUsual ? headers : dropForbidden(headers),
    body: bytes.subarray(at, end),
    elided,
    schemaVersion: bytes.readUInt16BE(start),
  }
  return { kind: 'reply', reply, unbound: (flags & FLAG_UNBOUND) !== 0 }
}

const TRUNCATED = 'the recorded reply ends too early'

const unknownFlags = (flags: number): string =>
  `the recorded reply has flags ${flags} that this release does not know`

const encrypted = (version: number, flags: number, payload: Uint8Array): FrameDecode => ({
  kind: 'encrypted',
  version,
  flags,
  payload,
})

export const unreadable = (detail: string): Unreadable => ({ kind: 'unreadable', detail })
