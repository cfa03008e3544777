import { expect, it } from 'vitest'
import { idempotency } from '../../../src/adapters/express/index.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { InvalidOptionsError } from '../../../src/core/errors.ts'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import { createGuard } from '../../../src/http/guard/guard.ts'
import { encodeHttpReply, type HttpReplyInput } from '../../../src/http/reply/http-reply.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { claimRequest } from '../../../src/testing/index.ts'

const store = memoryStore()
const minimal = () => ({ store, tenant: singleTenant })
const bytes = (value: Uint8Array) => value

/** The message of the error that these options cause. */
function messageOf(make: () => unknown): string {
  try {
    make()
  } catch (error) {
    expect(error).toBeInstanceOf(InvalidOptionsError)
    return (error as Error).message
  }
  throw new Error('expected the options to be refused')
}

type Wrong = readonly [option: string, value: unknown, shown: string]

// Every option, with values of the wrong type and just out of range, and the value as the message
// shows it.
const WRONG: readonly Wrong[] = [
  ['tenant', undefined, 'undefined'],
  ['tenant', 'acme', '"acme"'],
  ['tenant', null, 'null'],
  ['principal', 'ann', '"ann"'],
  ['operation', '', '""'],
  ['operation', 42, '42'],
  ['scopeBy', 'operation', '"operation"'],
  ['profile', 'rfc', '"rfc"'],
  ['methods', 'POST', '"POST"'],
  ['methods', [], 'an array'],
  ['methods', ['GET'], '"GET"'],
  ['methods', ['post'], '"post"'],
  ['methods', [1], '1'],
  ['keyRequired', 'yes', '"yes"'],
  ['keyHeader', '', '""'],
  ['keyHeader', 'a header', '"a header"'],
  ['keyHeader', 1, '1'],
  ['keyFrom', 'body.key', '"body.key"'],
  ['keySyntax', 'loose', '"loose"'],
  ['keyLengthMin', 0, '0'],
  ['keyLengthMin', 1.5, '1.5'],
  ['keyLengthMin', '1', '"1"'],
  ['keyLengthMax', 1025, '1025'],
  ['keyLengthMax', Number.NaN, 'NaN'],
  ['keyPattern', '^a$', '"^a$"'],
  ['refusePersonalKeys', 1, '1'],
  ['fingerprintFields', 'amount', '"amount"'],
  ['fingerprintFields', [], 'an array'],
  ['fingerprintFields', [''], 'an array'],
  ['releaseOn', [404], 'an array'],
  ['requestBytesMax', -1, '-1'],
  ['requestBytesMax', Number.POSITIVE_INFINITY, 'Infinity'],
  ['requestBytesMax', '1mb', '"1mb"'],
  ['replyBytesMax', -1, '-1'],
  ['replyBytesMax', 0.5, '0.5'],
  ['replyVersion', -1, '-1'],
  ['replyVersion', 65_536, '65536'],
  ['upgradeReply', {}, 'an object'],
  ['onStoreFailure', 'fail', '"fail"'],
  ['statusUrl', '/status', '"/status"'],
  ['docsUrl', 'two words', '"two words"'],
  ['docsUrl', 'https://x/>', '"https://x/>"'],
  ['docsUrl', 7, '7'],
  ['leaseMs', 99, '99'],
  ['leaseMs', '60s', '"60s"'],
  ['retentionMs', 0, '0'],
  ['runTimeoutMs', 0, '0'],
  ['maxLapses', 0, '0'],
  ['onLapse', 'retry', '"retry"'],
  ['onError', 'ignore', '"ignore"'],
  ['afterExpiry', 'keep', '"keep"'],
  ['whileInProgress', 'wait', '"wait"'],
  ['whileInProgress', null, 'null'],
  ['whileInProgress', { waitMs: 0 }, '0'],
  ['whileInProgress', { waitMs: 120_001 }, '120001'],
  ['settleTimeoutMs', 0, '0'],
]

it.each(WRONG)('refuses %s: %o, and names both', (option, value, shown) => {
  const message = messageOf(() => createGuard({ ...minimal(), [option]: value }))
  expect(message).toContain(option)
  expect(message).toContain(shown)
})

type Clash = readonly [what: string, options: object, names: readonly string[]]

const CLASHES: readonly Clash[] = [
  ['a store and an engine', { engine: createEngine({ store }) }, ['store', 'engine']],
  ['neither store nor engine', { store: undefined }, ['store', 'engine']],
  [
    'a header and a function for the key',
    { keyHeader: 'x-key', keyFrom: () => 'k' },
    ['keyFrom', 'keyHeader'],
  ],
  [
    'a syntax for a key that comes from a function',
    { keySyntax: 'strict', keyFrom: () => 'k' },
    ['keyFrom', 'keySyntax'],
  ],
  [
    'an operation when keys are per tenant',
    { operation: 'pay', scopeBy: 'tenant' },
    ['operation', "scopeBy 'tenant'"],
  ],
  [
    'an operation in the stripe profile',
    { operation: 'pay', profile: 'stripe' },
    ['operation', "profile 'stripe'"],
  ],
  ['an encryption that cannot decrypt', { encryption: { encrypt: bytes } }, ['encryption']],
  ['a required encryption without encryption', { requireEncryption: true }, ['requireEncryption']],
  [
    'a requirement that is not a boolean',
    { encryption: { encrypt: bytes, decrypt: bytes }, requireEncryption: 1 },
    ['requireEncryption', '1'],
  ],
  ['a shortest key above the longest', { keyLengthMin: 9, keyLengthMax: 8 }, ['9', '8']],
  [
    'keys per operation with Stripe’s rules',
    { profile: 'stripe', scopeBy: 'tenant+operation' },
    ['scopeBy', 'stripe'],
  ],
  [
    'a retention within the lease',
    { leaseMs: 5000, retentionMs: 5000 },
    ['retentionMs (5000)', 'leaseMs (5000)'],
  ],
  ['a global pattern, which keeps a position', { keyPattern: /^a$/g }, ['keyPattern', 'g']],
  ['a sticky pattern', { keyPattern: /^a$/y }, ['keyPattern', 'y']],
  [
    'two secrets of one id',
    {
      fingerprintSecrets: [
        { id: 'a', secret: 'x'.repeat(32) },
        { id: 'a', secret: 'y'.repeat(32) },
      ],
    },
    ['"a"'],
  ],
  [
    'a secret with an invalid id',
    { fingerprintSecrets: [{ id: 'a b', secret: 'x'.repeat(32) }] },
    ['a b'],
  ],
  ['a cookie among the stored headers', { storeHeaders: ['Set-Cookie'] }, ['set-cookie']],
  ['an invalid header name', { storeHeaders: ['a b'] }, ['a b']],
  ['a misspelt option', { tennant: singleTenant }, ['tennant', 'tenant']],
  [
    'an unknown option within another',
    { whileInProgress: { waitMs: 5, forever: true } },
    ['whileInProgress', 'forever'],
  ],
]

it.each(CLASHES)('refuses %s', (_what, options, names) => {
  const message = messageOf(() => createGuard({ ...minimal(), ...options }))
  for (const name of names) expect(message).toContain(name)
})

it.each([undefined, null, 'store', 42])('refuses %o in place of the options object', (options) => {
  expect(messageOf(() => idempotency(options as never))).toContain('options')
})

it('refuses a value that is not a store', () => {
  for (const wrong of [{}, 'sqlite', null, 7]) {
    expect(messageOf(() => createGuard({ tenant: singleTenant, store: wrong } as never))).toMatch(
      /store/,
    )
  }
})

it('accepts every option at the edges of its range', () => {
  const guard = createGuard({
    ...minimal(),
    keyLengthMin: 1024,
    keyLengthMax: 1024,
    requestBytesMax: 0,
    replyBytesMax: 0,
    replyVersion: 65_535,
    methods: ['DELETE'],
    whileInProgress: { waitMs: 120_000 },
    leaseMs: 100,
    retentionMs: 60 * 60 * 1000,
    docsUrl: 'https://api.example.org/idempotency?v=1#keys',
  })
  expect([guard.protects('DELETE'), guard.protects('POST')]).toEqual([true, false])
})

it('shares one engine among all routes of a store', () => {
  const shared = memoryStore()
  const [a, b] = [
    { store: shared, tenant: singleTenant },
    { store: shared, tenant: singleTenant },
  ]
  expect(idempotency(a).engine).toBe(idempotency(b).engine)
  expect(idempotency(minimal()).engine).not.toBe(idempotency(a).engine)
})

it.each([
  [{}, 'status'],
  [{ status: 99 }, '99'],
  [{ status: 600 }, '600'],
  [{ status: '200' }, '"200"'],
  [{ status: 200, replyVersion: -1 }, 'replyVersion'],
  [{ status: 200, headers: { 'Set-Cookie': 'a=b' } }, 'headers: set-cookie'],
  [{ status: 200, headers: { 'a b': 'c' } }, 'headers: "a b"'],
  [{ status: 200, headers: { 'X-A': 'line\nbreak' } }, 'x-a'],
  [{ status: 200, header: {} }, 'header'],
  [{ status: 200, encryption: {} }, 'encryption'],
])('refuses a verdict of %o', async (input, named) => {
  const encoding = encodeHttpReply(claimRequest(), input as HttpReplyInput)
  await expect(encoding).rejects.toThrow(InvalidOptionsError)
  await expect(encoding).rejects.toThrow(named)
})

it('does not return an engine that was closed', async () => {
  const own = memoryStore()
  const first = createGuard({ store: own, tenant: singleTenant })
  expect(createGuard({ store: own, tenant: singleTenant }).engine).toBe(first.engine)
  await first.engine.close()
  const second = createGuard({ store: own, tenant: singleTenant })
  expect(second.engine.isClosed).toBe(false)
})

it('refuses a value that is not an engine', () => {
  const make = () => createGuard({ engine: {} as never, tenant: singleTenant })
  expect(messageOf(make)).toBe('engine must come from createEngine, got an object')
})
