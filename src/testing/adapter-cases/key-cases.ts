/** Keys: where the guard reads them, which are valid, and the answer to a missing key. */
import assert from 'node:assert/strict'
import type { AdapterCase, CaseOptions } from './adapter-case.ts'
import type { Received, Send } from './case-client.ts'
import { assertProblem, assertRan, assertReplay, recordsOf, REPLAYED, stage } from './case-stage.ts'

type Request = Omit<Send, 'port'>

export const keyCases: readonly AdapterCase[] = [
  {
    name: 'refuses a request without a key, and explains how to send one',
    async run(fixture) {
      const { send, runs } = await stage(fixture, {})
      const reply = await send({ json: { amount: 1 } })
      assertProblem(reply, 400, 'idempotency_key_missing')
      assert.match(reply.text, /in the header Idempotency-Key,/)
      assert.equal(runs(), 0)
      assert.deepEqual(await recordsOf(fixture.store), [])
    },
  },
  refused('an empty key', { key: '' }),
  refused('a key that consists only of quotes', { key: '""' }),
  refused('a quoted key without a closing quote', { key: '"key-1' }),
  refused('a key with a comma, which may be two keys', { key: 'key-1,key-2' }),
  refused('a key with characters outside ASCII', { key: 'k\u00e9y' }),
  refused('a key of 256 characters', { key: 'k'.repeat(256) }),
  refused('two different keys in two header lines', { key: ['key-1', 'key-2'] }),
  refused('the same key in two header lines', { key: ['key-1', 'key-1'] }),
  refused('two quoted keys in two header lines', { key: ['"key-1"', '"key-2"'] }),
  same('treats a quoted and a bare key as the same key', [
    { key: '"8e03978e-40d5"' },
    { key: '8e03978e-40d5' },
    { key: '  "8e03978e-40d5"  ' },
  ]),
  same('accepts keys as common clients send them, base64 included', [
    { key: 'ab+/cd==' },
    { key: '"ab+/cd=="' },
  ]),
  same('accepts a key of 255 characters', [{ key: 'k'.repeat(255) }]),
  {
    name: 'keeps keys that differ only in case apart',
    async run(fixture) {
      const { send, runs } = await stage(fixture, {})
      assertRan(await send({ key: 'Key' }), 201)
      assertRan(await send({ key: 'key' }), 201)
      assert.equal(runs(), 2)
    },
  },
  {
    name: 'keeps the longest key of the longest tenant apart from similar keys',
    async run(fixture) {
      const { send, runs } = await stage(fixture, {})
      const tenant = 't'.repeat(255)
      const key = 'k'.repeat(255)
      const first = await send({ tenant, key })
      assertRan(await send({ tenant, key: `${key.slice(1)}x` }), 201)
      assertRan(await send({ tenant: `${tenant.slice(1)}x`, key }), 201)
      assertReplay(await send({ tenant, key }), first)
      assert.equal(runs(), 3)
    },
  },
  same(
    'reads the key from the header that the route names',
    [{ headers: { 'x-request': 'k-1' } }],
    {
      route: { keyHeader: 'X-Request' },
      refuses: { key: 'k-1' },
    },
  ),
  same(
    'reads the key from the body field that the route names',
    [{ json: { meta: { requestId: 'k-1' }, amount: 5 } }],
    { route: { keyField: 'meta.requestId' }, refuses: { key: 'k-1', json: { amount: 5 } } },
  ),
  same('reads the key from a form field', [{ body: 'request_id=k-1&amount=5', headers: form() }], {
    route: { keyField: 'request_id' },
    refuses: { body: 'amount=5', headers: form() },
  }),
  same(
    'reads the key with the keyFrom function of the route',
    [{ headers: { 'x-event': 'evt_1' } }],
    { route: { keyFrom: (head) => head.header('x-event') }, refuses: { key: 'k-1' } },
  ),
  refused('a key that does not match keyPattern', { key: 'abc' }, { keyPattern: /^pay_\w+$/ }),
  same('accepts a key that matches keyPattern', [{ key: 'pay_1' }, { key: '"pay_1"' }], {
    route: { keyPattern: /^pay_\w+$/ },
  }),
  refused('a key shorter than keyLengthMin', { key: 'short' }, { keyLengthMin: 16 }),
  refused('a key longer than keyLengthMax', { key: 'k'.repeat(65) }, { keyLengthMax: 64 }),
  refused("a bare key when keySyntax is 'strict'", { key: 'k' }, strict()),
  same("accepts a quoted key when keySyntax is 'strict'", [{ key: '"k"' }], {
    route: strict(),
  }),
  refused(
    'an e-mail address as a key when refusePersonalKeys is set',
    { key: 'ann@example.com' },
    { refusePersonalKeys: true },
  ),
  {
    name: 'does not repeat a refused key in the problem',
    async run(fixture) {
      const { send } = await stage(fixture, { route: { refusePersonalKeys: true } })
      const reply = await send({ key: 'ann@example.com' })
      assert.equal(reply.status, 400)
      assert.ok(!reply.text.includes('ann'))
    },
  },
  {
    name: 'runs a request without a key unprotected when keyRequired is false',
    async run(fixture) {
      const { send, runs } = await stage(fixture, {
        route: { keyRequired: false },
        handle: async (request) => ({
          status: 201,
          body: JSON.stringify([request.idempotency?.key ?? 'none', await request.json()]),
        }),
      })
      for (let time = 0; time < 2; time++) {
        const reply = await send({ json: { amount: 1 } })
        assertRan(reply, 201)
        assert.equal(reply.text, '["none",{"amount":1}]')
      }
      const first = await send({ key: 'key-1', json: { amount: 1 } })
      assertRan(first, 201)
      assert.equal(first.text, '["key-1",{"amount":1}]')
      assertReplay(await send({ key: 'key-1', json: { amount: 1 } }), first)
      assertProblem(await send({ key: '"' }), 400, 'idempotency_key_malformed')
      assert.equal(runs(), 3)
    },
  },
]

function form(): Record<string, string> {
  return { 'content-type': 'application/x-www-form-urlencoded' }
}

function strict(): Partial<CaseOptions> {
  return { keySyntax: 'strict' }
}

function refused(what: string, request: Request, route: Partial<CaseOptions> = {}): AdapterCase {
  return {
    name: `refuses ${what}`,
    async run(fixture) {
      const { send, runs } = await stage(fixture, { route })
      assertProblem(await send(request), 400, 'idempotency_key_malformed')
      assert.equal(runs(), 0)
      assert.deepEqual(await recordsOf(fixture.store), [])
    },
  }
}

interface SameKey {
  readonly route?: Partial<CaseOptions>
  /** The same request without a key, which this route refuses. */
  readonly refuses?: Request
}

/** All of these are one request: the first runs, the others and a repeat of it are replayed. */
function same(name: string, requests: readonly Request[], options: SameKey = {}): AdapterCase {
  const { route, refuses } = options
  return {
    name,
    async run(fixture) {
      const setup = route === undefined ? {} : { route }
      const { send, runs } = await stage(fixture, setup)
      const replies: Received[] = []
      for (const request of [...requests, requests[0]!]) replies.push(await send(request))
      const marks = replies.map(({ status, headers }) => [status, headers[REPLAYED]])
      const replays = requests.map(() => [201, 'true'])
      assert.deepEqual(marks, [[201, undefined], ...replays])
      assert.equal(runs(), 1)
      if (refuses === undefined) return
      assertProblem(await send(refuses), 400, 'idempotency_key_missing')
      assert.equal(runs(), 1)
    },
  }
}
