import { inspect } from 'node:util'
import { describe, expect, it } from 'vitest'
import { isOncekeyError } from '../../src/core/errors.ts'
import { aesKeyring, keyIdOf, type AesKeyringOptions } from '../../src/encryption/index.ts'
import { contextOf, newKey } from './contexts.ts'

const plain = Buffer.from('{"paymentId":"p_1"}')
const context = contextOf()

describe('the options of aesKeyring', () => {
  const key = newKey()
  const shortKey = key.slice(0, 16)
  const ids =
    'must be a key id of 1 to 64 letters, digits, dots, hyphens and underscores, ' +
    'beginning with a letter or digit, got '

  it.each<[string, unknown, string]>([
    ['no options', undefined, 'aesKeyring takes an options object, got undefined'],
    ['an unknown option', { keys: { a: key }, curent: 'a' }, 'did you mean "current"?'],
    ['no keys', { current: 'a' }, 'keys must be an object { id: key } or a function'],
    ['a key instead of keys', { keys: key, current: 'a' }, 'a function of the id, got 32 bytes'],
    [
      'a key of 16 bytes',
      { keys: { a: shortKey }, current: 'a' },
      'key a must have 32 bytes, got 16',
    ],
    ['a key of zero bytes', { keys: { a: new Uint8Array(32) }, current: 'a' }, 'only zero bytes'],
    [
      'a key that is text',
      { keys: { a: 'c2VjcmV0' }, current: 'a' },
      'got a string of 8 characters; decode it',
    ],
    ['a missing key', { keys: { a: undefined }, current: 'a' }, '32 bytes, got undefined'],
    ['an empty id', { keys: { '': key }, current: 'a' }, `a name in keys ${ids}a string of 0 char`],
    ['an id with a space', { keys: { 'a b': key }, current: 'a b' }, `${ids}a string of 3 char`],
    ['an id that is a path', { keys: { '..': key }, current: '..' }, `${ids}a string of 2 char`],
    ['a long id', { keys: { ['a'.repeat(65)]: key }, current: 'a' }, `${ids}a string of 65 char`],
    ['no current', { keys: { a: key } }, `aesKeyring: current ${ids}undefined`],
    [
      'an unknown current',
      { keys: { b: key, a: key }, current: 'c' },
      'current is c, which is not in keys; keys has a, b',
    ],
    ['no key at all', { keys: {}, current: 'c' }, 'keys has no key'],
    [
      'current of Object',
      { keys: { a: key }, current: 'constructor' },
      'is constructor, which is not in keys',
    ],
  ])('aesKeyring refuses %s', (_what, options, text) => {
    const create = () => aesKeyring(options as AesKeyringOptions)
    expect(create).toThrow(text)
    expect(create).toThrow(expect.objectContaining({ code: 'INVALID_OPTIONS' }))
  })

  it('the error of a wrong key or id contains nothing of it', () => {
    const text = Buffer.from(key).toString('base64')
    const wrong: unknown[] = [
      { keys: { a: text }, current: 'a' },
      { keys: { [text]: 'a' }, current: 'a' },
      { keys: { a: key }, current: text },
      { keys: text, current: 'a' },
      { keys: { a: shortKey }, current: 'a' },
    ]
    for (const options of wrong) {
      const message = messageOf(() => aesKeyring(options as AesKeyringOptions))
      expect(message).not.toContain(text.slice(0, 8))
      expect(message).not.toContain(Buffer.from(shortKey).toString('hex').slice(0, 8))
    }
  })

  it('a keyring has copies of its keys, so that the caller may wipe them', () => {
    const own = newKey()
    const keyring = aesKeyring({ keys: { a: own }, current: 'a' })
    const encrypted = keyring.encrypt(plain, context)
    own.fill(0)
    expect(plain.equals(keyring.decrypt(encrypted, context))).toBe(true)
  })

  it('no inspection of a keyring shows a key', () => {
    const keyring = aesKeyring({ keys: { a: key }, current: 'a' })
    const shown = inspect(keyring, { showHidden: true, depth: 9 }) + JSON.stringify(keyring)
    expect(shown).not.toContain(Buffer.from(key).toString('hex').slice(0, 8))
    expect(shown).not.toMatch(new RegExp([...key.subarray(0, 4)].join(',\\s*')))
  })
})

describe('rotation', () => {
  const keys = { old: newKey(), new: newKey() }

  it('after a rotation, values of the old key decrypt and the new key encrypts', () => {
    const before = aesKeyring({ keys: { old: keys.old }, current: 'old' })
    const after = aesKeyring({ keys, current: 'new' })
    const early = before.encrypt(plain, context)
    const late = after.encrypt(plain, context)
    expect([keyIdOf(early), keyIdOf(late)]).toEqual(['old', 'new'])
    expect(plain.equals(after.decrypt(early, context))).toBe(true)
    expect(plain.equals(after.decrypt(late, context))).toBe(true)
  })

  it('the error for a key that was removed too early names the key and says what to do', () => {
    const early = aesKeyring({ keys, current: 'old' }).encrypt(plain, context)
    const without = aesKeyring({ keys: { new: keys.new }, current: 'new' })
    expect(() => without.decrypt(early, context)).toThrow(
      'key old is not in the keyring: keep an old key until no stored value needs it, see ' +
        'docs/guides/encryption.md. If the key was destroyed, the value cannot be read again',
    )
  })

  it('a value does not decrypt with another key that has the same id', () => {
    const encrypted = aesKeyring({ keys: { a: keys.old }, current: 'a' }).encrypt(plain, context)
    const other = aesKeyring({ keys: { a: keys.new }, current: 'a' })
    expect(() => other.decrypt(encrypted, context)).toThrow(
      /^key a does not decrypt the bytes: .* or another key has this id$/,
    )
  })

  it('a key id that is a property of every object is not in the keyring', () => {
    const encrypted = aesKeyring({ keys: { toString: keys.old }, current: 'toString' })
    const value = encrypted.encrypt(plain, context)
    const other = aesKeyring({ keys, current: 'new' })
    expect(() => other.decrypt(value, context)).toThrow('key toString is not in the keyring')
  })

  it('a value of an envelopeKeyring is refused by name', () => {
    const bytes = Uint8Array.from([1, 2, 3, ...Buffer.from('kms'), 0, 1, 9, ...Buffer.alloc(50)])
    expect(() => aesKeyring({ keys, current: 'new' }).decrypt(bytes, context)).toThrow(
      'the bytes were encrypted by an envelopeKeyring with the id kms, and this is an aesKeyring',
    )
  })
})

describe('a key for each tenant', () => {
  /** A table of keys, as an application keeps it, with a key for each tenant. */
  function setup() {
    const keys = new Map([
      ['key-of-acme', newKey()],
      ['key-of-zeta', newKey()],
    ])
    const asked: unknown[] = []
    const keyring = aesKeyring({
      keys: (id) => keys.get(id),
      current: (subject) => {
        asked.push(subject)
        return `key-of-${subject.tenant}`
      },
    })
    return { keys, keyring, asked }
  }
  const zeta = contextOf({ tenant: 'zeta' })

  it('each tenant has its own key, chosen by its name alone', () => {
    const { keyring, asked } = setup()
    expect(keyIdOf(keyring.encrypt(plain, context))).toBe('key-of-acme')
    expect(keyIdOf(keyring.encrypt(plain, zeta))).toBe('key-of-zeta')
    keyring.prepare({ tenant: 'acme' })
    expect(asked).toEqual([{ tenant: 'acme' }, { tenant: 'zeta' }, { tenant: 'acme' }])
  })

  it('the value of a tenant does not decrypt as that of another', () => {
    const { keyring } = setup()
    expect(() => keyring.decrypt(keyring.encrypt(plain, context), zeta)).toThrow(
      'key key-of-acme does not decrypt the bytes',
    )
  })

  it('destroying the key of a tenant makes only its values unreadable', () => {
    const { keys, keyring } = setup()
    const values = { acme: keyring.encrypt(plain, context), zeta: keyring.encrypt(plain, zeta) }
    keys.delete('key-of-acme')
    expect(() => keyring.decrypt(values.acme, context)).toThrow(
      /^key key-of-acme is not in the keyring: .* If the key was destroyed, the value cannot be/,
    )
    expect(plain.equals(keyring.decrypt(values.zeta, zeta))).toBe(true)
  })

  it('prepare throws before the work runs if the current key is missing', () => {
    const { keys, keyring } = setup()
    keys.delete('key-of-acme')
    const text = 'the current key key-of-acme is not in the keyring: add it to keys before'
    expect(() => keyring.prepare({ tenant: 'acme' })).toThrow(text)
    expect(() => keyring.encrypt(plain, context)).toThrow(text)
    expect(() => keyring.prepare({ tenant: 'zeta' })).not.toThrow()
  })

  it.each([
    ['an invalid id', () => 'acme inc', /^aesKeyring: the result of current\(\) must be a key id/],
    ['a promise', () => Promise.resolve('a'), /the result of current\(\) .* got a promise$/],
  ])('prepare throws if current() returns %s', (_what, current, text) => {
    const keyring = aesKeyring({ keys: () => newKey(), current } as unknown as AesKeyringOptions)
    expect(() => keyring.prepare({ tenant: 'acme' })).toThrow(text)
  })

  it.each([
    ['a promise', () => Promise.resolve(newKey()), 'got a promise'],
    ['a short key', () => newKey().slice(1), 'must have 32 bytes, got 31 bytes'],
    ['a wiped key', () => new Uint8Array(32), 'has only zero bytes'],
  ])('prepare throws if keys() returns %s', (_what, keys, text) => {
    const options = { keys, current: 'a' } as unknown as AesKeyringOptions
    expect(() => aesKeyring(options).prepare({ tenant: 'acme' })).toThrow(text)
  })

  it('a key that was replaced by zero bytes never encrypts', () => {
    const key = newKey()
    const keyring = aesKeyring({ keys: () => key, current: 'a' })
    keyring.encrypt(plain, context)
    key.fill(0)
    expect(() => keyring.encrypt(plain, context)).toThrow('has only zero bytes')
  })
})

describe('the errors of decrypt', () => {
  it('contain no byte of the value and none of the key', () => {
    const key = newKey()
    const keyring = aesKeyring({ keys: { a: key }, current: 'a' })
    const encrypted = keyring.encrypt(plain, context)
    encrypted[encrypted.length - 1]! ^= 1
    const wrong: (() => unknown)[] = [
      () => keyring.decrypt(encrypted, context),
      () => keyring.decrypt(encrypted.slice(0, 20), context),
      () => keyring.decrypt(encrypted, { ...context, associatedData: new Uint8Array(0) }),
      () => keyring.encrypt(plain, { ...context, associatedData: plain.subarray(0, 0) }),
    ]
    for (const call of wrong) {
      const error = errorOf(call)
      const shown = inspect(error, { showHidden: true, depth: 9 })
      expect(shown).not.toContain('paymentId')
      expect(shown).not.toContain(Buffer.from(key).toString('hex').slice(0, 8))
      expect(shown).not.toContain(plain.toString('hex').slice(0, 8))
    }
    expect(isOncekeyError(errorOf(wrong[3]!))).toBe(true)
  })
})

function errorOf(call: () => unknown): unknown {
  try {
    call()
  } catch (error) {
    return error
  }
  throw new Error('expected an error')
}

function messageOf(call: () => unknown): string {
  return (errorOf(call) as Error).message
}
