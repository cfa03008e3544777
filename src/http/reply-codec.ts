import { InvalidOptionsError } from '../core/errors.ts'
import type { HeaderPair } from './stored-headers.ts'

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

export type ReplyDecode =
  | { readonly kind: 'reply'; readonly reply: StoredReply }
  /** The work was done, so it must not run again; `detail` is for the operator. */
  | { readonly kind: 'unreadable'; readonly detail: string }

/** Encrypts, or decrypts, what is stored. */
export type SealHook = (bytes: Uint8Array) => Uint8Array | Promise<Uint8Array>

// Layout, integers big-endian:
//   u8 version, u8 flags, then (sealed as a whole if FLAG_SEALED)
//   u16 schema version, u16 status, u16 number of headers,
//   for each header u16 name bytes, u32 value bytes, name, value (UTF-8),
//   and the body to the end.
const VERSION = 1
const FLAG_ELIDED = 1
const FLAG_SEALED = 2
const PREFIX_BYTES = 2
const FIXED_BYTES = 6
const LENGTHS_BYTES = 6

const EMPTY = new Uint8Array(0)

/** One buffer, written once. */
export function encodeReply(reply: StoredReply): Uint8Array {
  const { headers, status, schemaVersion } = reply
  const body = reply.elided ? EMPTY : reply.body
  let size = PREFIX_BYTES + FIXED_BYTES + body.length
  for (const [name, value] of headers) {
    size += LENGTHS_BYTES + Buffer.byteLength(name) + Buffer.byteLength(value)
  }
  const bytes = Buffer.allocUnsafe(size)
  bytes[0] = VERSION
  bytes[1] = reply.elided ? FLAG_ELIDED : 0
  bytes.writeUInt16BE(schemaVersion, 2)
  bytes.writeUInt16BE(status, 4)
  bytes.writeUInt16BE(headers.length, 6)
  let at = PREFIX_BYTES + FIXED_BYTES
  for (const [name, value] of headers) {
    const nameBytes = bytes.write(name, at + LENGTHS_BYTES)
    const valueBytes = bytes.write(value, at + LENGTHS_BYTES + nameBytes)
    bytes.writeUInt16BE(nameBytes, at)
    bytes.writeUInt32BE(valueBytes, at + 2)
    at += LENGTHS_BYTES + nameBytes + valueBytes
  }
  bytes.set(body, at)
  return bytes
}

/** Never throws, whatever the bytes. The body is a view into them, not a copy. */
export function decodeReply(bytes: Uint8Array): ReplyDecode {
  const refusal = refusePrefix(bytes)
  if (refusal !== undefined) return unreadable(refusal)
  if ((bytes[1]! & FLAG_SEALED) !== 0) return unreadable(NO_HOOK)
  return decodeContent(bytes[1]!, bytes.subarray(PREFIX_BYTES))
}

/**
 * Applies `seal` to all but the version and the flags, which stay readable. Without a hook the
 * bytes come back as they are, at once. A hook that throws is the caller's to handle.
 */
export function sealReply(
  bytes: Uint8Array,
  seal: SealHook | undefined,
): Uint8Array | Promise<Uint8Array> {
  if (seal === undefined) return bytes
  const flags = bytes[1]! | FLAG_SEALED
  const sealed = seal(bytes.subarray(PREFIX_BYTES))
  return isPromise(sealed)
    ? sealed.then((content) => joinSealed(flags, content))
    : joinSealed(flags, sealed)
}

/**
 * Undoes `sealReply` and decodes. Records from before sealing was switched on stay readable.
 * Answers at once unless the record is sealed and `open` is asynchronous.
 */
export function openReply(
  bytes: Uint8Array,
  open: SealHook | undefined,
): ReplyDecode | Promise<ReplyDecode> {
  const refusal = refusePrefix(bytes)
  if (refusal !== undefined) return unreadable(refusal)
  const flags = bytes[1]!
  const content = bytes.subarray(PREFIX_BYTES)
  if ((flags & FLAG_SEALED) === 0) return decodeContent(flags, content)
  if (open === undefined) return unreadable(NO_HOOK)
  try {
    const opened = open(content)
    return isPromise(opened)
      ? opened.then((plain) => decodeOpened(flags, plain), unopened)
      : decodeOpened(flags, opened)
  } catch (error) {
    return unopened(error)
  }
}

const NO_HOOK = 'the recorded reply is sealed, and this route has no open hook'

function refusePrefix(bytes: Uint8Array): string | undefined {
  if (bytes.length < PREFIX_BYTES) return `the recorded reply has only ${bytes.length} bytes`
  if (bytes[0] !== VERSION) {
    return `the recorded reply has format version ${bytes[0]}; this release reads ${VERSION}`
  }
  if ((bytes[1]! & ~(FLAG_ELIDED | FLAG_SEALED)) === 0) return undefined
  return `the recorded reply has flags ${bytes[1]} that this release does not know`
}

function decodeContent(flags: number, content: Uint8Array): ReplyDecode {
  const bytes = Buffer.from(content.buffer, content.byteOffset, content.length)
  if (bytes.length < FIXED_BYTES) return unreadable(TRUNCATED)
  const schemaVersion = bytes.readUInt16BE(0)
  const status = bytes.readUInt16BE(2)
  if (status < 100 || status > 999) {
    return unreadable(`the recorded reply has status ${status}, which is none`)
  }
  const headers: HeaderPair[] = []
  let at = FIXED_BYTES
  for (let left = bytes.readUInt16BE(4); left > 0; left -= 1) {
    if (at + LENGTHS_BYTES > bytes.length) return unreadable(TRUNCATED)
    const valueStart = at + LENGTHS_BYTES + bytes.readUInt16BE(at)
    const end = valueStart + bytes.readUInt32BE(at + 2)
    if (end > bytes.length) return unreadable(TRUNCATED)
    headers.push([
      bytes.toString('utf8', at + LENGTHS_BYTES, valueStart),
      bytes.toString('utf8', valueStart, end),
    ])
    at = end
  }
  const elided = (flags & FLAG_ELIDED) !== 0
  if (elided && at !== bytes.length) return unreadable('an elided reply has a body all the same')
  const body = content.subarray(at)
  return { kind: 'reply', reply: { status, headers, body, elided, schemaVersion } }
}

const TRUNCATED = 'the recorded reply ends too early'

function decodeOpened(flags: number, plain: unknown): ReplyDecode {
  if (plain instanceof Uint8Array) return decodeContent(flags, plain)
  return unreadable('the open hook returned no Uint8Array')
}

function joinSealed(flags: number, content: unknown): Uint8Array {
  if (!(content instanceof Uint8Array)) {
    throw new InvalidOptionsError('the seal hook must return a Uint8Array')
  }
  const bytes = Buffer.allocUnsafe(PREFIX_BYTES + content.length)
  bytes[0] = VERSION
  bytes[1] = flags
  bytes.set(content, PREFIX_BYTES)
  return bytes
}

function unopened(error: unknown): ReplyDecode {
  const why = error instanceof Error ? `: ${error.message}` : ''
  return unreadable(`the open hook could not open the recorded reply${why}`)
}

const unreadable = (detail: string): ReplyDecode => ({ kind: 'unreadable', detail })

const isPromise = <Value>(value: Value | Promise<Value>): value is Promise<Value> =>
  typeof (value as Promise<Value> | undefined)?.then === 'function'
