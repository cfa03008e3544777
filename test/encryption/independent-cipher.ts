import { createCipheriv, createHmac } from 'node:crypto'

/** What a value is made of, as a table in docs/guides/encryption.md describes it. */
export interface ValueParts {
  readonly key: Uint8Array
  readonly keyId: string
  /** The wrapped data key, if `key` is a data key. */
  readonly wrapped?: Uint8Array
  readonly purpose: string
  readonly associatedData: Uint8Array
  readonly salt: Uint8Array
  readonly nonce: Uint8Array
  readonly plain: Uint8Array
}

/** Written from the documented format, and uses none of the sources. */
export function encryptIndependently(parts: ValueParts): Buffer {
  const { key, keyId, wrapped, purpose, associatedData, salt, nonce, plain } = parts
  const algorithm = wrapped === undefined ? 1 : 2
  const id = Buffer.from(keyId, 'ascii')
  const header = Buffer.concat([
    Buffer.from([1, algorithm, id.length]),
    id,
    ...(wrapped === undefined ? [] : [u16(wrapped.length), wrapped]),
    salt,
    nonce,
  ])
  const info = `oncekey/encryption/1/${algorithm}/${purpose}`
  // HKDF of RFC 5869: extract, then expand to one block.
  const extracted = createHmac('sha256', salt).update(key).digest()
  const valueKey = createHmac('sha256', extracted).update(`${info}\u0001`).digest()
  const cipher = createCipheriv('aes-256-gcm', valueKey, nonce)
  cipher.setAAD(
    Buffer.concat([u32(header.length), header, u32(associatedData.length), associatedData]),
  )
  const encrypted = Buffer.concat([cipher.update(plain), cipher.final()])
  return Buffer.concat([header, encrypted, cipher.getAuthTag()])
}

function u16(value: number): Buffer {
  return Buffer.from([value >> 8, value & 0xff])
}

function u32(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32BE(value)
  return bytes
}
