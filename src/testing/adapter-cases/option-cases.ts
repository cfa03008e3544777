/** Profiles, options of single routes, and invalid options. */
import assert from 'node:assert/strict'
import type { AdapterCase, CaseOptions } from './adapter-case.ts'
import { TENANT_HEADER, type Received } from './case-client.ts'
import {
  assertMismatch,
  assertProblem,
  assertRan,
  assertReplay,
  created,
  EXPIRES,
  gate,
  REPLAYED,
  stage,
} from './case-stage.ts'
import { overrideCases } from './override-cases.ts'

const HOUR_MS = 3_600_000

export const optionCases: readonly AdapterCase[] = [
  {
    name: "replies in the Stripe error format when the profile is 'stripe'",
    async run(fixture) {
      const entered = gate()
      const go = gate()
      const { send, runs } = await stage(fixture, {
        options: { profile: 'stripe' },
        handle: async () => {
          entered.open()
          await go.passed
          return created
        },
      })
      assertStripe(await send({}), 400, 'invalid_request_error')
      assertStripe(await send({ key: '"' }), 400, 'invalid_request_error')
      const first = send({ key: 'key-1', json: { amount: 1 } })
      await entered.passed
      const busy = await send({ key: 'key-1', json: { amount: 1 } })
      assertStripe(busy, 409, 'idempotency_error')
      assert.match(busy.headers['retry-after'] ?? '', /^\d+$/)
      const other = await send({ key: 'key-1', json: { amount: 2 } })
      assertStripe(other, 400, 'idempotency_error')
      go.open()
      assertRan(await first, 201)
      assertReplay(await send({ key: 'key-1', json: { amount: 1 } }), await first)
      assert.equal(runs(), 1)
    },
  },
  {
    name: "replays a 500 when the profile is 'stripe'",
    async run(fixture) {
      const { send, runs } = await stage(fixture, {
        options: { profile: 'stripe' },
        handle: () => ({ status: 500, headers: { 'content-type': 'text/plain' }, body: 'failed' }),
      })
      const first = await send({ key: 'key-1' })
      assertRan(first, 500)
      assertReplay(await send({ key: 'key-1' }), first)
      assert.equal(runs(), 1)
    },
  },
  {
    name: "shares a key between all routes of a tenant when the profile is 'stripe'",
    async run(fixture) {
      const { send, runs } = await stage(fixture, {
        options: { profile: 'stripe' },
        routes: ['/payments', '/refunds'].map((path) => ({ path, handle: () => created })),
      })
      assertRan(await send({ path: '/payments', key: 'key-1' }), 201)
      assertStripe(await send({ path: '/refunds', key: 'key-1' }), 400, 'idempotency_error')
      assert.equal(runs(), 1)
    },
  },
  {
    name: 'lets one route use a different profile',
    async run(fixture) {
      const { send } = await stage(fixture, {
        routes: [
          { path: '/payments', handle: () => created },
          { path: '/v1/charges', options: { profile: 'stripe' }, handle: () => created },
        ],
      })
      assertProblem(await send({ path: '/payments' }), 400, 'idempotency_key_missing')
      assertStripe(await send({ path: '/v1/charges' }), 400, 'invalid_request_error')
    },
  },
  {
    name: 'lets a route name its operation',
    async run(fixture) {
      const operation = 'create-payment'
      const { send, runs } = await stage(fixture, {
        routes: [
          { path: '/payments', options: { operation }, handle: () => created },
          { path: '/v2/payments', options: { operation: () => operation }, handle: () => created },
          { path: '/refunds', handle: () => created },
        ],
      })
      assertRan(await send({ path: '/payments', key: 'key-1' }), 201)
      assertMismatch(await send({ path: '/v2/payments', key: 'key-1' }))
      assertRan(await send({ path: '/refunds', key: 'key-1' }), 201)
      assert.equal(runs(), 2)
    },
  },
  {
    name: 'protects only the methods that a route names',
    async run(fixture) {
      const { send, runs } = await stage(fixture, {
        routes: ['PUT', 'POST'].map((method) => ({
          method,
          path: '/payments',
          options: { methods: ['PUT'] },
          handle: () => created,
        })),
      })
      const first = await send({ method: 'PUT', key: 'key-1' })
      assertRan(first, 201)
      assertReplay(await send({ method: 'PUT', key: 'key-1' }), first)
      for (let time = 0; time < 2; time++) assertRan(await send({ key: 'key-1' }), 201)
      assert.equal(runs(), 3)
    },
  },
  {
    name: 'keeps replies for the retention of their route',
    async run(fixture) {
      const { send } = await stage(fixture, {
        routes: [
          { path: '/payments', handle: () => created },
          { path: '/short', options: { retentionMs: HOUR_MS }, handle: () => created },
        ],
      })
      const inMs = (ms: number) => new Date(fixture.clock.nowMs() + ms).toUTCString()
      const [long, short] = [inMs(24 * HOUR_MS), inMs(HOUR_MS)]
      assert.equal((await send({ path: '/payments', key: 'key-1' })).headers[EXPIRES], long)
      assert.equal((await send({ path: '/short', key: 'key-1' })).headers[EXPIRES], short)
      fixture.clock.advance(HOUR_MS)
      assert.equal((await send({ path: '/payments', key: 'key-1' })).headers[REPLAYED], 'true')
      assertRan(await send({ path: '/short', key: 'key-1' }), 201)
    },
  },
  {
    name: "refuses an expired key permanently when afterExpiry is 'refuse'",
    async run(fixture) {
      const { send, runs } = await stage(fixture, {
        route: { afterExpiry: 'refuse', retentionMs: HOUR_MS },
      })
      assertRan(await send({ key: 'key-1' }), 201)
      fixture.clock.advance(HOUR_MS)
      assertProblem(await send({ key: 'key-1' }), 410, 'idempotency_key_expired')
      assert.equal(runs(), 1)
    },
  },
  {
    name: 'limits requests and replies only on the route that sets the limits',
    async run(fixture) {
      const handle = () => ({ status: 200, body: 'x'.repeat(50) })
      const { send } = await stage(fixture, {
        routes: [
          { path: '/payments', handle },
          { path: '/small', options: { requestBytesMax: 20, replyBytesMax: 20 }, handle },
        ],
      })
      const json = { text: 'longer than twenty bytes' }
      assertRan(await send({ path: '/payments', key: 'key-1', json }), 200)
      const large = await send({ path: '/small', key: 'key-1', json })
      assertProblem(large, 413, 'idempotency_request_too_large')
      for (const [path, elided] of [
        ['/payments', undefined],
        ['/small', 'true'],
      ] as const) {
        assertRan(await send({ path, key: 'key-2' }), 200)
        const replay = await send({ path, key: 'key-2' })
        assert.equal(replay.headers['idempotent-body-elided'], elided)
      }
    },
  },
  {
    name: 'links to the documentation page that a route names',
    async run(fixture) {
      const { send } = await stage(fixture, { route: { docsUrl: 'https://example.com/keys' } })
      const { headers } = await send({})
      assert.equal(headers['link'], '<https://example.com/keys>; rel="describedby"')
    },
  },
  ...overrideCases,
  refusedAtStart('an option that does not exist', { tennant: () => 'ann' }),
  refusedAtStart('an unknown value of an option', { profile: 'paypal' }),
  refusedAtStart('no tenant', { tenant: undefined }),
  refusedAtStart('no store', { store: undefined }),
  refusedAtStart('options that contradict each other', { keyField: 'id', keyHeader: 'x-id' }),
  refusedAtStart('an invalid option of a route', {}, { retention: 1 }),
  refusedAtStart('a route that would replay cookies', {}, { storeHeaders: ['set-cookie'] }),
]

function assertStripe(reply: Received, status: number, type: string): void {
  assert.equal(reply.status, status, reply.text)
  assert.match(reply.headers['content-type'] ?? '', /^application\/json/)
  const { error } = JSON.parse(reply.text) as { error: Record<string, unknown> }
  assert.equal(error['type'], type)
  assert.match(String(error['code']), /^idempotency_/)
  assert.equal(typeof error['message'], 'string')
}

/** A wrong configuration must fail at start-up, not at the first double charge. */
function refusedAtStart(what: string, options: object, route?: object): AdapterCase {
  return {
    name: `does not start with ${what}`,
    async run({ subject, store }) {
      const all = { store, tenant: tenantOf, ...options } as CaseOptions
      const own = route === undefined ? {} : { options: route as Partial<CaseOptions> }
      const routes = [{ path: '/payments', handle: () => created, ...own }]
      await assert.rejects(
        async () => subject.serve({ options: all, routes }),
        (error: Error) => 'code' in error && error.code === 'INVALID_OPTIONS',
      )
    },
  }
}

const tenantOf: CaseOptions['tenant'] = (head) => head.header(TENANT_HEADER) ?? ''
