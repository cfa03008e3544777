import { isKeyId } from './key-id.ts'

// The header of an encrypted value. docs/guides/encryption.md has the format as a table.

export const FORMAT_VERSION = 1

/** The value is encrypted with a key that is derived from the named key. */
export const DIRECT = 1
/** The value is encrypted with a key that is derived from a data key, which the header contains. */
export const ENVELOPE = 2

export type Algorithm = typeof DIRECT | typeof ENVELOPE

export const SALT_BYTES = 16
export const NONCE_BYTES = 12
export const TAG_BYTES = 16

/** A longer data key does not fit into its length field. */
export const WRAPPED_BYTES_MAX = 0xffff

const ID_AT = 3
const RANDOM_BYTES = SALT_BYTES + NONCE_BYTES

/** The key that a header names. */
export interface NamedKey {
  readonly keyId: string
  /** The encrypted data key. `undefined` if the named key is used without a data key. */
  readonly wrapped: Uint8Array | undefined
}

export interface ValueHeader extends NamedKey {
  readonly kind: 'header'
  readonly algorithm: Algorithm
  /** The length of the whole header, salt and nonce included. */
  readonly headerBytes: number
}

export type HeaderRead = ValueHeader | { readonly kind: 'unreadable'; readonly why: string }

export function headerBytesOf({ keyId, wrapped }: NamedKey): number {
  return ID_AT + keyId.length + (wrapped === undefined ? 0 : 2 + wrapped.byteLength) + RANDOM_BYTES
}

/** Writes the header at the start of `out`. `random` is the salt, followed by the nonce. */
export function writeHeader(out: Buffer, { keyId, wrapped }: NamedKey, random: Uint8Array): void {
  out[0] = FORMAT_VERSION
  out[1] = wrapped === undefined ? DIRECT : ENVELOPE
  out[2] = keyId.length
  let at = ID_AT + out.write(keyId, ID_AT, 'latin1')
  if (wrapped !== undefined) {
    at = out.writeUInt16BE(wrapped.byteLength, at)
    out.set(wrapped, at)
    at += wrapped.byteLength
  }
  out.set(random, at)
}

/** Reads the header of bytes that may be anything. Nothing in it is authenticated yet. */
export function readHeader(bytes: Uint8Array): HeaderRead {
  const version = bytes[0]
  const algorithm = bytes[1]
  const idLength = bytes[2]
  if (version === undefined || algorithm === undefined || idLength === undefined) return TRUNCATED
  if (version !== FORMAT_VERSION) {
    return unreadable(`format version ${version} is unknown; known is ${FORMAT_VERSION}`)
  }
  if (algorithm !== DIRECT && algorithm !== ENVELOPE) {
    return unreadable(`algorithm ${algorithm} is unknown; known are ${DIRECT} and ${ENVELOPE}`)
  }
  let at = ID_AT + idLength
  const keyId = viewOf(bytes).toString('latin1', ID_AT, at)
  if (!isKeyId(keyId)) return unreadable('the bytes where the key id should be are no key id')
  let wrapped: Uint8Array | undefined
  if (algorithm === ENVELOPE) {
    const start = at + 2
    const length = bytes.byteLength < start ? 0 : viewOf(bytes).readUInt16BE(at)
    at = start + length
    if (length === 0) return TRUNCATED
    wrapped = bytes.subarray(start, at)
  }
  const headerBytes = at + RANDOM_BYTES
  // The one check of the length: views of bytes that are not there are only shorter.
  if (bytes.byteLength < headerBytes + TAG_BYTES) return TRUNCATED
  return { kind: 'header', algorithm, keyId, wrapped, headerBytes }
}

/**
 * The id of the key that a keyring encrypted these bytes with, or `undefined` if they are not bytes
 * of a keyring. Never throws. The id is not authenticated: use it to count and to choose a keyring,
 * not to decide who may read a value.
 */
export function keyIdOf(encrypted: Uint8Array): string | undefined {
  if (!(encrypted instanceof Uint8Array)) return undefined
  const header = readHeader(encrypted)
  return header.kind === 'header' ? header.keyId : undefined
}

const TRUNCATED = unreadable('the bytes end before the format does')

function unreadable(why: string): HeaderRead {
  return { kind: 'unreadable', why }
}

function viewOf({ buffer, byteOffset, byteLength }: Uint8Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength)
}
