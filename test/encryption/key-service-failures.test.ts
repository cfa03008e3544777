import { describe, expect, it } from 'vitest'
import type { HookBytes } from '../../src/core/encryption.ts'
import { envelopeKeyring, type EnvelopeKeyringOptions } from '../../src/encryption/index.ts'
import { resolveEnvelopeOptions } from '../../src/encryption/envelope-options.ts'
import { KeyService } from '../../src/encryption/key-service.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { contextOf, newKey } from './contexts.ts'
import { FakeKeyService } from './fake-key-service.ts'

const plain = Buffer.from('{"paymentId":"p_1"}')
const acme = contextOf()
const HOUR_MS = 60 * 60 * 1000

function setup(options: Partial<EnvelopeKeyringOptions> = {}) {
  const clock = new FakeClock()
  const service = new FakeKeyService()
  const { wrap, unwrap } = service
  const restart = () => envelopeKeyring({ wrap, unwrap, clock, ...options })
  return { clock, service, restart, keyring: restart() }
}

describe('a key service that fails', () => {
  it('prepare rejects, and the failure is not kept', async () => {
    const { service, keyring } = setup()
    service.fails = true
    const prepare = async () => keyring.prepare({ tenant: 'acme' })
    await expect(prepare()).rejects.toThrow(
      'wrap() for key envelope failed: the key service is down',
    )
    await expect(prepare()).rejects.toThrow('the key service is down')
    service.fails = false
    await prepare()
    expect(service.count('wrap')).toBe(3)
  })

  it('encrypt still works with the data key in memory while prepare rejects', async () => {
    const { clock, service, keyring } = setup()
    await keyring.prepare({ tenant: 'acme' })
    clock.advance(HOUR_MS)
    service.fails = true
    await expect(keyring.prepare({ tenant: 'acme' })).rejects.toThrow('the key service is down')
    expect(keyring.encrypt(plain, acme)).toBeInstanceOf(Uint8Array)
  })

  it('encrypt without a data key in memory rejects', async () => {
    const { service, keyring } = setup()
    service.fails = true
    await expect(keyring.encrypt(plain, acme)).rejects.toThrow('the key service is down')
  })

  it('decrypt rejects, and the next one asks the service again', async () => {
    const { service, keyring, restart } = setup()
    const encrypted = await keyring.encrypt(plain, acme)
    const other = restart()
    service.fails = true
    await expect(other.decrypt(encrypted, acme)).rejects.toThrow(
      'unwrap() for key envelope failed: the key service is down',
    )
    service.fails = false
    expect(plain.equals(await other.decrypt(encrypted, acme))).toBe(true)
  })

  it('the error keeps that of the service as its cause', async () => {
    const cause = new Error('access denied')
    const { keyring } = setup({ wrap: () => Promise.reject(cause) })
    await expect(keyring.prepare({ tenant: 'acme' })).rejects.toMatchObject({ cause })
  })

  it('a wrap that throws at once is a rejection of prepare', async () => {
    const { keyring } = setup({
      wrap: () => {
        throw new Error('no credentials')
      },
    })
    await expect(keyring.prepare({ tenant: 'acme' })).rejects.toThrow('no credentials')
  })

  it('the key that wrap got is wiped after a failure, too', async () => {
    const { service, keyring } = setup()
    service.fails = true
    await expect(keyring.prepare({ tenant: 'acme' })).rejects.toThrow('down')
    expect(service.calls[0]!.bytes).toEqual(new Uint8Array(32))
  })
})

describe('a key service that is slow', () => {
  it('prepare rejects at the time limit, and the call is aborted', async () => {
    const { clock, service, keyring } = setup()
    service.hold()
    const failure = failureOf(keyring.prepare({ tenant: 'acme' }))
    await clock.advanceAsync(2_999)
    expect(service.calls[0]!.signal.aborted).toBe(false)
    await clock.advanceAsync(1)
    expect(await failure).toBe('wrap() for key envelope gave no answer within timeoutMs (3000)')
    expect(service.calls[0]!.signal.aborted).toBe(true)
    expect(clock.pendingTimers).toBe(0)
  })

  it('a late answer is not used, and the key is wiped only then', async () => {
    const { clock, service, keyring } = setup({ timeoutMs: 10 })
    const letAnswer = service.hold()
    const failure = failureOf(keyring.prepare({ tenant: 'acme' }))
    await clock.advanceAsync(10)
    expect(await failure).toContain('timeoutMs (10)')
    const lent = service.calls[0]!.bytes
    expect(lent.some((byte) => byte !== 0)).toBe(true)
    letAnswer()
    await clock.advanceAsync(0)
    expect(lent).toEqual(new Uint8Array(32))
    await keyring.prepare({ tenant: 'acme' })
    expect(service.count('wrap')).toBe(2)
  })

  it('an answer after the time limit gives no key, so none stays in memory', async () => {
    const { service } = setup()
    const { wrap, unwrap } = service
    const keys = new KeyService(resolveEnvelopeOptions({ wrap, unwrap }))
    const owner = { tenant: 'acme', keyId: 'kms' }
    const ended = AbortSignal.abort(new Error('the limit'))
    const wrapped = await keys.newKey(owner).begin(new AbortController().signal)
    await expect(keys.newKey(owner).begin(ended)).rejects.toThrow('the limit')
    const stored = keys.storedKey(owner, wrapped.wrapped)
    await expect(stored.begin(ended)).rejects.toThrow('the limit')
  })

  it('a prepare after the time limit makes a new call while the old one still hangs', async () => {
    const { clock, service, keyring } = setup()
    service.hold()
    const failure = failureOf(keyring.prepare({ tenant: 'acme' }))
    await clock.advanceAsync(3_000)
    expect(await failure).toContain('no answer within')
    const letAnswer = service.hold()
    const second = keyring.prepare({ tenant: 'acme' })
    letAnswer()
    await second
    expect(service.count('wrap')).toBe(2)
  })

  it('decrypt rejects at the time limit', async () => {
    const { clock, service, keyring, restart } = setup()
    const encrypted = await keyring.encrypt(plain, acme)
    service.hold()
    const failure = failureOf(restart().decrypt(encrypted, acme))
    await clock.advanceAsync(3_000)
    expect(await failure).toBe('unwrap() for key envelope gave no answer within timeoutMs (3000)')
  })
})

describe('an answer that is wrong', () => {
  const wrapped = Buffer.from('wrapped')

  it.each<[string, Partial<EnvelopeKeyringOptions>, string]>([
    ['no bytes', { wrap: () => new Uint8Array(0) }, 'it must return 1 to 65535 bytes, got 0'],
    ['too many bytes', { wrap: () => new Uint8Array(65_536) }, '1 to 65535 bytes, got 65536'],
    ['text', { wrap: () => 'AQID' as never }, 'a Uint8Array, got a string of 4 characters'],
    ['the key itself', { wrap: (key) => key }, 'contains the key itself'],
    ['a copy of the key', { wrap: (key) => Buffer.concat([wrapped, key]) }, 'the key itself'],
  ])('wrap must not return %s', async (_what, options, text) => {
    const { keyring } = setup(options)
    await expect(keyring.prepare({ tenant: 'acme' })).rejects.toThrow(
      `wrap() for key envelope failed: `,
    )
    await expect(keyring.prepare({ tenant: 'acme' })).rejects.toThrow(text)
  })

  it.each<[string, EnvelopeKeyringOptions['unwrap'], string]>([
    ['a short key', () => newKey().slice(1), 'the result of unwrap() must have 32 bytes, got 31'],
    ['a key of zero bytes', () => new Uint8Array(32), 'only zero bytes'],
    ['nothing', () => undefined as never, 'a Uint8Array of 32 bytes, got undefined'],
  ])('unwrap must not return %s', async (_what, unwrap, text) => {
    const { keyring, restart } = setup({ wrap: () => wrapped, unwrap })
    const encrypted = await keyring.encrypt(plain, acme)
    await expect(restart().decrypt(encrypted, acme)).rejects.toThrow(text)
  })

  it('another key than the wrapped one does not decrypt', async () => {
    const { keyring, restart } = setup({ wrap: () => wrapped, unwrap: () => newKey() })
    const encrypted = await keyring.encrypt(plain, acme)
    await expect(restart().decrypt(encrypted, acme)).rejects.toThrow(
      'key envelope does not decrypt the bytes',
    )
  })

  it('the error of a wrong unwrap has no byte of the key', async () => {
    const key = newKey()
    const { keyring, restart } = setup({
      wrap: () => wrapped,
      unwrap: () => Buffer.from(key).toString('hex') as never,
    })
    const encrypted = await keyring.encrypt(plain, acme)
    const message = await failureOf(restart().decrypt(encrypted, acme))
    expect(message).toContain('got a string of 64 characters')
    expect(message).not.toContain(Buffer.from(key).toString('hex').slice(0, 8))
  })
})

describe('the options of envelopeKeyring', () => {
  const valid = { wrap: () => wrapped(), unwrap: () => newKey() }
  const wrapped = () => Buffer.from('wrapped')

  it.each<[string, unknown, string]>([
    ['no options', undefined, 'envelopeKeyring takes an options object'],
    ['an unknown option', { ...valid, timeoutMS: 1 }, 'did you mean "timeoutMs"?'],
    ['no wrap', { unwrap: valid.unwrap }, 'wrap must be a function, got undefined'],
    ['no unwrap', { wrap: valid.wrap }, 'unwrap must be a function, got undefined'],
    ['an invalid id', { ...valid, id: 'arn:aws:kms' }, 'envelopeKeyring: id must be a key id'],
    ['an unknown cache option', { ...valid, cache: { age: 1 } }, 'cache has no option "age"'],
    ['an age of 0', { ...valid, cache: { ageMs: 0 } }, 'cache.ageMs must be a whole number from 1'],
    ['an age of 2 days', { ...valid, cache: { ageMs: 172_800_000 } }, 'from 1 to 86400000'],
    ['uses of 0', { ...valid, cache: { uses: 0 } }, 'cache.uses must be a whole number from 1'],
    ['no room for tenants', { ...valid, cache: { tenantsMax: 0 } }, 'cache.tenantsMax must be'],
    ['no room for keys', { ...valid, cache: { unwrappedMax: 0 } }, 'cache.unwrappedMax must be'],
    ['a time limit of 0', { ...valid, timeoutMs: 0 }, 'timeoutMs must be a whole number from 1'],
  ])('envelopeKeyring refuses %s', (_what, options, text) => {
    const create = () => envelopeKeyring(options as EnvelopeKeyringOptions)
    expect(create).toThrow(text)
    expect(create).toThrow(expect.objectContaining({ code: 'INVALID_OPTIONS' }))
  })

  it('prepare throws if id() returns no key id', () => {
    const { keyring } = setup({ id: ({ tenant }) => `kms/${tenant}` })
    expect(() => keyring.prepare({ tenant: 'acme' })).toThrow(
      'envelopeKeyring: the result of id() must be a key id',
    )
  })

  it('the system clock is the default', async () => {
    const keyring = envelopeKeyring(valid)
    await keyring.prepare({ tenant: 'acme' })
    expect(keyring.encrypt(plain, acme)).toBeInstanceOf(Uint8Array)
  })
})

/** The message of the rejection. Handles it at once, so that it may come before it is awaited. */
async function failureOf(call: void | HookBytes | Promise<void>): Promise<string> {
  try {
    await call
  } catch (error) {
    return (error as Error).message
  }
  throw new Error('expected a rejection')
}
