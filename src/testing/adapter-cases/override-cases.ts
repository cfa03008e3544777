/** Options of all routes, and the options that one route overrides. */
import assert from 'node:assert/strict'
import { systemClock } from '../../core/time/clock.ts'
import type { Limiter } from '../../http/limits/limiter.ts'
import type { AdapterCase, CaseHead, CaseOptions } from './adapter-case.ts'
import type { Received, Send } from './case-client.ts'
import {
  assertInProgress,
  assertMismatch,
  assertProblem,
  assertRan,
  assertUnknown,
  created,
  gate,
  REPLAYED,
  stage,
  watched,
} from './case-stage.ts'

const HOUR_MS = 3_600_000
const LEASE_MS = 60_000

const PATHS = ['/all', '/own'] as const

/** The request ran, was replayed, or was refused with this code. */
type Outcome = 'ran' | 'replayed' | `idempotency_${string}`

interface Override {
  /** Options of all routes. */
  readonly all: Partial<CaseOptions>
  /** Options that one route overrides. */
  readonly own: Partial<CaseOptions>
  /** Requests that are sent to both routes in order, with the outcome of each route. */
  readonly steps: readonly (readonly [Omit<Send, 'port'>, all: Outcome, own: Outcome])[]
  /** Status of the handlers' replies. @default 201 */
  readonly status?: number
  /** Time between two steps. @default 0 */
  readonly waitMs?: number
}

const missing = 'idempotency_key_missing'
const malformed = 'idempotency_key_malformed'
const mismatch = 'idempotency_key_reused_with_different_payload'

const json = { id: 'in-body', amount: 1, currency: 'EUR' }
const inHeader = { key: '"in-header"', json }
const inBoth = { ...inHeader, headers: { 'x-all': 'k', 'x-own': 'k' } }
const user = (name: string, role: string) => ({
  key: 'key-1',
  headers: { 'x-user': name, 'x-role': role },
})
const header = (name: string) => (head: CaseHead) => head.header(name)
const plain = { key: 'key-1', json }

/** Each route follows its own options, and the options of all routes where it has none. */
export const overrideCases: readonly AdapterCase[] = [
  override('tenant', {
    all: {},
    own: { tenant: (head) => head.header('x-own') ?? 'none' },
    steps: [
      [{ key: 'key-1', tenant: 'ann' }, 'ran', 'ran'],
      [{ key: 'key-1', tenant: 'bob' }, 'ran', 'replayed'],
    ],
  }),
  override('methods', {
    all: { methods: ['PUT'] },
    own: { methods: ['POST'] },
    steps: [[{}, 'ran', missing]],
  }),
  override('keyRequired', {
    all: { keyRequired: false },
    own: { keyRequired: true },
    steps: [[{}, 'ran', missing]],
  }),
  override('keyHeader', {
    all: { keyHeader: 'X-All' },
    own: { keyHeader: 'X-Own' },
    steps: [
      [{ headers: { 'x-all': 'k' } }, 'ran', missing],
      [{ headers: { 'x-own': 'k' } }, missing, 'ran'],
    ],
  }),
  override('keyField in place of a header', {
    all: { keyHeader: 'X-All', keySyntax: 'strict' },
    own: { keyField: 'id' },
    steps: [[{ json }, missing, 'ran']],
  }),
  override('keyFrom in place of a field', {
    all: { keyField: 'id' },
    own: { keyFrom: header('x-own') },
    steps: [
      [{ json }, 'ran', missing],
      [inBoth, 'replayed', 'ran'],
    ],
  }),
  override('keyHeader in place of a function', {
    all: { keyFrom: header('x-all') },
    own: { keyHeader: 'idempotency-key' },
    steps: [
      [inHeader, missing, 'ran'],
      [inBoth, 'ran', 'replayed'],
    ],
  }),
  override('keySyntax', {
    all: { keySyntax: 'strict' },
    own: { keySyntax: 'lenient' },
    steps: [[{ key: 'bare' }, malformed, 'ran']],
  }),
  override('keyLengthMin and keyLengthMax', {
    all: { keyLengthMin: 4, keyLengthMax: 6 },
    own: { keyLengthMin: 2, keyLengthMax: 3 },
    steps: [
      [{ key: 'abc' }, malformed, 'ran'],
      [{ key: 'abcd' }, 'ran', malformed],
    ],
  }),
  override('keyPattern', {
    all: { keyPattern: /^a/ },
    own: { keyPattern: /^b/ },
    steps: [
      [{ key: 'a1' }, 'ran', malformed],
      [{ key: 'b1' }, malformed, 'ran'],
    ],
  }),
  override('refusePersonalKeys', {
    all: { refusePersonalKeys: true },
    own: { refusePersonalKeys: false },
    steps: [[{ key: 'ann@example.com' }, malformed, 'ran']],
  }),
  override('fingerprintFields', {
    all: { fingerprintFields: ['amount'] },
    own: { fingerprintFields: ['currency'] },
    steps: [
      [plain, 'ran', 'ran'],
      [{ key: 'key-1', json: { ...json, amount: 2 } }, mismatch, 'replayed'],
      [{ key: 'key-1', json: { ...json, currency: 'USD' } }, 'replayed', mismatch],
    ],
  }),
  override('principal', {
    all: { principal: header('x-user') },
    own: { principal: header('x-role') },
    steps: [
      [user('ann', 'clerk'), 'ran', 'ran'],
      [user('bob', 'clerk'), mismatch, 'replayed'],
      [user('ann', 'owner'), 'replayed', mismatch],
    ],
  }),
  override('onError', {
    all: { onError: 'store' },
    own: { onError: () => 'retry' },
    status: 500,
    steps: [
      [plain, 'ran', 'ran'],
      [plain, 'replayed', 'ran'],
    ],
  }),
  override('afterExpiry', {
    all: { afterExpiry: 'refuse', retentionMs: HOUR_MS },
    own: { afterExpiry: 'rerun' },
    waitMs: HOUR_MS,
    steps: [
      [plain, 'ran', 'ran'],
      [plain, 'idempotency_key_expired', 'ran'],
    ],
  }),
  override('profile with all its defaults', {
    all: { profile: 'stripe' },
    own: { profile: 'ietf' },
    status: 500,
    steps: [
      [plain, 'ran', 'ran'],
      [plain, 'replayed', 'ran'],
    ],
  }),
  {
    name: 'lets a route override the option whileInProgress for a key in use',
    async run(fixture) {
      const { handle, entered, letGo } = heldOnBoth()
      const { send, runs } = await stage(fixture, {
        options: { whileInProgress: 'accepted' },
        routes: [
          { path: '/all', handle },
          { path: '/own', options: { whileInProgress: 'conflict' }, handle },
        ],
      })
      const firsts = PATHS.map((path) => send({ path, key: 'key-1' }))
      await entered
      assert.equal((await send({ path: '/all', key: 'key-1' })).status, 202)
      assertInProgress(await send({ path: '/own', key: 'key-1' }))
      letGo()
      for (const first of firsts) assertRan(await first, 201)
      assert.equal(runs(), 2)
    },
  },
  {
    name: 'lets a route override the option onLapse for a lapsed key',
    async run(fixture) {
      const { handle, entered, letGo } = heldOnBoth()
      const { send, runs } = await stage(fixture, {
        options: { onLapse: 'rerun' },
        routes: [
          { path: '/all', handle },
          { path: '/own', options: { onLapse: 'unknown' }, handle },
        ],
      })
      const firsts = PATHS.map((path) => send({ path, key: 'key-1' }))
      await entered
      fixture.clock.advance(LEASE_MS)
      assertUnknown(await send({ path: '/own', key: 'key-1' }))
      assertRan(await send({ path: '/all', key: 'key-1' }), 201)
      assert.equal(runs(), 3)
      letGo()
      await Promise.all(firsts)
    },
  },
  {
    name: "shares a key only between the routes whose scopeBy is 'tenant'",
    async run(fixture) {
      const own = { options: { scopeBy: 'tenant' as const }, handle: () => created }
      const { send, runs } = await stage(fixture, {
        routes: [
          { path: '/payments', ...own },
          { path: '/refunds', ...own },
          { path: '/transfers', handle: () => created },
        ],
      })
      assertRan(await send({ path: '/payments', key: 'key-1' }), 201)
      assertMismatch(await send({ path: '/refunds', key: 'key-1' }))
      assertRan(await send({ path: '/transfers', key: 'key-1' }), 201)
      assert.equal(runs(), 2)
    },
  },
  {
    name: 'lets a route override the option maxRequestAgeMs, and passes its request to requestTime',
    async run(fixture) {
      const requestTime = (head: CaseHead) => new Date(Number(head.header('x-sent')))
      const { send, runs } = await stage(fixture, {
        options: { maxRequestAgeMs: HOUR_MS, requestTime },
        routes: [
          { path: '/all', handle: () => created },
          { path: '/own', options: { maxRequestAgeMs: 3 * HOUR_MS }, handle: () => created },
        ],
      })
      const headers = { 'x-sent': String(systemClock.nowMs() - 2 * HOUR_MS) }
      const old = await send({ path: '/all', key: 'key-1', headers })
      assertProblem(old, 412, 'idempotency_request_too_old')
      assertRan(await send({ path: '/own', key: 'key-1', headers }), 201)
      assert.equal(runs(), 1)
    },
  },
  {
    name: 'lets a route override the option limits, and passes its request to caller',
    async run(fixture) {
      const ofCaller = {
        lookUps: onePointEach(),
        caller: (head: CaseHead) => head.header('x-user')!,
      }
      const { send, runs } = await stage(fixture, {
        options: { limits: ofCaller },
        routes: [
          { path: '/all', handle: () => created },
          { path: '/own', options: { limits: { newKeys: onePointEach() } }, handle: () => created },
        ],
      })
      const headers = { 'x-user': 'ann' }
      for (const path of PATHS) assertRan(await send({ path, key: 'key-1', headers }), 201)
      for (const path of PATHS) {
        const { headers: answered } = await send({ path, key: 'key-1', headers })
        assert.equal(answered[REPLAYED], 'true')
      }
      const again = await send({ path: '/all', key: 'key-1', headers })
      assertProblem(again, 429, 'idempotency_rate_limited')
      assert.equal(again.headers['ratelimit'], '"look-ups";r=0;t=60')
      const other = await send({ path: '/all', key: 'key-1', headers: { 'x-user': 'bob' } })
      assert.equal(other.status, 201)
      const fresh = await send({ path: '/own', key: 'key-2', headers })
      assertProblem(fresh, 429, 'idempotency_rate_limited')
      assert.equal(fresh.headers['retry-after'], '60')
      assert.equal(runs(), 2)
    },
  },
  {
    name: "gives each user a separate record with scopeBy 'tenant+principal+operation'",
    async run(fixture) {
      const { send, runs } = await stage(fixture, {
        route: { scopeBy: 'tenant+principal+operation', principal: header('x-user') },
      })
      const of = (name: string) => send({ key: 'key-1', headers: { 'x-user': name } })
      assertRan(await of('ann'), 201)
      assertRan(await of('bob'), 201)
      assert.equal((await of('ann')).headers[REPLAYED], 'true')
      assert.equal(runs(), 2)
    },
  },
  {
    name: 'lets a route override the option onStoreFailure while the store is down',
    async run(fixture) {
      const store = watched(fixture.store, () => {
        throw new Error('connection refused')
      })
      const { send, runs } = await stage(
        { ...fixture, store },
        {
          options: { onStoreFailure: 'open' },
          routes: [
            { path: '/all', handle: () => created },
            { path: '/own', options: { onStoreFailure: 'closed' }, handle: () => created },
          ],
        },
      )
      assertRan(await send({ path: '/all', key: 'key-1' }), 201)
      const closed = await send({ path: '/own', key: 'key-1' })
      assertProblem(closed, 503, 'idempotency_store_unavailable')
      assert.equal(runs(), 1)
    },
  },
]

/** A limiter with one point for each key, for ever. */
function onePointEach(): Limiter {
  const taken = new Set<string>()
  const state = (key: string, points: number) => ({
    remainingPoints: taken.has(key) ? 0 : points === 0 ? 1 : 0,
    msBeforeNext: 60_000,
  })
  return {
    consume: async (key, points = 1) => {
      // As rate-limiter-flexible rejects: not with an error.
      // oxlint-disable-next-line typescript/only-throw-error
      if (points > 0 && taken.has(key)) throw state(key, points)
      const answer = state(key, points)
      if (points > 0) taken.add(key)
      return answer
    },
  }
}

function override(
  what: string,
  { all, own, steps, status = 201, waitMs = 0 }: Override,
): AdapterCase {
  return {
    name: `lets a route override the option ${what}`,
    async run(fixture) {
      const handle = () => ({ ...created, status })
      const { send } = await stage(fixture, {
        options: all,
        routes: [
          { path: '/all', handle },
          { path: '/own', options: own, handle },
        ],
      })
      for (const [index, [request, ...expected]] of steps.entries()) {
        if (index > 0) fixture.clock.advance(waitMs)
        const outcomes: string[] = []
        for (const path of PATHS) outcomes.push(outcomeOf(await send({ ...request, path })))
        assert.deepEqual(outcomes, expected, `step ${index + 1}`)
      }
    },
  }
}

function outcomeOf({ headers, text }: Received): string {
  if (headers[REPLAYED] === 'true') return 'replayed'
  if (!headers['content-type']?.startsWith('application/problem+json')) return 'ran'
  return (JSON.parse(text) as { code: string }).code
}

/** A handler that two routes share. Its first two calls run until they are released. */
function heldOnBoth() {
  const entered = gate()
  const go = gate()
  let calls = 0
  const handle = async () => {
    if (++calls > 2) return created
    if (calls === 2) entered.open()
    await go.passed
    return created
  }
  return { handle, entered: entered.passed, letGo: () => go.open() }
}
