import { randomBytes } from 'node:crypto'
import { describe, expect, it } from 'vitest'
import { readSettings } from '../../../examples/payments/settings.ts'
import { welcome } from '../../../examples/payments/welcome.ts'

const KEY = randomBytes(32).toString('base64')
const OTHER_KEY = randomBytes(32).toString('base64')
const SECRET = 'a-signing-secret-of-ada'

/** Everything that a process needs that is not a demo. */
const REAL = {
  TOKENS: 'secret-token=acme:ada',
  WEBHOOK_SECRET: 'a-secret-of-the-provider',
  PROVIDER_URL: 'https://psp.example',
}

describe('the settings of a demo', () => {
  it('need no variable at all, and have the demo tokens', () => {
    const settings = readSettings({})
    expect([...settings.callers]).toEqual([
      ['demo-a', { tenant: 'tenant-a', user: 'ada', signingSecret: undefined }],
      ['demo-b', { tenant: 'tenant-b', user: 'ben', signingSecret: undefined }],
    ])
    expect(settings).toMatchObject({
      role: 'all',
      isDemo: true,
      webhookSecret: 'demo-webhook-secret',
      providerUrl: '',
      newKeysPerSecond: 100,
      lookUpsPerSecond: 100,
      inFlightMax: 200,
      refuseLateMs: 30 * 24 * 3_600_000,
      maxRequestAgeMs: 0,
      encryptionKeys: undefined,
    })
  })

  it('lose the demo tokens when TOKENS is set, also in a demo', () => {
    const { callers, isDemo } = readSettings({ TOKENS: 'mine=acme:ada,robot=acme' })
    expect(isDemo).toBe(false)
    expect([...callers]).toEqual([
      ['mine', { tenant: 'acme', user: 'ada', signingSecret: undefined }],
      // Without a user, the tenant counts as one.
      ['robot', { tenant: 'acme', user: 'acme', signingSecret: undefined }],
    ])
  })

  it('show the token of the demo in the welcome text, and no other token', () => {
    expect(welcome(readSettings({}), 3000)).toContain("'Authorization: Bearer demo-a'")
    const real = welcome(readSettings({ ...REAL, NODE_ENV: 'production' }), 3000)
    expect(real).toContain('Bearer <your token>')
    for (const secret of Object.values(REAL)) expect(real).not.toContain(secret)
    expect(real).not.toContain('secret-token')
  })

  it('show a new random key in each welcome text', () => {
    const keyIn = (text: string) => /Idempotency-Key: ([0-9a-f-]{36})'/.exec(text)?.[1]
    const keys = [1, 2].map(() => keyIn(welcome(readSettings({}), 3000)))
    expect(keys[0]).toBeDefined()
    expect(keys[0]).not.toBe(keys[1])
  })
})

const NOT_DEMOS = [
  ['NODE_ENV=production', { NODE_ENV: 'production' }],
  ['ROLE=api', { ROLE: 'api' }],
  ['ROLE=worker', { ROLE: 'worker' }],
] as const

describe.each(NOT_DEMOS)('the settings with %s', (why, env) => {
  it('refuse the demo tokens', () => {
    const { TOKENS: _, ...rest } = REAL
    const sentence = `TOKENS must be set with ${why}, because the demo tokens are public`
    expect(() => readSettings({ ...rest, ...env })).toThrow(sentence)
    const given = { ...REAL, ...env, TOKENS: 'secret-token=acme:ada,demo-a=acme:bob' }
    expect(() => readSettings(given)).toThrow(
      `TOKENS contains "demo-a", which is public and must not be used with ${why}`,
    )
  })

  it('refuse the demo secret of webhooks', () => {
    const sentence = `WEBHOOK_SECRET must be set with ${why}, because the demo secret is public`
    for (const secret of ['', 'demo-webhook-secret']) {
      const given = { ...REAL, ...env, WEBHOOK_SECRET: secret }
      expect(() => readSettings(given)).toThrow(sentence)
    }
  })

  it('refuse the simulator instead of a provider', () => {
    const given = { ...REAL, ...env, PROVIDER_URL: '' }
    expect(() => readSettings(given)).toThrow(`PROVIDER_URL must be set with ${why}`)
  })

  it('accept real secrets', () => {
    const settings = readSettings({ ...REAL, ...env })
    expect([settings.isDemo, settings.callers.size]).toEqual([false, 1])
  })
})

describe('the encryption keys', () => {
  it('are decoded, and the only one is current', () => {
    const { encryptionKeys } = readSettings({ ENCRYPTION_KEYS: `2026-11:${KEY}` })
    expect(encryptionKeys).toEqual({
      keys: { '2026-11': Buffer.from(KEY, 'base64') },
      current: '2026-11',
      isRequired: false,
    })
  })

  it('of a rotation name the current one', () => {
    const keys = `2026-10:${KEY},2026-11:${OTHER_KEY}`
    const settings = readSettings({ ENCRYPTION_KEYS: keys, ENCRYPTION_CURRENT: '2026-10' })
    expect(settings.encryptionKeys?.current).toBe('2026-10')
  })

  it.each([
    ['', 'got "".'],
    ['2026-12', 'got "2026-12".'],
  ])('with %j as the current one are refused', (current, end) => {
    const env = {
      ENCRYPTION_KEYS: `2026-10:${KEY},2026-11:${OTHER_KEY}`,
      ENCRYPTION_CURRENT: current,
    }
    expect(() => readSettings(env)).toThrow(
      `ENCRYPTION_CURRENT must be the id of one of ENCRYPTION_KEYS (2026-10, 2026-11), ${end}`,
    )
  })

  it.each([
    ['ENCRYPTION_CURRENT', '2026-11'],
    ['ENCRYPTION_REQUIRED', '1'],
  ])('are required by %s', (name, value) => {
    expect(() => readSettings({ [name]: value })).toThrow(`${name} needs ENCRYPTION_KEYS.`)
  })

  it('may be required of stored values', () => {
    const env = { ENCRYPTION_KEYS: `a:${KEY}`, ENCRYPTION_REQUIRED: '1' }
    expect(readSettings(env).encryptionKeys?.isRequired).toBe(true)
    expect(() => readSettings({ ...env, ENCRYPTION_REQUIRED: 'yes' })).toThrow(
      'ENCRYPTION_REQUIRED must be a whole number from 0 to 1, got "yes".',
    )
  })

  it.each([
    ['too short', `a:${randomBytes(31).toString('base64')}`],
    ['too long', `a:${randomBytes(33).toString('base64')}`],
    ['not base64', 'a:§§§'],
    ['without an id', KEY],
    ['given twice', `a:${KEY},a:${OTHER_KEY}`],
  ])('that are %s are refused, and not shown', (_, keys) => {
    const read = () => readSettings({ ENCRYPTION_KEYS: keys })
    expect(read).toThrow('ENCRYPTION_KEYS must be like "id:key,other:key", each key with 32 bytes')
    for (const secret of [KEY, keys.slice(2)]) expect(read).not.toThrow(secret)
  })

  it('may have an id that is the name of a property of every object', () => {
    const { encryptionKeys } = readSettings({ ENCRYPTION_KEYS: `constructor:${KEY}` })
    expect(encryptionKeys?.current).toBe('constructor')
    expect(Object.keys(encryptionKeys!.keys)).toEqual(['constructor'])
  })

  it('have no id that begins with another character than a letter or a digit', () => {
    for (const id of ['__proto__', '..', '-a']) {
      expect(() => readSettings({ ENCRYPTION_KEYS: `${id}:${KEY}` })).toThrow(/ENCRYPTION_KEYS/)
    }
  })
})

describe('the secrets of key hashes', () => {
  it('are a list, in which the first one is for new keys', () => {
    const secrets = [KEY, OTHER_KEY]
    expect(readSettings({ KEY_HASH_SECRETS: secrets.join() }).keyHashSecrets).toEqual(secrets)
    expect(readSettings({}).keyHashSecrets).toEqual([])
  })

  it('that are short are refused, and not shown', () => {
    const read = () => readSettings({ KEY_HASH_SECRETS: `${KEY},short-secret` })
    expect(read).toThrow('KEY_HASH_SECRETS must be like "secret,earlier secret"')
    for (const secret of [KEY, 'short-secret']) expect(read).not.toThrow(secret)
  })
})

describe('the age of requests', () => {
  const DAY_MS = '86400000'

  it('is off by default, because it needs clients that sign their requests', () => {
    expect(readSettings({}).maxRequestAgeMs).toBe(0)
  })

  it('needs a signing secret for each token', () => {
    const env = { TOKENS: 'one=acme:ada,two=acme:ben', MAX_REQUEST_AGE_MS: DAY_MS }
    const sentence = 'MAX_REQUEST_AGE_MS needs SIGNING_SECRETS with a secret for each token'
    expect(() => readSettings(env)).toThrow(sentence)
    expect(() => readSettings({ ...env, SIGNING_SECRETS: `one=${SECRET}` })).toThrow(sentence)
    const both = readSettings({ ...env, SIGNING_SECRETS: `one=${SECRET},two=${SECRET}` })
    expect([...both.callers.values()].map(({ signingSecret }) => signingSecret)).toEqual([
      SECRET,
      SECRET,
    ])
  })

  it('must not exceed the retention', () => {
    const env = { MAX_REQUEST_AGE_MS: DAY_MS, RETENTION_MS: '86399999' }
    expect(() => readSettings(env)).toThrow(
      'MAX_REQUEST_AGE_MS (86400000) must not exceed RETENTION_MS (86399999)',
    )
  })

  it.each(['one', 'one=short', `=${SECRET}`])('refuses the secrets %j', (secrets) => {
    expect(() => readSettings({ SIGNING_SECRETS: secrets })).toThrow(
      'SIGNING_SECRETS must be like "token=secret,other=secret"',
    )
  })

  it('refuses a secret for a token that does not exist, without the token', () => {
    const env = { TOKENS: 'one=acme:ada', SIGNING_SECRETS: `other=${SECRET}` }
    expect(() => readSettings(env)).toThrow(/^SIGNING_SECRETS has a secret for a token that is not/)
  })
})

const WRONG: readonly (readonly [name: string, value: string, sentence: string])[] = [
  ['PORT', 'http', 'PORT must be a number from 0 to 65535, got "http".'],
  ['PORT', '65536', 'PORT must be a number from 0 to 65535, got "65536".'],
  ['PORT', '', 'PORT must be a number from 0 to 65535, got "".'],
  ['ROLE', 'boss', 'ROLE must be all, api, worker or empty, got "boss".'],
  ['DATABASE_URL', 'oracle://x', 'DATABASE_URL must be a URL like postgres://… or postgresql://…'],
  ['PROVIDER_URL', 'localhost', 'PROVIDER_URL must be a URL like http://… or https://…, or empty.'],
  ['LEASE_MS', '1', 'LEASE_MS must be a whole number from 100 to 86400000, got "1".'],
  ['FAULTS', 'gremlins=1', 'FAULTS: There is no fault called "gremlins".'],
  [
    'NEW_KEYS_PER_SECOND',
    '-1',
    'NEW_KEYS_PER_SECOND must be a whole number from 0 to 1000000, got "-1".',
  ],
  [
    'LOOK_UPS_PER_SECOND',
    '1.5',
    'LOOK_UPS_PER_SECOND must be a whole number from 0 to 1000000, got "1.5".',
  ],
  ['IN_FLIGHT_MAX', 'many', 'IN_FLIGHT_MAX must be a whole number from 0 to 1000000, got "many".'],
  [
    'REFUSE_LATE_MS',
    '30d',
    'REFUSE_LATE_MS must be a whole number from 0 to 315360000000, got "30d".',
  ],
]

const WRONG_TOKENS = ['x', 'token=', '=tenant', 'token=tenant:', 'token=tenant:user:more']

describe('wrong settings', () => {
  it.each(WRONG)('refuse %s=%j and state the valid values', (name, value, sentence) => {
    expect(() => readSettings({ [name]: value })).toThrow(sentence)
  })

  it.each(WRONG_TOKENS)('refuse TOKENS=%j and state the form', (tokens) => {
    expect(() => readSettings({ TOKENS: tokens })).toThrow(
      'TOKENS must be like "token=tenant:user,other=tenant", got a part without "=" or a name.',
    )
  })
})
