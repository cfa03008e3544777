/** Answers of the status route, where a client asks for the outcome of its request by record id. */
import assert from 'node:assert/strict'
import { createEngine } from '../../core/engine/engine.ts'
import type { Store } from '../../core/store/store.ts'
import type { StatusOptions } from '../../http/status/status-options.ts'
import type { AdapterCase, AdapterFixture, CaseHead, CaseReply } from './adapter-case.ts'
import { TENANT_HEADER, type Received, type Send } from './case-client.ts'
import {
  assertBytes,
  assertInProgress,
  assertProblem,
  assertRan,
  assertUnknown,
  EXPIRES,
  gate,
  jsonReply,
  recordOf,
  REPLAYED,
  stage,
  type Setup,
  type Stage,
} from './case-stage.ts'

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS

export const statusCases: readonly AdapterCase[] = [
  {
    name: 'answers a status request for a running request with 202',
    async run(fixture) {
      const { handle, entered, go } = held()
      const { send, ask } = await stageWithStatus(fixture, { handle })
      const first = send({ key: 'key-1' })
      await entered
      const { recordId, createdAt } = await recordOf(fixture.store)
      const answer = await ask(recordId)
      assert.equal(answer.status, 202, answer.text)
      assert.deepEqual(JSON.parse(answer.text), {
        status: 'in_progress',
        recordId,
        createdAt: createdAt.toISOString(),
        code: 'idempotency_accepted',
      })
      assertMayBeAskedAgain(answer, recordId)
      // A status request does not change the key.
      assertInProgress(await send({ key: 'key-1' }))
      go()
      assertRan(await first, 201)
    },
  },
  {
    name: 'leads a duplicate from the Location of its 202 to the reply of the first request',
    async run(fixture) {
      const { handle, entered, go } = held()
      const { send, ask } = await stageWithStatus(fixture, {
        handle,
        route: { whileInProgress: 'accepted', statusUrl },
      })
      const first = send({ key: 'key-1' })
      await entered
      const { status, headers } = await send({ key: 'key-1' })
      assert.equal(status, 202)
      const recordId = headers['location']!.replace('/operations/', '')
      assert.equal((await ask(recordId)).status, 202)
      go()
      assertBytes((await ask(recordId, { after: first })).body, (await first).body)
    },
  },
  {
    name: 'returns 202 with a Location whose status is `pending`',
    async run(fixture) {
      const { send, ask, runs } = await stageWithStatus({
        ...fixture,
        store: accepting(fixture.store),
      })
      const accepted = await send({ key: 'key-1' })
      assert.equal(accepted.status, 202, accepted.text)
      const [record] = await fixture.store.list({ state: 'pending', limit: 2 })
      const { recordId } = record!
      assert.equal(accepted.headers['location'], statusUrl(recordId))
      assert.match(accepted.headers['retry-after'] ?? '', /^[1-5]$/)
      const answer = await ask(recordId)
      assert.equal(answer.status, 202, answer.text)
      assert.equal((JSON.parse(answer.text) as { status: unknown }).status, 'pending')
      assertMayBeAskedAgain(answer, recordId)
      assert.equal(runs(), 0)
    },
  },
  completedCase('answers a status request for a completed request like a retry', {
    status: 201,
    headers: {
      'content-type': 'application/json; charset=utf-8',
      location: '/payments/1',
      link: ['</a>; rel="next"', '</b>; rel="prev"'],
    },
    body: '{"paymentId":"pay_1"}',
  }),
  completedCase('answers a status request with the bytes of a binary reply', {
    status: 200,
    headers: { 'content-type': 'application/pdf', 'cache-control': 'private, max-age=60' },
    body: Uint8Array.from({ length: 512 }, (_, n) => n % 256),
  }),
  completedCase('answers a status request for a completed reply without a body', { status: 204 }),
  completedCase('answers a status request for a completed reply that is an error of the handler', {
    status: 422,
    headers: { 'content-type': 'application/problem+json' },
    body: '{"title":"card declined"}',
  }),
  {
    name: 'answers a HEAD status request with the headers of the reply and no body',
    async run(fixture) {
      const { send, ask } = await stageWithStatus(fixture, {
        handle: () => jsonReply({ paid: 'yes' }, 201),
      })
      await send({ key: 'key-1' })
      const { recordId } = await recordOf(fixture.store)
      const whole = await ask(recordId)
      const head = await ask(recordId, { method: 'HEAD' })
      assert.equal(head.body.byteLength, 0)
      assert.equal(head.status, 201)
      assert.equal(head.headers['content-length'], String(whole.body.byteLength))
      assert.deepEqual(headersOf(head), headersOf(whole))
      assert.equal((await ask(MISSING, { method: 'HEAD' })).status, 404)
    },
  },
  {
    name: 'decrypts the recorded reply for the status request',
    async run(fixture) {
      const flip = (bytes: Uint8Array) => bytes.map((byte) => byte ^ 0x5a)
      const encryption = { encrypt: flip, decrypt: flip }
      const { send, ask } = await stageWithStatus(
        fixture,
        { options: { encryption }, handle: () => jsonReply({ paid: true }, 201) },
        { encryption },
      )
      const first = await send({ key: 'key-1' })
      assertBytes((await ask((await recordOf(fixture.store)).recordId)).body, first.body)
    },
  },
  {
    name: 'answers 404 alike for an id of another tenant, an unused id and an invalid id',
    async run(fixture) {
      const { send, ask } = await stageWithStatus(fixture, {
        handle: () => jsonReply({ secret: 'of ann' }, 201),
      })
      await send({ key: 'key-1', tenant: 'ann' })
      const { recordId } = await recordOf(fixture.store)
      const missing = await ask(MISSING, { tenant: 'bob' })
      assertProblem(missing, 404, 'idempotency_record_not_found')
      for (const id of [recordId, 'key-1', `${recordId}0`, recordId.toUpperCase()]) {
        const answer = await ask(id, { tenant: 'bob' })
        assert.equal(answer.status, 404)
        assertBytes(answer.body, missing.body)
        assert.deepEqual(headersOf(answer), headersOf(missing))
      }
      assert.equal((await ask(recordId, { tenant: 'ann' })).status, 201)
    },
  },
  {
    name: 'answers a status request without a tenant with 500',
    async run(fixture) {
      const { send, ask } = await stageWithStatus(fixture, {
        handle: () => jsonReply({ secret: 1 }, 201),
      })
      await send({ key: 'key-1' })
      const { recordId } = await recordOf(fixture.store)
      const answer = await ask(recordId, { tenant: '' })
      assert.equal(answer.status, 500, answer.text)
      assert.doesNotMatch(answer.text, /secret/)
    },
  },
  {
    name: 'answers a status request after the retention with 410',
    async run(fixture) {
      const { send, ask } = await stageWithStatus(fixture, { options: { retentionMs: HOUR_MS } })
      assertRan(await send({ key: 'key-1' }), 201)
      const { recordId } = await recordOf(fixture.store)
      fixture.clock.advance(HOUR_MS - 1)
      assert.equal((await ask(recordId)).status, 201)
      fixture.clock.advance(1)
      assertProblem(await ask(recordId), 410, 'idempotency_key_expired')
    },
  },
  {
    name: 'answers a status request for an unknown outcome with a Retry-After',
    async run(fixture) {
      const { send, ask } = await stageWithStatus(fixture, {
        handle: () => ({ status: 502, body: 'lost' }),
      })
      assertRan(await send({ key: 'key-1' }), 502)
      const { recordId } = await recordOf(fixture.store)
      assertUnknown(await ask(recordId))
    },
  },
  {
    name: 'answers a status request for a released key with 409, so that the client sends it again',
    async run(fixture) {
      const { send, ask, runs } = await stageWithStatus(fixture, {
        handle: () => ({ status: 500 }),
      })
      assertRan(await send({ key: 'key-1' }), 500)
      const { recordId } = await recordOf(fixture.store)
      const answer = await ask(recordId)
      assert.equal(answer.status, 409, answer.text)
      const { code } = JSON.parse(answer.text) as { code: unknown }
      assert.equal(code, 'idempotency_retry_required')
      assert.equal(answer.headers['retry-after'], undefined)
      assertRan(await send({ key: 'key-1' }), 500)
      assert.equal(runs(), 2)
    },
  },
  {
    name: 'answers a status request with an error when the store fails, never with 404',
    async run(fixture) {
      let isBroken = false
      const store = withRead(fixture.store, () => {
        if (isBroken) throw new Error('the store is away')
      })
      const { send, ask } = await stageWithStatus({ ...fixture, store })
      assertRan(await send({ key: 'key-1' }), 201)
      const { recordId } = await recordOf(fixture.store)
      isBroken = true
      for (const id of [recordId, MISSING]) {
        assertProblem(await ask(id), 503, 'idempotency_status_unavailable')
      }
      isBroken = false
      assert.equal((await ask(recordId)).status, 201)
    },
  },
  {
    name: 'reads the record id with the function in the options',
    async run(fixture) {
      const { send, ask } = await stageWithStatus(
        fixture,
        {},
        { recordId: (head) => head.header('x-record') },
      )
      assertRan(await send({ key: 'key-1' }), 201)
      const { recordId } = await recordOf(fixture.store)
      assert.equal((await ask('latest', { headers: { 'x-record': recordId } })).status, 201)
      assert.equal((await ask(recordId)).status, 404)
    },
  },
]

const MISSING = '01900000-0000-7000-8000-000000000000'

const statusUrl = (recordId: string) => `/operations/${recordId}`

/** Headers that the server sets for each message or connection. */
const PER_MESSAGE_HEADERS = [
  'date',
  'connection',
  'keep-alive',
  'content-length',
  'transfer-encoding',
]

function headersOf({ headers }: Received): Record<string, string | undefined> {
  const rest = Object.entries(headers).filter(([name]) => !PER_MESSAGE_HEADERS.includes(name))
  return Object.fromEntries(rest)
}

interface StatusRequest extends Omit<Send, 'port' | 'path'> {
  /** Send the status request after this promise. */
  readonly after?: Promise<unknown>
}

interface StatusStage extends Stage {
  readonly ask: (recordId: string, question?: StatusRequest) => Promise<Received>
}

/** An app whose guard and status handler share an engine that uses the clock of the case. */
async function stageWithStatus(
  fixture: AdapterFixture,
  setup: Setup = {},
  more: Partial<StatusOptions<CaseHead>> = {},
): Promise<StatusStage> {
  const { store, clock } = fixture
  // Expired records stay until a case reads them.
  const engine = createEngine({ store, clock, reapEveryMs: 0 })
  const tenant = (head: CaseHead) => head.header(TENANT_HEADER) ?? ''
  const options = { engine, statusUrl, ...setup.options }
  const status = { path: '/operations', options: { engine, tenant, statusUrl, ...more } }
  const app = await stage(fixture, { ...setup, options, status })
  const ask = async (recordId: string, { after, ...question }: StatusRequest = {}) => {
    await after
    return app.send({ method: 'GET', path: `/operations/${recordId}`, ...question })
  }
  return { ...app, ask }
}

/** Asserts the headers that tell a client when and where to ask again. */
function assertMayBeAskedAgain({ headers }: Received, recordId: string): void {
  assert.match(headers['content-type'] ?? '', /^application\/json/)
  assert.match(headers['retry-after'] ?? '', /^[1-5]$/)
  assert.equal(headers['location'], statusUrl(recordId))
  assert.equal(headers['cache-control'], 'no-store')
  assert.match(headers['link'] ?? '', /rel="describedby"/)
  assert.equal(headers[REPLAYED], undefined)
}

/** The answer is what a retry gets, but without caching unless the handler allowed it. */
function completedCase(name: string, reply: CaseReply): AdapterCase {
  return {
    name,
    async run(fixture) {
      const { send, ask, runs } = await stageWithStatus(fixture, { handle: () => reply })
      assertRan(await send({ key: 'key-1' }), reply.status)
      const { recordId } = await recordOf(fixture.store)
      fixture.clock.advance(DAY_MS / 2)
      const retry = await send({ key: 'key-1' })
      const answer = await ask(recordId)
      assert.equal(answer.status, reply.status, answer.text)
      assertBytes(answer.body, retry.body)
      assert.equal(answer.headers[REPLAYED], 'true')
      assert.notEqual(answer.headers[EXPIRES], undefined)
      const expected = { 'cache-control': 'no-store', ...headersOf(retry) }
      assert.deepEqual(headersOf(answer), expected)
      assert.equal(runs(), 1)
    },
  }
}

/** A handler that waits until it is released. */
function held() {
  const entered = gate()
  const letGo = gate()
  const handle = async () => {
    entered.open()
    await letGo.passed
    return jsonReply({ paid: true }, 201)
  }
  return { handle, entered: entered.passed, go: () => letGo.open() }
}

/** Wraps a store: every claim is made in accept mode. */
function accepting(store: Store): Store {
  return withCall(store, 'claim', (requests: Parameters<Store['claim']>[0]) =>
    store.claim(requests.map((request) => ({ ...request, mode: 'accept' }))),
  )
}

/** Wraps a store: every read first calls `before`, which may throw. */
function withRead(store: Store, before: () => void): Store {
  return withCall(store, 'read', async (ref: Parameters<Store['read']>[0]) => {
    before()
    return store.read(ref)
  })
}

function withCall<Name extends 'claim' | 'read'>(
  store: Store,
  name: Name,
  call: Store[Name],
): Store {
  return new Proxy(store, {
    get(target, property): unknown {
      if (property === name) return call
      const value: unknown = Reflect.get(target, property)
      return typeof value === 'function' ? (value.bind(target) as unknown) : value
    },
  })
}
