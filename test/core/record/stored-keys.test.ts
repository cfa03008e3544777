import { describe, expect, it } from 'vitest'
import { identityOf } from '../../../src/core/record/identity.ts'
import {
  resolveHashKeys,
  StoredKeys,
  type HashKeysOptions,
} from '../../../src/core/record/stored-keys.ts'
import { bytes, engineFixture, KEY, SCOPE, text } from '../engine/engine-fixture.ts'

const SECRET = 'a'.repeat(32)
const NEXT = 'b'.repeat(32)
const ADA = { ...SCOPE, principal: 'ada' }

describe('hashKeys', () => {
  it('stores an HMAC in place of the key, under the same identity', async () => {
    const { run, engine, store } = engineFixture({ hashKeys: { secret: SECRET } })
    await run(() => bytes('x'))
    const record = await engine.read({ scope: SCOPE, key: KEY })
    expect(record!.key).toMatch(/^hmac1\.[\w-]{43}\.[\w-]{43}$/)
    expect(record!.identity).toBe(identityOf(SCOPE, KEY))
    // Not even in a statement, which a database may log.
    expect(JSON.stringify(store.asked('claim'))).not.toContain(KEY)
  })

  it('keeps records and ids when it is switched on, and when its secret changes', async () => {
    const before = engineFixture()
    const keys = new Set<string>()
    const idOf = (name: string) => (context: { downstreamKey(): string }) => {
      keys.add(context.downstreamKey())
      return bytes(name)
    }
    await before.run(idOf('first'))
    for (const secret of [SECRET, NEXT]) {
      const node = before.node({ hashKeys: { secret } })
      const outcome = await node(() => bytes('again'))
      expect(outcome.kind === 'replayed' && text(outcome.result)).toBe('first')
    }
    const fresh = engineFixture({ hashKeys: { secret: SECRET } })
    await fresh.run(idOf('fresh'))
    expect(keys.size).toBe(1)
  })

  it('gives work its plain key, and stores different texts for two tenants', async () => {
    const { run, engine } = engineFixture({ hashKeys: { secret: SECRET } })
    const seen: string[] = []
    for (const tenant of ['acme', 'other']) {
      const scope = { ...SCOPE, tenant }
      await run(({ key }) => (seen.push(key), bytes('x')), { scope })
    }
    expect(seen).toEqual([KEY, KEY])
    const records = await engine.list({ state: 'completed' })
    expect(new Set(records.map(({ key }) => key.split('.')[1])).size).toBe(2)
  })

  it.each([
    ['a short string', { secret: 'short' }, /hashKeys.secret is too short/],
    ['short bytes', { secret: new Uint8Array(15) }, /at least 16 random bytes/],
    ['a number', { secret: 7 }, /must be a string or a Uint8Array/],
    ['a short old secret', { secret: SECRET, oldSecrets: ['x'] }, /oldSecrets\[0\] is too short/],
    ['old secrets that are no list', { secret: SECRET, oldSecrets: SECRET }, /must be an array/],
    ['a misspelt option', { secret: SECRET, oldSecret: [] }, /did you mean "oldSecrets"/],
  ])('refuses %s, and never shows a secret', (_what, hashKeys, message) => {
    const make = () => engineFixture({ hashKeys: hashKeys as HashKeysOptions })
    expect(make).toThrow(message)
    expect(make).not.toThrow(new RegExp(SECRET))
  })
})

describe('isOwnedBy', () => {
  const stored = (keys: StoredKeys, scope = ADA) => {
    const identity = identityOf(scope, KEY)
    const { tenant, operation } = scope
    return { tenant, operation, identity, key: keys.textOf(scope, KEY, identity) }
  }
  const plain = new StoredKeys([])
  const hashing = resolveHashKeys('it', { secret: SECRET })

  it.each([
    ['plain', plain],
    ['hashed', hashing],
  ])('recognises the principal of a record with a %s key', (_kind, keys) => {
    expect(keys.isOwnedBy(stored(keys), 'ada')).toBe(true)
    expect(keys.isOwnedBy(stored(keys), 'bob')).toBe(false)
    expect(keys.isOwnedBy(stored(keys), '')).toBe(false)
    const { tenant, operation } = SCOPE
    expect(keys.isOwnedBy(stored(keys, { tenant, operation } as never), 'ada')).toBe(false)
  })

  it('recognises the principal of records that are older than hashKeys', () => {
    expect(hashing.isOwnedBy(stored(plain), 'ada')).toBe(true)
    expect(hashing.isOwnedBy(stored(plain), 'bob')).toBe(false)
  })

  it('recognises the principal by an old secret, and not without it', () => {
    const rotated = resolveHashKeys('it', { secret: NEXT, oldSecrets: [SECRET] })
    expect(rotated.isOwnedBy(stored(hashing), 'ada')).toBe(true)
    expect(rotated.isOwnedBy(stored(hashing), 'bob')).toBe(false)
    const lost = resolveHashKeys('it', { secret: NEXT })
    expect(lost.isOwnedBy(stored(hashing), 'ada')).toBe(false)
  })

  it('does not recognise the principal by the tag of another record', () => {
    const own = stored(hashing)
    const other = { ...own, identity: identityOf(ADA, 'other') }
    expect(hashing.isOwnedBy(other, 'ada')).toBe(false)
  })

  it('recognises no principal of a record without its key', () => {
    expect(hashing.isOwnedBy({ ...stored(hashing), key: '' }, 'ada')).toBe(false)
  })

  it('treats a key of a client that looks like a hash as a plain key', () => {
    const key = 'hmac1.x.y'
    const identity = identityOf(ADA, key)
    const record = { ...SCOPE, identity, key }
    expect([hashing.isOwnedBy(record, 'ada'), hashing.isOwnedBy(record, 'bob')]).toEqual([
      true,
      false,
    ])
  })

  it('uses a copy of a secret that the caller clears', () => {
    const secret = new Uint8Array(32).fill(7)
    const keys = resolveHashKeys('it', { secret })
    const record = stored(keys)
    secret.fill(0)
    expect(keys.isOwnedBy(record, 'ada')).toBe(true)
  })
})
