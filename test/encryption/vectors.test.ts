import { createSecretKey } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import type { Encryption } from '../../src/core/encryption.ts'
import { aesKeyring, envelopeKeyring, keyIdOf } from '../../src/encryption/index.ts'
import { encryptValue } from '../../src/encryption/value-cipher.ts'
import { contextOf } from './contexts.ts'
import { encryptIndependently } from './independent-cipher.ts'

interface Vector {
  readonly name: string
  readonly keyId: string
  readonly key: string
  readonly wrapped?: string
  readonly purpose: 'reply'
  readonly associatedData: string
  readonly encrypted: string
}

interface AcceptedVector extends Vector {
  readonly salt: string
  readonly nonce: string
  readonly plain: string
}

const file = join(import.meta.dirname, '../../docs/reference/encryption-vectors.json')
const { accepted, refused } = JSON.parse(readFileSync(file, 'utf8')) as {
  readonly accepted: readonly AcceptedVector[]
  readonly refused: readonly Vector[]
}

const hex = (text: string): Buffer => Buffer.from(text, 'hex')

/** A keyring as an application makes it. The key service returns the data key of the vector. */
function keyringOf({ keyId, key, wrapped }: Vector): Encryption {
  if (wrapped === undefined) return aesKeyring({ keys: { [keyId]: hex(key) }, current: keyId })
  return envelopeKeyring({ id: keyId, wrap: () => hex('00'), unwrap: () => hex(key) })
}

/** Synchronous or not, the error is a rejection here. */
async function decrypted(vector: Vector): Promise<string> {
  const { purpose, associatedData, encrypted } = vector
  const context = contextOf({ purpose, associatedData: hex(associatedData) })
  const plain = await keyringOf(vector).decrypt(hex(encrypted), context)
  return Buffer.from(plain).toString('hex')
}

describe('the published test vectors', () => {
  it.each(accepted)('a keyring decrypts the vector: $name', async (vector) => {
    expect(await decrypted(vector)).toBe(vector.plain)
    expect(keyIdOf(hex(vector.encrypted))).toBe(vector.keyId)
  })

  it.each(accepted)('straight calls of node:crypto give the same bytes: $name', (vector) => {
    const { keyId, purpose, wrapped } = vector
    const bytes = encryptIndependently({
      keyId,
      purpose,
      key: hex(vector.key),
      associatedData: hex(vector.associatedData),
      salt: hex(vector.salt),
      nonce: hex(vector.nonce),
      plain: hex(vector.plain),
      ...(wrapped === undefined ? {} : { wrapped: hex(wrapped) }),
    })
    expect(bytes.toString('hex')).toBe(vector.encrypted)
  })

  it.each(accepted)('the cipher gives the same bytes with this salt and nonce: $name', (vector) => {
    const { keyId, purpose, wrapped } = vector
    const bytes = encryptValue(
      {
        keyId,
        secret: createSecretKey(hex(vector.key)),
        wrapped: wrapped === undefined ? undefined : hex(wrapped),
      },
      hex(vector.plain),
      { purpose, associatedData: hex(vector.associatedData) },
      hex(vector.salt + vector.nonce),
    )
    expect(Buffer.from(bytes).toString('hex')).toBe(vector.encrypted)
  })

  it.each(refused)('a keyring refuses the vector: $name', async (vector) => {
    await expect(decrypted(vector)).rejects.toThrow(/^(key \S+ does not|the bytes cannot be) decr/)
  })

  it('the vectors have both algorithms, and values without a byte', () => {
    expect(accepted.filter(({ wrapped }) => wrapped !== undefined).length).toBeGreaterThan(1)
    expect(accepted.filter(({ wrapped }) => wrapped === undefined).length).toBeGreaterThan(1)
    expect(accepted.filter(({ plain }) => plain === '').length).toBeGreaterThan(1)
    expect(refused.length).toBeGreaterThan(5)
  })
})
