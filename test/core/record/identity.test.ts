import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { InvalidRequestError } from '../../../src/core/errors.ts'
import {
  FINGERPRINT_LENGTH_MAX,
  KEY_LENGTH_MAX,
  OPERATION_LENGTH_MAX,
  TENANT_LENGTH_MAX,
  checkIdentity,
  deterministicIdOf,
  downstreamKeyOf,
  identityOf,
  idSeedOf,
  idSourceOf,
  newRecordId,
  newToken,
} from '../../../src/core/record/identity.ts'

describe('identityOf', () => {
  it('an identity is 32 hexadecimal characters, the same in every process', () => {
    expect(identityOf({ tenant: 'acme', operation: 'pay' }, 'k')).toBe(
      'ba93c7aca37cb18c4f3554f8b1ffa627',
    )
  })

  it('an identity with a principal differs from that of another principal, and of none', () => {
    const of = (principal?: string, key = 'k') =>
      identityOf({ tenant: 'acme', operation: 'pay', principal }, key)
    expect(new Set([of(), of('a'), of('b'), of('', 'k'), of(undefined, 'k1:a')]).size).toBe(5)
  })

  it('an identity separates parts that are equal only when joined', () => {
    const ids = [
      identityOf({ tenant: 'a', operation: 'bc' }, 'd'),
      identityOf({ tenant: 'ab', operation: 'c' }, 'd'),
      identityOf({ tenant: 'a', operation: 'b' }, 'cd'),
      identityOf({ tenant: '1:a', operation: 'bc' }, 'd'),
      identityOf({ tenant: 'a2', operation: ':bc' }, 'd'),
      identityOf({ tenant: 'A', operation: 'bc' }, 'd'),
    ]
    expect(new Set(ids).size).toBe(ids.length)
  })

  it('an identity is equal for equal parts only', () => {
    const part = fc.oneof(fc.string({ unit: 'grapheme' }), fc.constantFrom('1:', '2:a', ':', '11'))
    const parts = fc.tuple(part, part, part)
    const idOf = ([tenant, operation, key]: [string, string, string]) =>
      identityOf({ tenant, operation }, key)
    fc.assert(
      fc.property(parts, parts, (one, other) => {
        const same = one.every((value, index) => value === other[index])
        expect(idOf(one) === idOf(other)).toBe(same)
      }),
    )
  })
})

describe('checkIdentity', () => {
  const good = { tenant: 't', operation: 'o', key: 'k', fingerprint: 'f' }
  const check = (changes: { [Name in keyof typeof good]?: unknown }) => () => {
    const given: Record<keyof typeof good, unknown> = { ...good, ...changes }
    const { tenant, operation, key, fingerprint } = given as typeof good
    checkIdentity({ tenant, operation }, key, fingerprint)
  }
  const MAX = {
    tenant: TENANT_LENGTH_MAX,
    operation: OPERATION_LENGTH_MAX,
    key: KEY_LENGTH_MAX,
    fingerprint: FINGERPRINT_LENGTH_MAX,
  }

  it.each(Object.entries(MAX))('accepts a %s of up to %i characters', (name, max) => {
    expect(check({ [name]: 'x'.repeat(max) })).not.toThrow()
    expect(check({ [name]: 'x'.repeat(max + 1) })).toThrow(
      `${name} has ${max + 1} characters; at most ${max} are allowed`,
    )
  })

  it.each(Object.keys(MAX))('refuses a %s that a store could not keep unchanged', (name) => {
    for (const value of ['', undefined, null, 7, {}, 'a\0b', 'half a pair \ud83d', '\udc00']) {
      expect(check({ [name]: value })).toThrow(InvalidRequestError)
      expect(check({ [name]: value })).toThrow(name)
    }
    expect(check({ [name]: 'ключ 🔑 \u0001' })).not.toThrow()
  })

  it('refuses a tenant that is a missing value converted to text', () => {
    expect(check({ tenant: 'undefined' })).toThrow(InvalidRequestError)
    expect(check({ tenant: 'null' })).toThrow(InvalidRequestError)
    expect(check({ operation: 'null', key: 'undefined' })).not.toThrow()
  })

  it('the error about an identity never contains the key', () => {
    expect(check({ key: `secret${'x'.repeat(KEY_LENGTH_MAX)}` })).toThrow(/^(?!.*secret)/)
  })
})

/** What the first release derives from the record id of the test. */
const FIRST_KEY = 'ok_tHMxj1gpjveX0XbsmmcKgMCHYpB2xOSd7HLw4Z_F0Lo'
const FIRST_ID = '66e44333-c141-8dbb-9141-25a5a77ebf7c'

describe('ids derived from a record', () => {
  it('a downstream key has at most 64 safe characters', () => {
    const key = downstreamKeyOf(newRecordId(0), 'charge '.repeat(100))
    expect(key).toMatch(/^ok_[\w-]{1,61}$/)
  })

  it('a deterministic id has the form of a UUID', () => {
    for (let n = 0; n < 50; n++) {
      expect(deterministicIdOf(newRecordId(n), `${n}`)).toMatch(
        /^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/,
      )
    }
  })

  it('the seed of an identity is the same each time, and differs from every other', () => {
    const identity = identityOf({ tenant: 'acme', operation: 'pay' }, 'k')
    expect(idSeedOf(identity)).toMatch(/^[0-9a-f]{32}$/)
    expect(idSeedOf(identity)).toBe(idSeedOf(identity))
    expect(idSeedOf(identity)).not.toBe(identity)
    const principal = identityOf({ tenant: 'acme', operation: 'pay', principal: 'ada' }, 'k')
    expect(idSeedOf(principal)).not.toBe(idSeedOf(identity))
  })

  it('a record without a seed keeps the ids that derive from its record id', () => {
    expect(idSourceOf({ recordId: 'r', idSeed: undefined })).toBe('r')
    expect(idSourceOf({ recordId: 'r', idSeed: 's' })).toBe('s')
    // The values of the first release: a provider may still know them.
    const recordId = '018f0000-0000-7000-8000-000000000000'
    expect(downstreamKeyOf(recordId, 'charge')).toBe(FIRST_KEY)
    expect(deterministicIdOf(recordId, 'order')).toBe(FIRST_ID)
  })

  it('derived ids depend only on the record and the name', () => {
    for (const derive of [downstreamKeyOf, deterministicIdOf]) {
      expect(derive('r', 'a')).toBe(derive('r', 'a'))
      expect(derive('r', 'a')).not.toBe(derive('r', 'b'))
      expect(derive('r', 'a')).not.toBe(derive('s', 'a'))
    }
  })
})

describe('newRecordId', () => {
  it('a record id is a unique UUID that sorts by its time', () => {
    const ids = Array.from({ length: 1_000 }, (_, n) => newRecordId(1_750_000_000_000 + n))
    expect(ids.toSorted()).toEqual(ids)
    for (const id of ids) {
      expect(id).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
    }
    expect(new Set(Array.from({ length: 1_000 }, () => newRecordId(0))).size).toBe(1_000)
  })
})

describe('newToken', () => {
  it('a token has 128 bits and is unique, even across its pool', () => {
    const tokens = Array.from({ length: 1_000 }, newToken)
    expect(new Set(tokens).size).toBe(1_000)
    for (const token of tokens) expect(token).toMatch(/^[0-9a-f]{32}$/)
  })
})
