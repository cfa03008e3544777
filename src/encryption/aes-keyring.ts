import { createSecretKey, type KeyObject } from 'node:crypto'
import type { Encryption, EncryptionContext, EncryptionSubject } from '../core/encryption.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import { rejectUnknownOptions } from '../core/options.ts'
import { checkKeyBytes } from './key-bytes.ts'
import { checkKeyId, isKeyId, withoutContent } from './key-id.ts'
import { checkPlain, decryptValue, encryptValue, readValueHeader } from './value-cipher.ts'
import { DIRECT } from './value-header.ts'

export interface AesKeyringOptions {
  /**
   * The keys by their ids: 32 random bytes each. Or a function that returns the key of an id, and
   * `undefined` for a key that was destroyed. The function is called for each value and must not be
   * asynchronous; for a key service, use `envelopeKeyring`.
   */
  keys: Readonly<Record<string, Uint8Array>> | ((id: string) => Uint8Array | undefined)

  /** The id of the key that encrypts, or a function that returns it, for a key for each tenant. */
  current: string | ((subject: EncryptionSubject) => string)
}

/** An `Encryption` whose functions are synchronous. */
export interface AesKeyring extends Required<Encryption> {
  /** Throws if the current key of this tenant is missing. */
  prepare(subject: EncryptionSubject): void
  encrypt(plain: Uint8Array, context: EncryptionContext): Uint8Array
  decrypt(encrypted: Uint8Array, context: EncryptionContext): Uint8Array
}

/**
 * Encrypts with AES-256-GCM and keys that this process has. Each value is encrypted with a separate
 * key, which is derived from the current key, and is bound to its record and purpose. To rotate,
 * add a key, then make it `current`; the old keys still decrypt.
 */
export function aesKeyring(options: AesKeyringOptions): AesKeyring {
  rejectUnknownOptions('aesKeyring', options, ['keys', 'current'])
  const find = resolveKeys(options.keys)
  const currentOf = resolveCurrent(options.current, options.keys, find)
  const currentKeyOf = ({ tenant }: EncryptionSubject) => {
    const keyId = currentOf({ tenant })
    const secret = find(keyId)
    if (secret === undefined) {
      throw new Error(
        `the current key ${keyId} is not in the keyring: add it to keys before it becomes current`,
      )
    }
    return { keyId, secret, wrapped: undefined }
  }
  return {
    prepare(subject) {
      currentKeyOf(subject)
    },
    encrypt(plain, context) {
      checkPlain(plain, context)
      return encryptValue(currentKeyOf(context), plain, context)
    },
    decrypt(encrypted, context) {
      const header = readValueHeader(encrypted)
      const { keyId, algorithm } = header
      if (algorithm !== DIRECT) {
        throw new Error(
          `the bytes were encrypted by an envelopeKeyring with the id ${keyId}, and this is an ` +
            'aesKeyring: decrypt them with a keyring of the same kind',
        )
      }
      const secret = find(keyId)
      if (secret === undefined) throw new Error(missingKeyText(keyId))
      return decryptValue(header, secret, encrypted, context)
    },
  }
}

function missingKeyText(keyId: string): string {
  return (
    `key ${keyId} is not in the keyring: keep an old key until no stored value needs it, see ` +
    'docs/guides/encryption.md. If the key was destroyed, the value cannot be read again'
  )
}

type FindKey = (id: string) => KeyObject | undefined

function resolveKeys(keys: AesKeyringOptions['keys']): FindKey {
  if (typeof keys === 'function') {
    return (id) => {
      const key: unknown = keys(id)
      return key === undefined ? undefined : toSecret(id, key)
    }
  }
  if (keys === null || typeof keys !== 'object' || keys instanceof Uint8Array) {
    throw new InvalidOptionsError(
      'aesKeyring: keys must be an object { id: key } or a function of the id, got ' +
        withoutContent(keys),
    )
  }
  const known = new Map(
    Object.entries(keys).map(([id, key]) => {
      checkKeyId('aesKeyring: a name in keys', id)
      return [id, toSecret(id, key)]
    }),
  )
  return (id) => known.get(id)
}

/** Has a copy of the bytes, so the caller may wipe the buffer that the key was read into. */
function toSecret(id: string, key: unknown): KeyObject {
  return createSecretKey(checkKeyBytes(`aesKeyring: the key ${id}`, key))
}

function resolveCurrent(
  current: AesKeyringOptions['current'],
  keys: AesKeyringOptions['keys'],
  find: FindKey,
): (subject: EncryptionSubject) => string {
  if (typeof current === 'function') {
    return (subject) => checkKeyId('aesKeyring: the result of current()', current(subject))
  }
  checkKeyId('aesKeyring: current', current)
  if (typeof keys !== 'function' && find(current) === undefined) {
    const ids = Object.keys(keys).filter(isKeyId).toSorted().join(', ')
    throw new InvalidOptionsError(
      `aesKeyring: current is ${current}, which is not in keys; keys has ${ids || 'no key'}`,
    )
  }
  return () => current
}
