import fc from 'fast-check'
import { expect, it } from 'vitest'
import { aesKeyring, envelopeKeyring, keyIdOf } from '../../src/encryption/index.ts'
import { contextOf, newKey } from './contexts.ts'

const encrypted = aesKeyring({
  keys: { 'acme.2026_01-a': newKey() },
  current: 'acme.2026_01-a',
}).encrypt(Buffer.from('x'), contextOf())

it('keyIdOf returns the id of the key that an aesKeyring used', () => {
  expect(keyIdOf(encrypted)).toBe('acme.2026_01-a')
})

it('keyIdOf returns the id of the key that an envelopeKeyring used', async () => {
  const keyring = envelopeKeyring({
    id: 'kms-1',
    wrap: () => Buffer.from('wrapped'),
    unwrap: () => newKey(),
  })
  expect(keyIdOf(await keyring.encrypt(Buffer.from('x'), contextOf()))).toBe('kms-1')
})

it('keyIdOf reads a view that does not start at the beginning of its buffer', () => {
  const larger = Buffer.concat([Buffer.alloc(5), encrypted])
  expect(keyIdOf(larger.subarray(5))).toBe('acme.2026_01-a')
})

it.each([
  ['no bytes', new Uint8Array(0)],
  ['a value that is cut off', encrypted.slice(0, 3 + 14 + 16 + 12 + 15)],
  ['another format version', Uint8Array.from(encrypted, (byte, at) => (at === 0 ? 2 : byte))],
  ['another algorithm', Uint8Array.from(encrypted, (byte, at) => (at === 1 ? 0 : byte))],
  ['an empty id', Uint8Array.from(encrypted, (byte, at) => (at === 2 ? 0 : byte))],
  [
    'an id with another character',
    Uint8Array.from(encrypted, (byte, at) => (at === 5 ? 32 : byte)),
  ],
  ['an id that is a path', Uint8Array.from([1, 1, 2, 46, 46, ...Buffer.alloc(99, 1)])],
  ['an id of 65 characters', Uint8Array.from([1, 1, 65, ...Buffer.alloc(200, 'a')])],
  ['a wrapped key of no bytes', Uint8Array.from([1, 2, 1, 65, 0, 0, ...Buffer.alloc(99, 1)])],
  ['a wrapped key that is cut off', Uint8Array.from([1, 2, 1, 65, 1, 0, ...Buffer.alloc(99, 1)])],
  ['no length of a wrapped key', Uint8Array.from([1, 2, 1, 65, 0])],
  ['JSON', Buffer.from('{"paymentId":"p_1","status":"paid","amount":1200,"currency":"EUR"}')],
  ['a string', 'text' as unknown as Uint8Array],
  ['undefined', undefined as unknown as Uint8Array],
  ['null', null as unknown as Uint8Array],
])('keyIdOf returns undefined for %s', (_what, bytes) => {
  expect(keyIdOf(bytes)).toBeUndefined()
})

it('keyIdOf never throws, and returns only ids that a keyring may have', () => {
  const start = fc.constantFrom([1, 1], [1, 2], [1], [])
  fc.assert(
    fc.property(start, fc.uint8Array({ maxLength: 120 }), (first, rest) => {
      const id = keyIdOf(Uint8Array.from([...first, ...rest]))
      if (id !== undefined) expect(id).toMatch(/^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/)
    }),
    { numRuns: 1_000 },
  )
})
