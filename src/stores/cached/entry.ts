import { hash } from 'node:crypto'

/** A completed record as the cache knows it. */
export interface ReplyEntry {
  readonly identity: string
  readonly recordId: string
  readonly fingerprint: string
  /** By the durable store's clock. */
  readonly expiresAtMs: number
  readonly result: Uint8Array
}

/**
 * Of the bytes below. Another version is a miss, never a guess: two versions of this package may
 * share a cache during a deploy.
 */
const VERSION = 1
const DIGEST_BYTES = 16
const LENGTH_BYTES = 4
const BODY_AT = 1 + DIGEST_BYTES
const HEAD_AT = BODY_AT + LENGTH_BYTES

/** Version, digest of the rest, length of the head, head, result. */
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

/** `undefined` for whatever is not, to the last bit, what was once put in under this identity. */
export function decodeEntry(identity: string, bytes: Uint8Array): ReplyEntry | undefined {
  const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  if (buffer.length < HEAD_AT || buffer[0] !== VERSION) return undefined
  // A cache may hand out a flipped bit as readily as anything else.
  if (!digestOf(buffer).equals(buffer.subarray(1, BODY_AT))) return undefined
  const resultAt = HEAD_AT + buffer.readUInt32BE(BODY_AT)
  const fields = parseHead(buffer.toString('utf8', HEAD_AT, resultAt))
  // Whole, but put under a name that is not its own.
  if (fields === undefined || fields.identity !== identity) return undefined
  // A copy: the bytes may be the cache's own, and the result is the caller's to keep.
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
    // Somebody else's bytes with a right digest: as good as none.
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
