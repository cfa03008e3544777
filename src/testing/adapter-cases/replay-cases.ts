/** Replies that are recorded, and their replays. */
import assert from 'node:assert/strict'
import type { AdapterCase, CaseReply } from './adapter-case.ts'
import {
  assertRan,
  assertReplay,
  assertUnknown,
  created,
  EXPIRES,
  jsonReply,
  recordOf,
  recordsOf,
  REPLAYED,
  stage,
} from './case-stage.ts'

const DAY_MS = 24 * 60 * 60 * 1000

export const replayCases: readonly AdapterCase[] = [
  {
    name: 'runs the handler once and replays its reply to every retry',
    async run(fixture) {
      const { send, runs } = await stage(fixture, {
        handle: async (request) => jsonReply({ got: await request.json() }, 201),
      })
      const first = await send({ key: 'key-1', json: { amount: 100 } })
      assertRan(first, 201)
      assert.deepEqual(JSON.parse(first.text), { got: { amount: 100 } })
      for (let retry = 0; retry < 3; retry++) {
        assertReplay(await send({ key: 'key-1', json: { amount: 100 } }), first)
      }
      assert.equal(runs(), 1)
    },
  },
  {
    name: 'sends the expiry of the record with the first reply and with replays',
    async run(fixture) {
      const { send } = await stage(fixture, {})
      const expires = new Date(fixture.clock.nowMs() + DAY_MS).toUTCString()
      const first = await send({ key: 'key-1' })
      assert.equal(first.headers[EXPIRES], expires)
      fixture.clock.advance(DAY_MS / 2)
      const replay = await send({ key: 'key-1' })
      assertReplay(replay, first)
      assert.equal(replay.headers[EXPIRES], expires)
    },
  },
  ...[401, 429, 500].map((status): AdapterCase => ({
    name: `sends no expiry with a ${status}, which is not recorded`,
    async run(fixture) {
      const { send, runs } = await stage(fixture, { handle: () => ({ status, body: 'no' }) })
      for (let count = 1; count <= 2; count++) {
        const reply = await send({ key: 'key-1' })
        assertRan(reply, status)
        assert.equal(reply.headers[EXPIRES], undefined)
        assert.equal(runs(), count)
      }
    },
  })),
  {
    name: 'runs a handler again when its record has expired',
    async run(fixture) {
      const { send, runs } = await stage(fixture, { options: { retentionMs: 3_600_000 } })
      assertRan(await send({ key: 'key-1' }), 201)
      fixture.clock.advance(3_600_000)
      assertRan(await send({ key: 'key-1' }), 201)
      assert.equal(runs(), 2)
    },
  },
  ...[200, 201, 202, 204, 205].map((status) =>
    recorded(`replays a ${status} with an empty body, and does not run it again`, { status }),
  ),
  ...[301, 302, 303, 307, 308].map((status) =>
    recorded(`replays a ${status} with its location`, {
      status,
      headers: { location: '/payments/1?of=tenant' },
    }),
  ),
  ...[400, 404, 409, 410, 415, 422].map((status) =>
    recorded(`replays a ${status} of the handler, because it is an outcome of the work`, {
      status,
      headers: { 'content-type': 'application/json' },
      body: `{"error":"${status}"}`,
    }),
  ),
  ...[401, 403, 408, 425, 429].map((status) =>
    runAgain(`does not record a ${status}, because it rejects the request before any work`, status),
  ),
  ...[500, 503].map((status) =>
    runAgain(`does not record a ${status} of the handler, and runs it again`, status),
  ),
  ...[502, 504].map((status): AdapterCase => ({
    name: `treats a ${status} of the handler as a lost call with an unknown outcome`,
    async run(fixture) {
      const { send, runs } = await stage(fixture, { handle: () => ({ status, body: 'lost' }) })
      assertRan(await send({ key: 'key-1' }), status)
      assertUnknown(await send({ key: 'key-1' }))
      assert.equal(runs(), 1)
    },
  })),
  {
    name: 'releases the key after a 5xx, and records that the handler declared no effect',
    async run(fixture) {
      const { send } = await stage(fixture, { handle: () => ({ status: 500, body: 'no' }) })
      assertRan(await send({ key: 'key-1' }), 500)
      const { state, proof, attempt } = await recordOf(fixture.store)
      assert.deepEqual([state, proof, attempt], ['failed_retryable', 'declared', 1])
    },
  },
  {
    name: "records a 500 when onError is 'store'",
    async run(fixture) {
      const { send, runs } = await stage(fixture, {
        route: { onError: 'store' },
        handle: () => ({ status: 500, headers: { 'content-type': 'text/plain' }, body: 'failed' }),
      })
      const first = await send({ key: 'key-1' })
      assertRan(first, 500)
      assertReplay(await send({ key: 'key-1' }), first)
      assert.equal(runs(), 1)
    },
  },
  {
    name: "does not run again after a 500 when onError is 'unknown'",
    async run(fixture) {
      const { send, runs } = await stage(fixture, {
        route: { onError: 'unknown' },
        handle: () => ({ status: 500, body: 'failed' }),
      })
      assertRan(await send({ key: 'key-1' }), 500)
      assertUnknown(await send({ key: 'key-1' }))
      assert.equal(runs(), 1)
    },
  },
  {
    name: 'protects PATCH requests',
    async run(fixture) {
      const { send, runs } = await stage(fixture, {
        routes: [{ method: 'PATCH', path: '/payments', handle: () => created }],
      })
      const first = await send({ method: 'PATCH', key: 'key-1' })
      assertReplay(await send({ method: 'PATCH', key: 'key-1' }), first)
      assert.equal(runs(), 1)
    },
  },
  ...['HEAD', 'GET', 'PUT', 'DELETE'].map(untouched),
  {
    name: 'leaves a route without protection unchanged',
    async run(fixture) {
      const contexts: unknown[] = []
      const { send, runs } = await stage(fixture, {
        routes: [
          {
            path: '/payments',
            options: false,
            handle: ({ idempotency }) => {
              contexts.push(idempotency)
              return created
            },
          },
        ],
      })
      for (const key of ['key-1', 'key-1', undefined]) {
        assertRan(await send(key === undefined ? {} : { key }), 201)
      }
      assert.equal(runs(), 3)
      assert.deepEqual(contexts, [undefined, undefined, undefined])
      assert.deepEqual(await recordsOf(fixture.store), [])
    },
  },
]

function recorded(name: string, reply: CaseReply): AdapterCase {
  return {
    name,
    async run(fixture) {
      const { send, runs } = await stage(fixture, { handle: () => reply })
      const first = await send({ key: 'key-1', json: { amount: 1 } })
      assertRan(first, reply.status)
      assert.equal(first.text, reply.body ?? '')
      const replay = await send({ key: 'key-1', json: { amount: 1 } })
      assertReplay(replay, first)
      assert.equal(replay.headers['location'], reply.headers?.['location'])
      assert.equal(runs(), 1)
    },
  }
}

function runAgain(name: string, status: number): AdapterCase {
  return {
    name,
    async run(fixture) {
      let calls = 0
      const { send, runs } = await stage(fixture, {
        handle: () => (++calls === 1 ? { status, body: 'not now' } : created),
      })
      const first = await send({ key: 'key-1' })
      assertRan(first, status)
      assert.equal(first.text, 'not now')
      const second = await send({ key: 'key-1' })
      assertRan(second, 201)
      assertReplay(await send({ key: 'key-1' }), second)
      assert.equal(runs(), 2)
    },
  }
}

// The HEAD route comes first, because some frameworks add one for every GET route.
function untouched(method: string): AdapterCase {
  return {
    name: `leaves ${method} requests unchanged, with a key or without`,
    async run(fixture) {
      let contexts = 0
      const methods = method === 'HEAD' ? ['HEAD', 'GET'] : [method]
      const { send, runs } = await stage(fixture, {
        routes: methods.map((method) => ({
          method,
          path: '/payments',
          handle: ({ idempotency }) => {
            if (idempotency !== undefined) contexts++
            return { status: 200, headers: { 'x-own': '1' } }
          },
        })),
      })
      for (const key of ['key-1', 'key-1', 'not, a key']) {
        const reply = await send({ method, key })
        assertRan(reply, 200)
        assert.equal(reply.headers['x-own'], '1')
        assert.equal(reply.headers[EXPIRES], undefined)
        assert.equal(reply.headers[REPLAYED], undefined)
      }
      assert.equal(runs(), 3)
      assert.equal(contexts, 0)
      assert.deepEqual(await recordsOf(fixture.store), [])
    },
  }
}
