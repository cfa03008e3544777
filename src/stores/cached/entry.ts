import { hash } from 'node:crypto'

/** A completed record as the cache stores it. */
export interface ReplyEntry {
  readonly identity: string
  readonly recordId: string
  readonly fingerprint: string
  /** By the durable store's clock. */
  readonly expiresAtMs: number
  readonly result: Uint8Array
}

/**
 * The version of the format. Bytes of another version are a miss: two versions of this package may
 * share a cache during a deploy.
 */
const VERSION = 1
const DIGEST_BYTES = 16
const LENGTH_BYTES = 4
const BODY_AT = 1 + DIGEST_BYTES
const HEAD_AT = BODY_AT + LENGTH_BYTES

/** The format: version, digest of the rest, length of the head, head, result. */
export function encodeEntry({ result, ...fields }: ReplyEntry): Uint8Array {
  const head = Buffer.from(JSON.stringify(fields))
  const bytes = Buffer.alloc(HEAD_AT + head.length + result.byteLength)
  bytes[0] = VERSION
  bytes.writeUInt32BE(head.length, BODY_AT)
  head.copy(bytes, HEAD_AT)
  bytes.set(result, HEAD_AT + head.length)
  digestOf(bytes).copy(bytes, 1)
  return bytes
}

/** `undefined` unless the bytes are exactly those that `encodeEntry` made for this identity. */
export function decodeEntry(identity: string, bytes: Uint8Array): ReplyEntry | undefined {
  const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  if (buffer.length < HEAD_AT || buffer[0] !== VERSION) return undefined
  // A cache may return damaged bytes.
  if (!digestOf(buffer).equals(buffer.subarray(1, BODY_AT))) return undefined
  const resultAt = HEAD_AT + buffer.readUInt32BE(BODY_AT)
  const fields = parseHead(buffer.toString('utf8', HEAD_AT, resultAt))
  // Undamaged, but stored under the identity of another record.
  if (fields === undefined || fields.identity !== identity) return undefined
  // A copy, because the cache may keep the bytes and the caller may change the result.
  return { ...fields, result: new Uint8Array(buffer.subarray(resultAt)) }
}

function digestOf(bytes: Buffer): Buffer {
  return hash('sha256', bytes.subarray(BODY_AT), 'buffer').subarray(0, DIGEST_BYTES)
}

type Head = Omit<ReplyEntry, 'result'>

function parseHead(text: string): Head | undefined {
  try {
    const head = JSON.parse(text) as Head | null
    return isHead(head) ? head : undefined
  } catch {
    // Bytes of another program with a valid digest are a miss.
    return undefined
  }
}

function isHead(head: Head | null): head is Head {
  return (
    typeof head?.identity === 'string' &&
    typeof head.recordId === 'string' &&
    typeof head.fingerprint === 'string' &&
    Number.isSafeInteger(head.expiresAtMs)
  )
}
