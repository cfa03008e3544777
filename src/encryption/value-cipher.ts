import {
  createCipheriv,
  createDecipheriv,
  createSecretKey,
  hkdfSync,
  randomFillSync,
  type KeyObject,
} from 'node:crypto'
import type { EncryptionContext } from '../core/encryption.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import { KEY_BYTES } from './key-bytes.ts'
import { withoutContent } from './key-id.ts'
import {
  DIRECT,
  ENVELOPE,
  FORMAT_VERSION,
  headerBytesOf,
  NONCE_BYTES,
  readHeader,
  SALT_BYTES,
  TAG_BYTES,
  writeHeader,
  type Algorithm,
  type NamedKey,
  type ValueHeader,
} from './value-header.ts'

// The cipher of both keyrings. Every value has its own key, derived with a random salt, so that the
// number of values under one key is not limited by the 96 bits of a nonce.

const CIPHER = 'aes-256-gcm'

/** The part of the context that the cipher binds a value to. */
export type ValueContext = Pick<EncryptionContext, 'purpose' | 'associatedData'>

/** A key with its secret: a master key, or a data key. */
export interface ValueKey extends NamedKey {
  readonly secret: KeyObject
}

/** Refuses what must never be encrypted, before a key is made for it. */
export function checkPlain(plain: unknown, { associatedData }: ValueContext): void {
  if (!(plain instanceof Uint8Array)) {
    throw new InvalidOptionsError(
      `encrypt() takes a Uint8Array as its first argument, got ${withoutContent(plain)}`,
    )
  }
  if (!(associatedData instanceof Uint8Array) || associatedData.byteLength === 0) {
    throw new InvalidOptionsError(
      'encrypt() needs context.associatedData, got ' +
        `${withoutContent(associatedData)}: without it, a copy of the value would also decrypt ` +
        'in another record; give bytes that name the record',
    )
  }
}

/** `random`: salt and nonce. Only a test may give it, because a repeated pair breaks the cipher. */
export function encryptValue(
  key: ValueKey,
  plain: Uint8Array,
  { purpose, associatedData }: ValueContext,
  random: Uint8Array = newRandom(),
): Uint8Array {
  const headerBytes = headerBytesOf(key)
  const out = Buffer.allocUnsafe(headerBytes + plain.byteLength + TAG_BYTES)
  writeHeader(out, key, random)
  const { header, salt, nonce } = partsOf(out, headerBytes)
  const info = infoOf(key.wrapped === undefined ? DIRECT : ENVELOPE, purpose)
  const cipher = createCipheriv(CIPHER, deriveKey(key.secret, salt, info), nonce)
  cipher.setAAD(lengthPrefixed(header, associatedData))
  out.set(cipher.update(plain), headerBytes)
  // With GCM, `update` has returned everything.
  cipher.final()
  out.set(cipher.getAuthTag(), out.byteLength - TAG_BYTES)
  return out
}

/** Throws if the bytes are not a value of a keyring. */
export function readValueHeader(encrypted: Uint8Array): ValueHeader {
  const header = readHeader(encrypted)
  if (header.kind === 'header') return header
  throw new Error(
    `the bytes cannot be decrypted: ${header.why}. They were not encrypted by a keyring, were ` +
      'changed, or were written by a newer release',
  )
}

/** Throws if the key is wrong, or if the value or its context differs in one bit. */
export function decryptValue(
  { keyId, algorithm, headerBytes }: ValueHeader,
  secret: KeyObject,
  encrypted: Uint8Array,
  { purpose, associatedData }: ValueContext,
): Uint8Array {
  const { header, salt, nonce } = partsOf(encrypted, headerBytes)
  const derived = deriveKey(secret, salt, infoOf(algorithm, purpose))
  const decipher = createDecipheriv(CIPHER, derived, nonce, { authTagLength: TAG_BYTES })
  const tagAt = encrypted.byteLength - TAG_BYTES
  decipher.setAAD(lengthPrefixed(header, associatedData)).setAuthTag(encrypted.subarray(tagAt))
  const plain = decipher.update(encrypted.subarray(headerBytes, tagAt))
  try {
    decipher.final()
  } catch (cause) {
    throw new Error(
      `key ${keyId} does not decrypt the bytes: they were changed, or they belong to another ` +
        'record, tenant or purpose, or another key has this id',
      { cause },
    )
  }
  return plain
}

/**
 * The key of one value. Takes and returns a KeyObject: on Node 24, `hkdfSync` and `createCipheriv`
 * take 10 to 15 µs longer with a key in bytes. Two calls of `createHmac` would take 4 µs longer
 * than `hkdfSync`.
 */
function deriveKey(secret: KeyObject, salt: Uint8Array, info: string): KeyObject {
  const derived = new Uint8Array(hkdfSync('sha256', secret, salt, info, KEY_BYTES))
  const key = createSecretKey(derived)
  derived.fill(0)
  return key
}

function infoOf(algorithm: Algorithm, purpose: string): string {
  return `oncekey/encryption/${FORMAT_VERSION}/${algorithm}/${purpose}`
}

function partsOf(
  bytes: Uint8Array,
  headerBytes: number,
): Readonly<Record<'header' | 'salt' | 'nonce', Uint8Array>> {
  const nonceAt = headerBytes - NONCE_BYTES
  return {
    header: bytes.subarray(0, headerBytes),
    salt: bytes.subarray(nonceAt - SALT_BYTES, nonceAt),
    nonce: bytes.subarray(nonceAt, headerBytes),
  }
}

/** Both parts with their lengths, so that no other two parts give the same bytes. */
function lengthPrefixed(header: Uint8Array, associatedData: Uint8Array): Buffer {
  const out = Buffer.allocUnsafe(8 + header.byteLength + associatedData.byteLength)
  out.set(header, out.writeUInt32BE(header.byteLength, 0))
  const at = out.writeUInt32BE(associatedData.byteLength, 4 + header.byteLength)
  out.set(associatedData, at)
  return out
}

const RANDOM_BYTES = SALT_BYTES + NONCE_BYTES

// Random bytes are drawn for 256 values at once: a call for each would take 3 µs.
const pool = Buffer.alloc(256 * RANDOM_BYTES)
let used = pool.byteLength

/** A new salt and nonce. Copy them before the next call, which may fill the pool again. */
function newRandom(): Uint8Array {
  if (used === pool.byteLength) {
    randomFillSync(pool)
    used = 0
  }
  used += RANDOM_BYTES
  return pool.subarray(used - RANDOM_BYTES, used)
}
