import { NO_BYTES } from '../../core/bytes.ts'
import { crc32 } from 'node:zlib'
import type { EventSubject } from '../../core/events.ts'
import {
  dropForbidden,
  isHeaderName,
  isHeaderValue,
  isUsualHeader,
  type HeaderPair,
} from './stored-headers.ts'

/** A recorded reply. */
export interface StoredReply {
  readonly status: number
  readonly headers: readonly HeaderPair[]
  /** Empty if `elided`. */
  readonly body: Uint8Array
  /** The body exceeded `replyBytesMax`, so it was sent once and not recorded. */
  readonly elided: boolean
  /** The `replyVersion` of the route, 0 to 65535, for `upgradeReply`. */
  readonly schemaVersion: number
}

export type ReplyDecode = { readonly kind: 'reply'; readonly reply: StoredReply } | Unreadable

/** The work was done and must not run again. `detail` is for the operator. */
export interface Unreadable {
  readonly kind: 'unreadable'
  readonly detail: string
}

/** The outer frame of the stored bytes, before decryption. */
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
//   the content, or (FLAG_ENCRYPTED) the result of `encrypt` on a whole frame,
//   u32 CRC-32 of everything before it, seeded with the CRC-32 of the record's identity and id, so
//   that the bytes of one record are invalid in another one (unless FLAG_UNBOUND).
// Content: u16 schema version, u16 status, u16 number of headers,
//   for each header u16 name bytes, u32 value bytes, name, value (UTF-8),
//   and the body.
// Version 1, which is still read: u8 version, u8 flags, then up to the end the content, or the
// result of `encrypt` on the content alone.
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

/** Final statuses only: after an informational one, the client would wait for its reply. */
const STATUS_MIN = 200
const STATUS_MAX = 599

/** Writes into one buffer. Without a `record`, the reply fits every record (`abandoned-reply`). */
export function encodeReply(reply: StoredReply, record: EventSubject | undefined): Uint8Array {
  const { headers, status, schemaVersion } = reply
  const body = reply.elided ? NO_BYTES : reply.body
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

/** Never throws. The body is a view of the stored bytes, not a copy. */
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
  const fault = frameFault(bytes, record)
  if (fault !== undefined) return unreadable(fault)
  const flags = bytes[1]!
  const end = bytes.length - CHECKSUM_BYTES
  if (flags !== FLAG_ENCRYPTED) return decodeContent(flags, bytes, PREFIX_BYTES, end)
  return encrypted(VERSION, flags, bytes.subarray(PREFIX_BYTES, end))
}

/** Decodes content that an earlier release encrypted without a frame around it. */
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
  // The identity always has 32 characters, so no other identity and id give the same text.
  return crc32(bytes, record === undefined ? 0 : crc32(record.identity + record.recordId))
}

/** Returns why a frame of version 2 is invalid, or `undefined` if it is valid. */
function frameFault(bytes: Buffer, record: EventSubject): string | undefined {
  const flags = bytes[1]!
  const isKnown = flags === FLAG_ENCRYPTED || (flags & ~(FLAG_ELIDED | FLAG_UNBOUND)) === 0
  if (!isKnown) return unknownFlags(flags)
  if (bytes.length < PREFIX_BYTES + CHECKSUM_BYTES) return TRUNCATED
  const size = bytes.readUInt32BE(2)
  if (size !== bytes.length) {
    return `the recorded reply has ${bytes.length} bytes, but its length field is ${size}`
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
    return unreadable(`the recorded reply has status ${status}, which is no final status`)
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
    // The message omits the text, which may be part of a damaged body.
    if (!isUsualHeader(name)) {
      if (!isHeaderName(name)) return unreadable('the recorded reply has an invalid header name')
      isUsual = false
    }
    if (!isHeaderValue(value)) return unreadable('the recorded reply has an invalid header value')
    headers.push([name, value])
    at = valueEnd
  }
  const elided = (flags & FLAG_ELIDED) !== 0
  if (elided && at !== end) return unreadable('the recorded reply is elided, but has a body')
  const reply: StoredReply = {
    status,
    headers: isUsual ? headers : dropForbidden(headers),
    body: bytes.subarray(at, end),
    elided,
    schemaVersion: bytes.readUInt16BE(start),
  }
  return { kind: 'reply', reply, unbound: (flags & FLAG_UNBOUND) !== 0 }
}

const TRUNCATED = 'the recorded reply is truncated'

const unknownFlags = (flags: number): string =>
  `the recorded reply has flags ${flags}, which this release does not support`

const encrypted = (version: number, flags: number, payload: Uint8Array): FrameDecode => ({
  kind: 'encrypted',
  version,
  flags,
  payload,
})

export const unreadable = (detail: string): Unreadable => ({ kind: 'unreadable', detail })
