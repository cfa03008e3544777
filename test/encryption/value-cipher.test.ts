import { randomBytes } from 'node:crypto'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { aesKeyring } from '../../src/encryption/index.ts'
import type { EncryptionContext, EncryptionPurpose } from '../../src/core/encryption.ts'
import { contextOf, newKey, PURPOSES, withBitFlipped } from './contexts.ts'

const keyring = aesKeyring({ keys: { '2026-01': newKey() }, current: '2026-01' })
const REFUSED = /^key 2026-01 does not decrypt the bytes/

function setup(context: EncryptionContext = contextOf()) {
  const plain = Buffer.from('{"paymentId":"p_1"}')
  return { plain, context, encrypted: keyring.encrypt(plain, context) }
}

describe('a keyring returns what it encrypted', () => {
  const sizes = [0, 1, 15, 16, 17, 255, 256, 4095, 4096, 65_537, 1024 * 1024]
  const cases = PURPOSES.flatMap((purpose) => sizes.map((bytes) => ({ purpose, bytes })))

  it.each(cases)('$bytes bytes of the purpose $purpose survive the round trip', (value) => {
    const context = contextOf({ purpose: value.purpose })
    const plain = randomBytes(value.bytes)
    const encrypted = keyring.encrypt(plain, context)
    expect(plain.equals(keyring.decrypt(encrypted, context))).toBe(true)
  })

  it('random values, ids, purposes and associated data survive the round trip', () => {
    const id = fc.stringMatching(/^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/)
    const bytes = fc.uint8Array({ maxLength: 600 })
    const context = fc.record({
      purpose: fc.constantFrom(...PURPOSES),
      associatedData: fc.uint8Array({ minLength: 1, maxLength: 300 }),
    })
    fc.assert(
      fc.property(id, bytes, context, (current, plain, changes) => {
        const own = aesKeyring({ keys: { [current]: newKey() }, current })
        const encrypted = own.encrypt(plain, contextOf(changes))
        expect(Uint8Array.from(own.decrypt(encrypted, contextOf(changes)))).toEqual(plain)
      }),
    )
  })

  it('the same value is never encrypted to the same bytes, and no salt or nonce repeats', () => {
    const count = 2_000
    const { plain, context } = setup()
    const values = Array.from({ length: count }, () => keyring.encrypt(plain, context))
    const parts = (start: number, end: number) =>
      new Set(values.map((value) => Buffer.from(value.subarray(start, end)).toString('hex')))
    const saltAt = 3 + '2026-01'.length
    expect(parts(saltAt, saltAt + 16).size).toBe(count)
    expect(parts(saltAt + 16, saltAt + 28).size).toBe(count)
    expect(parts(saltAt + 28, values[0]!.length).size).toBe(count)
  })

  it('the encrypted bytes contain nothing of the value', () => {
    const { plain, encrypted } = setup()
    expect(Buffer.from(encrypted).includes(plain.subarray(0, 4))).toBe(false)
    expect(encrypted.byteLength).toBe(3 + '2026-01'.length + 16 + 12 + plain.byteLength + 16)
  })
})

describe('a keyring refuses a value that was changed', () => {
  it('every flip of a single bit is refused', () => {
    const { context, encrypted } = setup()
    for (let bit = 0; bit < encrypted.byteLength * 8; bit++) {
      const changed = withBitFlipped(encrypted, bit)
      expect(() => keyring.decrypt(changed, context), `bit ${bit}`).toThrow(Error)
    }
  })

  it('a value that is cut off at any length is refused', () => {
    const { context, encrypted } = setup()
    for (let length = 0; length < encrypted.byteLength; length++) {
      expect(() => keyring.decrypt(encrypted.slice(0, length), context)).toThrow(Error)
    }
  })

  it('a value with more bytes behind it is refused', () => {
    const { context, encrypted } = setup()
    expect(() => keyring.decrypt(Buffer.concat([encrypted, encrypted]), context)).toThrow(REFUSED)
    expect(() => keyring.decrypt(Buffer.concat([encrypted, Buffer.of(0)]), context)).toThrow(
      REFUSED,
    )
  })

  it('random bytes are refused with an error, with and without a known header', () => {
    const { context, encrypted } = setup()
    const header = encrypted.subarray(0, 10)
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), fc.boolean(), (bytes, hasHeader) => {
        const given = hasHeader ? Buffer.concat([header, bytes]) : bytes
        expect(() => keyring.decrypt(given, context)).toThrow(Error)
      }),
    )
  })

  it.each([
    ['format version', 0, 2],
    ['algorithm', 1, 3],
  ])('an unknown %s is named in the error', (what, at, value) => {
    const { context, encrypted } = setup()
    encrypted[at] = value
    expect(() => keyring.decrypt(encrypted, context)).toThrow(
      `the bytes cannot be decrypted: ${what} ${value} is unknown`,
    )
  })
})

describe('a keyring refuses a value in another place', () => {
  const own = contextOf()
  it.each<[string, Partial<EncryptionContext>]>([
    ['another record', { identity: 'f0'.repeat(16) }],
    ['a later record of the same key', { recordId: '01890a5d-ac96-774b-bcce-b302099a8058' }],
    ['another tenant', { tenant: 'other' }],
    ['no tenant', { tenant: undefined }],
    ['another operation', { operation: 'POST /refunds' }],
    ['no associated data', { associatedData: new Uint8Array(0) }],
    ['shorter associated data', { associatedData: own.associatedData.slice(0, -1) }],
    [
      'longer associated data',
      { associatedData: Buffer.concat([own.associatedData, Buffer.of(0)]) },
    ],
  ])('a value that was moved to %s is refused', (_where, changes) => {
    const { context, encrypted } = setup()
    expect(() => keyring.decrypt(encrypted, { ...contextOf(changes) })).toThrow(REFUSED)
    expect(() => keyring.decrypt(encrypted, context)).not.toThrow()
  })

  const pairs = PURPOSES.flatMap((from) =>
    PURPOSES.filter((to) => to !== from).map((to): [EncryptionPurpose, EncryptionPurpose] => [
      from,
      to,
    ]),
  )

  it.each(pairs)(
    'a value of the purpose %s is refused as %s, even in the same record',
    (from, to) => {
      // The associated data is the same: the purpose is in the derivation of the key, too.
      const { associatedData } = contextOf()
      const encrypted = keyring.encrypt(
        Buffer.from('x'),
        contextOf({ purpose: from, associatedData }),
      )
      const wrong = contextOf({ purpose: to, associatedData })
      expect(() => keyring.decrypt(encrypted, wrong)).toThrow(REFUSED)
    },
  )

  it('the salt, nonce, ciphertext and tag of two values are not interchangeable', () => {
    const { context, encrypted } = setup()
    const { encrypted: other } = setup()
    const saltAt = 3 + '2026-01'.length
    const cuts = [saltAt, saltAt + 16, saltAt + 28, encrypted.byteLength - 16]
    for (const cut of cuts.slice(1)) {
      const mixed = Buffer.concat([encrypted.subarray(0, cut), other.subarray(cut)])
      expect(() => keyring.decrypt(mixed, context)).toThrow(REFUSED)
    }
  })

  it('the header and the associated data do not run into each other', () => {
    // One id is a prefix of the other, and the keys are equal: only the lengths differ.
    const key = newKey()
    const two = aesKeyring({ keys: { ab: key, abc: key }, current: 'abc' })
    const encrypted = two.encrypt(Buffer.from('x'), contextOf())
    const renamed = Buffer.concat([Buffer.of(1, 1, 2), encrypted.subarray(3)])
    expect(() => two.decrypt(renamed, contextOf())).toThrow(/^key ab does not decrypt/)
  })
})

describe('what a keyring must not encrypt', () => {
  it.each([
    ['0 bytes', new Uint8Array(0)],
    ['undefined', undefined],
    ['a string of 8 characters', 'record 1'],
  ])('a value with %s as associated data is not encrypted', (got, associatedData) => {
    const context = { ...contextOf(), associatedData } as EncryptionContext
    expect(() => keyring.encrypt(Buffer.from('x'), context)).toThrow(
      `encrypt() needs context.associatedData, got ${got}: without it`,
    )
  })

  it('a value that is not bytes is not encrypted, and is not in the error', () => {
    const given = 'card 4242' as unknown as Uint8Array
    expect(() => keyring.encrypt(given, contextOf())).toThrow(
      /^encrypt\(\) takes a Uint8Array as its first argument, got a string of 9 characters$/,
    )
  })
})
