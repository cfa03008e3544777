import { inspect } from 'node:util'
import { describe, expect, it } from 'vitest'
import type { Clock } from '../../src/core/time/clock.ts'
import {
  aesKeyring,
  envelopeKeyring,
  keyIdOf,
  type EnvelopeCacheOptions,
  type EnvelopeKeyringOptions,
} from '../../src/encryption/index.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { contextOf, newKey, PURPOSES, withBitFlipped } from './contexts.ts'
import { FakeKeyService } from './fake-key-service.ts'

const plain = Buffer.from('{"paymentId":"p_1"}')
const acme = contextOf()
const zeta = contextOf({ tenant: 'zeta' })
const HOUR_MS = 60 * 60 * 1000

function setup(options: Partial<EnvelopeKeyringOptions> = {}) {
  const clock = new FakeClock()
  const service = new FakeKeyService()
  const { wrap, unwrap } = service
  /** Another process: the same service, and nothing in memory. */
  const restart = () => envelopeKeyring({ wrap, unwrap, clock, ...options })
  return { clock, service, restart, keyring: restart() }
}

const isPlain = (bytes: Uint8Array): boolean => plain.equals(bytes)

describe('an envelopeKeyring', () => {
  it('calls the service once in prepare, and then encrypts without a promise', async () => {
    const { service, keyring } = setup()
    await keyring.prepare({ tenant: 'acme' })
    expect(service.calls).toMatchObject([{ name: 'wrap', tenant: 'acme', keyId: 'envelope' }])
    const encrypted = keyring.encrypt(plain, acme)
    expect(encrypted).toBeInstanceOf(Uint8Array)
    expect(keyIdOf(encrypted as Uint8Array)).toBe('envelope')
    expect(service.calls.length).toBe(1)
  })

  it('prepare returns no promise while the data key may be used', async () => {
    const { keyring } = setup()
    expect(keyring.prepare({ tenant: 'acme' })).toBeInstanceOf(Promise)
    await keyring.prepare({ tenant: 'acme' })
    expect(keyring.prepare({ tenant: 'acme' })).toBeUndefined()
  })

  it('decrypts without a promise what this process has encrypted', async () => {
    const { service, keyring } = setup()
    const encrypted = await keyring.encrypt(plain, acme)
    const decrypted = keyring.decrypt(encrypted, acme)
    expect(decrypted).toBeInstanceOf(Uint8Array)
    expect(isPlain(decrypted as Uint8Array)).toBe(true)
    expect(service.count('unwrap')).toBe(0)
  })

  it.each(PURPOSES)('another process decrypts a value of the purpose %s', async (purpose) => {
    const { service, keyring, restart } = setup()
    const context = contextOf({ purpose })
    const encrypted = await keyring.encrypt(plain, context)
    const other = restart()
    expect(isPlain(await other.decrypt(encrypted, context))).toBe(true)
    expect(service.calls.at(-1)).toMatchObject({
      name: 'unwrap',
      tenant: 'acme',
      keyId: 'envelope',
    })
    // The key is in memory now.
    expect(other.decrypt(encrypted, context)).toBeInstanceOf(Uint8Array)
    expect(service.count('unwrap')).toBe(1)
  })

  it.each([0, 1, 1024 * 1024])('%i bytes survive the round trip', async (bytes) => {
    const { keyring, restart } = setup()
    const value = Buffer.alloc(bytes, 7)
    const encrypted = await keyring.encrypt(value, acme)
    expect(value.equals(await restart().decrypt(encrypted, acme))).toBe(true)
  })

  it('each tenant has a separate data key, and messages without a tenant have one', async () => {
    const service = new FakeKeyService()
    const tenants: (string | undefined)[] = []
    const keys = new Set<string>()
    const keyring = envelopeKeyring({
      unwrap: service.unwrap,
      wrap: (key, call) => {
        tenants.push(call.tenant)
        keys.add(Buffer.from(key).toString('hex'))
        return service.wrap(key, call)
      },
    })
    const contexts = ['acme', 'zeta', undefined, '-'].map((tenant) => contextOf({ tenant }))
    const values = await Promise.all(
      contexts.map(async (context) => keyring.encrypt(plain, context)),
    )
    expect(tenants).toEqual(['acme', 'zeta', undefined, '-'])
    expect(keys.size).toBe(4)
    const other = envelopeKeyring({ unwrap: service.unwrap, wrap: service.wrap })
    for (const [n, context] of contexts.entries()) {
      expect(isPlain(await other.decrypt(values[n]!, context))).toBe(true)
    }
  })

  it('every flip of a single bit is refused, in a process without the key', async () => {
    const { keyring, restart } = setup()
    const encrypted = await keyring.encrypt(plain, acme)
    const other = restart()
    for (let bit = 0; bit < encrypted.byteLength * 8; bit++) {
      const attempt = async () => other.decrypt(withBitFlipped(encrypted, bit), acme)
      await expect(attempt(), `bit ${bit}`).rejects.toThrow(Error)
    }
  })

  it('a value that is cut off at any length is refused', async () => {
    const { keyring } = setup()
    const encrypted = await keyring.encrypt(plain, acme)
    for (let length = 0; length < encrypted.byteLength; length++) {
      const attempt = async () => keyring.decrypt(encrypted.slice(0, length), acme)
      await expect(attempt()).rejects.toThrow(Error)
    }
  })

  it('the service is asked about the value of another tenant, and refuses it', async () => {
    const { service, keyring } = setup()
    const encrypted = await keyring.encrypt(plain, acme)
    const sameData = { ...zeta, associatedData: acme.associatedData }
    await expect(keyring.decrypt(encrypted, sameData)).rejects.toThrow(
      /^unwrap\(\) for key envelope failed: /,
    )
    expect(service.calls.at(-1)).toMatchObject({ name: 'unwrap', tenant: 'zeta' })
  })

  it('a value in another record is refused', async () => {
    const { keyring } = setup()
    const encrypted = await keyring.encrypt(plain, acme)
    const later = contextOf({ recordId: '01890a5d-ac96-774b-bcce-b302099a8058' })
    expect(() => keyring.decrypt(encrypted, later)).toThrow(
      'key envelope does not decrypt the bytes',
    )
  })

  it('a value of an aesKeyring is refused by name', () => {
    const bytes = Uint8Array.from([1, 1, 1, 65, ...Buffer.alloc(50)])
    expect(() => setup().keyring.decrypt(bytes, acme)).toThrow(
      'the bytes were encrypted by an aesKeyring with the key A, and this is an envelopeKeyring',
    )
  })

  it('two keyrings replace each other, told apart by keyIdOf', async () => {
    const { keyring } = setup({ id: 'kms' })
    const earlier = aesKeyring({ keys: { old: newKey() }, current: 'old' })
    const values = [earlier.encrypt(plain, acme), await keyring.encrypt(plain, acme)]
    const decrypt = (bytes: Uint8Array) =>
      (keyIdOf(bytes) === 'kms' ? keyring : earlier).decrypt(bytes, acme)
    for (const value of values) expect(isPlain(await decrypt(value))).toBe(true)
  })

  it('a value without associated data is refused before the service is called', () => {
    const { service, keyring } = setup()
    const context = { ...acme, associatedData: new Uint8Array(0) }
    expect(() => keyring.encrypt(plain, context)).toThrow('needs context.associatedData')
    expect(service.calls).toEqual([])
  })

  it('no inspection of a keyring shows a data key', async () => {
    let key = ''
    const { keyring } = setup({
      wrap: (bytes) => {
        key = Buffer.from(bytes).toString('hex')
        return Buffer.from('wrapped')
      },
    })
    await keyring.prepare({ tenant: 'acme' })
    const shown = inspect(keyring, { showHidden: true, depth: 9 }) + JSON.stringify(keyring)
    expect(key.length).toBe(64)
    expect(shown).not.toContain(key.slice(0, 8))
  })
})

describe('the age and the uses of a data key', () => {
  it('prepare renews a data key whose age is over, and not before', async () => {
    const { clock, service, keyring } = setup()
    await keyring.prepare({ tenant: 'acme' })
    clock.advance(HOUR_MS - 1)
    await keyring.prepare({ tenant: 'acme' })
    expect(service.count('wrap')).toBe(1)
    clock.advance(1)
    await keyring.prepare({ tenant: 'acme' })
    expect(service.count('wrap')).toBe(2)
  })

  it('prepare renews a data key whose uses are over, and not before', async () => {
    const { service, keyring } = setup({ cache: { uses: 2 } })
    for (let n = 0; n < 5; n++) {
      await keyring.prepare({ tenant: 'acme' })
      await keyring.encrypt(plain, acme)
    }
    expect(service.count('wrap')).toBe(3)
  })

  it('a use by one tenant does not count for another', async () => {
    const { service, keyring } = setup({ cache: { uses: 1 } })
    await keyring.encrypt(plain, acme)
    await keyring.prepare({ tenant: 'zeta' })
    await keyring.prepare({ tenant: 'zeta' })
    expect(service.calls.map(({ tenant }) => tenant)).toEqual(['acme', 'zeta'])
  })

  it('encrypt returns no promise after age and uses are over: the work has run', async () => {
    const { clock, service, keyring } = setup({ cache: { uses: 1 } })
    await keyring.prepare({ tenant: 'acme' })
    clock.advance(HOUR_MS + 14 * 60_000)
    for (let n = 0; n < 3; n++) {
      expect(keyring.encrypt(plain, acme)).toBeInstanceOf(Uint8Array)
    }
    expect(service.count('wrap')).toBe(1)
  })

  it('a data key leaves memory 15 minutes after its age, without any request', async () => {
    const { clock, service, keyring } = setup()
    await keyring.prepare({ tenant: 'acme' })
    clock.advance(HOUR_MS + 15 * 60_000)
    expect(clock.pendingTimers).toBe(0)
    const encrypted = keyring.encrypt(plain, acme)
    expect(encrypted).toBeInstanceOf(Promise)
    await encrypted
    expect(service.count('wrap')).toBe(2)
  })

  it('an unwrapped key leaves memory at its age, without any request', async () => {
    const { clock, keyring, restart } = setup({ cache: { ageMs: 1_000 } })
    const encrypted = await keyring.encrypt(plain, acme)
    const other = restart()
    clock.advance(60 * 60_000)
    await other.decrypt(encrypted, acme)
    expect(clock.pendingTimers).toBe(1)
    clock.advance(1_000)
    expect(clock.pendingTimers).toBe(0)
  })

  it('decrypt asks the service again after the age, so that a revoked key ends', async () => {
    const { clock, service, keyring } = setup({ cache: { ageMs: 1_000 } })
    const encrypted = await keyring.encrypt(plain, acme)
    clock.advance(999)
    expect(keyring.decrypt(encrypted, acme)).toBeInstanceOf(Uint8Array)
    clock.advance(1)
    service.fails = true
    await expect(keyring.decrypt(encrypted, acme)).rejects.toThrow('the key service is down')
    service.fails = false
    expect(isPlain(await keyring.decrypt(encrypted, acme))).toBe(true)
  })

  it('decrypt checks the age itself, because a busy process runs timers late', async () => {
    const { clock, service } = setup()
    const late: Clock = {
      nowMs: () => clock.nowMs(),
      monotonicMs: () => clock.monotonicMs(),
      after: () => () => undefined,
      soon: (run) => clock.soon(run),
    }
    const { wrap, unwrap } = service
    const keyring = envelopeKeyring({ wrap, unwrap, clock: late, cache: { ageMs: 1_000 } })
    const encrypted = await keyring.encrypt(plain, acme)
    clock.advance(1_000)
    await keyring.decrypt(encrypted, acme)
    expect(service.calls.map(({ name }) => name)).toEqual(['wrap', 'unwrap'])
  })

  it('a new id of the key at the service is used from the next prepare on', async () => {
    let id = 'kms-1'
    const { keyring, restart } = setup({ id: () => id })
    const early = await keyring.encrypt(plain, acme)
    id = 'kms-2'
    // Work that began before needs no service: it uses the data key of the old id.
    expect(keyIdOf(keyring.encrypt(plain, acme) as Uint8Array)).toBe('kms-1')
    await keyring.prepare({ tenant: 'acme' })
    const late = keyring.encrypt(plain, acme) as Uint8Array
    expect([keyIdOf(early), keyIdOf(late)]).toEqual(['kms-1', 'kms-2'])
    const other = restart()
    expect(isPlain(await other.decrypt(early, acme))).toBe(true)
    expect(isPlain(await other.decrypt(late, acme))).toBe(true)
  })

  it('destroying the key of a tenant at the service makes only its values unreadable', async () => {
    const destroyed = new Set<string | undefined>()
    const { service, keyring, restart } = setup({
      id: ({ tenant }) => `kms-${tenant}`,
      unwrap: (wrapped, call) => {
        if (destroyed.has(call.keyId)) throw new Error('the key is destroyed')
        return service.unwrap(wrapped, call)
      },
    })
    const [first, second] = [await keyring.encrypt(plain, acme), await keyring.encrypt(plain, zeta)]
    destroyed.add('kms-acme')
    const other = restart()
    await expect(other.decrypt(first, acme)).rejects.toThrow(
      'unwrap() for key kms-acme failed: the key is destroyed',
    )
    expect(isPlain(await other.decrypt(second, zeta))).toBe(true)
  })
})

describe('calls at the same time', () => {
  it('concurrent prepares of a tenant share one call', async () => {
    const { service, keyring } = setup()
    const subject = { tenant: 'acme' }
    await Promise.all([1, 2, 3].map(async () => keyring.prepare(subject)))
    await Promise.all([keyring.prepare(subject), keyring.encrypt(plain, acme)])
    expect(service.count('wrap')).toBe(1)
  })

  it('encrypt joins the call of a prepare', async () => {
    const { service, keyring } = setup()
    const preparing = keyring.prepare({ tenant: 'acme' })
    await Promise.all([preparing, keyring.encrypt(plain, acme), keyring.encrypt(plain, acme)])
    expect(service.count('wrap')).toBe(1)
  })

  it('prepares of several tenants make a call each', async () => {
    const { service, keyring } = setup()
    await Promise.all(['a', 'b', 'c'].map(async (tenant) => keyring.prepare({ tenant })))
    expect(service.count('wrap')).toBe(3)
  })

  it('concurrent decrypts of values with the same data key share one call', async () => {
    const { service, keyring, restart } = setup()
    const values = [await keyring.encrypt(plain, acme), await keyring.encrypt(plain, acme)]
    const other = restart()
    const decrypted = await Promise.all(values.map(async (value) => other.decrypt(value, acme)))
    expect(decrypted.map(isPlain)).toEqual([true, true])
    expect(service.count('unwrap')).toBe(1)
  })

  it('a bad value that shares a call does not fail the good ones', async () => {
    const { keyring, restart } = setup()
    const good = await keyring.encrypt(plain, acme)
    const bad = withBitFlipped(good, good.byteLength * 8 - 1)
    const other = restart()
    const results = await Promise.allSettled([bad, good].map(async (v) => other.decrypt(v, acme)))
    expect(results.map(({ status }) => status)).toEqual(['rejected', 'fulfilled'])
  })

  // With room for one tenant, the key of the second would wipe that of the first before it is used.
  it('a key that arrives is used before another can evict it', async () => {
    const { service, keyring, restart } = setup({ cache: { tenantsMax: 1, unwrappedMax: 1 } })
    const contexts = ['a', 'b', 'c', 'd'].map((tenant) => contextOf({ tenant }))
    const letAnswer = service.hold()
    const encrypting = contexts.map(async (context) => keyring.encrypt(plain, context))
    letAnswer()
    const values = await Promise.all(encrypting)
    const other = restart()
    const letUnwrap = service.hold()
    const decrypting = values.map(async (value, n) => other.decrypt(value, contexts[n]!))
    letUnwrap()
    expect((await Promise.all(decrypting)).map(isPlain)).toEqual([true, true, true, true])
  })
})

describe('the number of keys in memory', () => {
  it('tenantsMax drops the data key of the tenant that was longest idle', async () => {
    const { service, keyring } = setup({ cache: { tenantsMax: 2 } })
    await keyring.prepare({ tenant: 'a' })
    await keyring.prepare({ tenant: 'b' })
    await keyring.prepare({ tenant: 'a' })
    await keyring.prepare({ tenant: 'c' })
    expect(keyring.prepare({ tenant: 'a' })).toBeUndefined()
    expect(keyring.prepare({ tenant: 'c' })).toBeUndefined()
    const dropped = keyring.encrypt(plain, contextOf({ tenant: 'b' }))
    expect(dropped).toBeInstanceOf(Promise)
    await dropped
    expect(service.calls.map(({ tenant }) => tenant)).toEqual(['a', 'b', 'c', 'b'])
  })

  it('unwrappedMax drops the key that was longest idle, and decrypt unwraps it again', async () => {
    const { service, keyring, restart } = setup({ cache: { unwrappedMax: 2 } })
    const contexts = ['a', 'b', 'c'].map((tenant) => contextOf({ tenant }))
    const values = await Promise.all(
      contexts.map(async (context) => keyring.encrypt(plain, context)),
    )
    const other = restart()
    for (const n of [0, 1, 0, 2, 0, 1]) {
      expect(isPlain(await other.decrypt(values[n]!, contexts[n]!))).toBe(true)
    }
    const unwrapped = service.calls.filter(({ name }) => name === 'unwrap')
    expect(unwrapped.map(({ tenant }) => tenant)).toEqual(['a', 'b', 'c', 'b'])
  })

  it('a thousand tenants leave no more timers than there is room for keys', async () => {
    const cache: EnvelopeCacheOptions = { tenantsMax: 5, unwrappedMax: 7 }
    const { clock, keyring } = setup({ cache })
    for (let n = 0; n < 1_000; n++) await keyring.prepare({ tenant: `t${n}` })
    expect(clock.pendingTimers).toBe(12)
  })
})

describe('the bytes of a key', () => {
  it('the key that wrap got is wiped when its answer is there, and not before', async () => {
    const { service, keyring } = setup()
    const letAnswer = service.hold()
    const preparing = keyring.prepare({ tenant: 'acme' })
    const lent = service.calls[0]!.bytes
    expect(lent.some((byte) => byte !== 0)).toBe(true)
    letAnswer()
    await preparing
    expect(lent).toEqual(new Uint8Array(32))
  })

  it('a wrap that wipes its argument does not change the data key', async () => {
    const service = new FakeKeyService()
    const keyring = envelopeKeyring({
      unwrap: service.unwrap,
      wrap: async (key, call) => {
        const wrapped = await service.wrap(key, call)
        key.fill(0)
        return wrapped
      },
    })
    const encrypted = await keyring.encrypt(plain, acme)
    const { unwrap, wrap } = service
    const other = envelopeKeyring({ wrap, unwrap })
    expect(isPlain(await other.decrypt(encrypted, acme))).toBe(true)
  })

  it('a wrap that reuses its result does not change stored values', async () => {
    const service = new FakeKeyService()
    let result: Uint8Array = new Uint8Array(0)
    const keyring = envelopeKeyring({
      unwrap: service.unwrap,
      wrap: async (key, call) => {
        result = await service.wrap(key, call)
        return result
      },
    })
    await keyring.prepare({ tenant: 'acme' })
    result.fill(0)
    const encrypted = await keyring.encrypt(plain, acme)
    const { unwrap, wrap } = service
    expect(isPlain(await envelopeKeyring({ wrap, unwrap }).decrypt(encrypted, acme))).toBe(true)
  })

  it('an unwrap that wipes its argument does not change the value', async () => {
    const { service, keyring } = setup()
    const encrypted = await keyring.encrypt(plain, acme)
    const other = envelopeKeyring({
      wrap: service.wrap,
      unwrap: async (wrapped, call) => {
        const key = await service.unwrap(wrapped, call)
        wrapped.fill(0)
        return key
      },
    })
    expect(isPlain(await other.decrypt(encrypted, acme))).toBe(true)
  })

  it('an unwrap may return the same array again after the first key was wiped', async () => {
    const key = newKey()
    const options = { wrap: () => Buffer.from('wrapped'), unwrap: () => key }
    const clock = new FakeClock()
    const value = Uint8Array.from([1, 2, 1, 65, 0, 7, ...Buffer.from('wrapped')])
    const keyring = envelopeKeyring({ ...options, clock, cache: { ageMs: 1 } })
    const bytes = Buffer.concat([value, Buffer.alloc(44)])
    for (let n = 0; n < 2; n++) {
      const attempt = async () => keyring.decrypt(bytes, acme)
      await expect(attempt()).rejects.toThrow('key A does not decrypt')
      clock.advance(1)
    }
    expect(key.some((byte) => byte !== 0)).toBe(true)
  })
})
