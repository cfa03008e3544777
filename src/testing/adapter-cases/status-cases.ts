/** What a client is told that asks, by the id of its record, what became of its request. */
import assert from 'node:assert/strict'
import { createEngine } from '../../core/engine.ts'
import type { Store } from '../../core/store.ts'
import type { StatusOptions } from '../../http/status-options.ts'
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
    name: 'tells who asks for a request by its id that it is under way',
    async run(fixture) {
      const { handle, entered, go } = held()
      const { send, ask } = await asked(fixture, { handle })
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
      // It is a question: the key is as it was.
      assertInProgress(await send({ key: 'key-1' }))
      go()
      assertRan(await first, 201)
    },
  },
  {
    name: 'leads a duplicate from the Location of its 202 to the reply of the first',
    async run(fixture) {
      const { handle, entered, go } = held()
      const { send, ask } = await asked(fixture, {
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
    name: 'sends who has its work accepted to where it can ask, and tells there that it waits',
    async run(fixture) {
      const { send, ask, runs } = await asked({ ...fixture, store: accepting(fixture.store) })
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
  finished('shows who asks the finished reply as a retry gets it', {
    status: 201,
    headers: {
      'content-type': 'application/json; charset=utf-8',
      location: '/payments/1',
      link: ['</a>; rel="next"', '</b>; rel="prev"'],
    },
    body: '{"paymentId":"pay_1"}',
  }),
  finished('shows who asks the bytes of a binary reply', {
    status: 200,
    headers: { 'content-type': 'application/pdf', 'cache-control': 'private, max-age=60' },
    body: Uint8Array.from({ length: 512 }, (_, n) => n % 256),
  }),
  finished('shows who asks a finished reply without a body', { status: 204 }),
  finished('shows who asks a finished reply that is an error of the handler', {
    status: 422,
    headers: { 'content-type': 'application/problem+json' },
    body: '{"title":"card declined"}',
  }),
  {
    name: 'shows who asks with HEAD the head of the finished reply and no body',
    async run(fixture) {
      const { send, ask } = await asked(fixture, { handle: () => jsonReply({ paid: 'yes' }, 201) })
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
      const { send, ask } = await asked(
        fixture,
        { options: { encryption }, handle: () => jsonReply({ paid: true }, 201) },
        { encryption },
      )
      const first = await send({ key: 'key-1' })
      assertBytes((await ask((await recordOf(fixture.store)).recordId)).body, first.body)
    },
  },
  {
    name: 'tells nobody whether an id is of another tenant, of nothing, or no id at all',
    async run(fixture) {
      const { send, ask } = await asked(fixture, {
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
    name: 'shows nothing to who asks without a tenant',
    async run(fixture) {
      const { send, ask } = await asked(fixture, { handle: () => jsonReply({ secret: 1 }, 201) })
      await send({ key: 'key-1' })
      const { recordId } = await recordOf(fixture.store)
      const answer = await ask(recordId, { tenant: '' })
      assert.equal(answer.status, 500, answer.text)
      assert.doesNotMatch(answer.text, /secret/)
    },
  },
  {
    name: 'tells who asks too late that the reply is no longer kept',
    async run(fixture) {
      const { send, ask } = await asked(fixture, { options: { retentionMs: HOUR_MS } })
      assertRan(await send({ key: 'key-1' }), 201)
      const { recordId } = await recordOf(fixture.store)
      fixture.clock.advance(HOUR_MS - 1)
      assert.equal((await ask(recordId)).status, 201)
      fixture.clock.advance(1)
      assertProblem(await ask(recordId), 410, 'idempotency_key_expired')
    },
  },
  {
    name: 'tells who asks that an outcome is unknown, and when to ask again',
    async run(fixture) {
      const { send, ask } = await asked(fixture, { handle: () => ({ status: 502, body: 'lost' }) })
      assertRan(await send({ key: 'key-1' }), 502)
      const { recordId } = await recordOf(fixture.store)
      assertUnknown(await ask(recordId))
    },
  },
  {
    name: 'tells who asks for a request that was given up to send it again, not to wait',
    async run(fixture) {
      const { send, ask, runs } = await asked(fixture, { handle: () => ({ status: 500 }) })
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
    name: 'takes a store that fails for no answer at all, never for "not found"',
    async run(fixture) {
      let isBroken = false
      const store = withRead(fixture.store, () => {
        if (isBroken) throw new Error('the store is away')
      })
      const { send, ask } = await asked({ ...fixture, store })
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
    name: 'takes the id from where the options say',
    async run(fixture) {
      const { send, ask } = await asked(
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

/** Said anew for each message, or by the server about the connection. */
const OF_THE_MESSAGE = ['date', 'connection', 'keep-alive', 'content-length', 'transfer-encoding']

function headersOf({ headers }: Received): Record<string, string | undefined> {
  const rest = Object.entries(headers).filter(([name]) => !OF_THE_MESSAGE.includes(name))
  return Object.fromEntries(rest)
}

interface Question extends Omit<Send, 'port' | 'path'> {
  /** Asked when this is over. */
  readonly after?: Promise<unknown>
}

interface AskedStage extends Stage {
  readonly ask: (recordId: string, question?: Question) => Promise<Received>
}

/** An app whose guard and status handler share an engine that goes by the clock of the case. */
async function asked(
  fixture: AdapterFixture,
  setup: Setup = {},
  more: Partial<StatusOptions<CaseHead>> = {},
): Promise<AskedStage> {
  const { store, clock } = fixture
  // What has expired stays until a case looks at it.
  const engine = createEngine({ store, clock, reapEveryMs: 0 })
  const tenant = (head: CaseHead) => head.header(TENANT_HEADER) ?? ''
  const options = { engine, statusUrl, ...setup.options }
  const status = { path: '/operations', options: { engine, tenant, statusUrl, ...more } }
  const app = await stage(fixture, { ...setup, options, status })
  const ask = async (recordId: string, { after, ...question }: Question = {}) => {
    await after
    return app.send({ method: 'GET', path: `/operations/${recordId}`, ...question })
  }
  return { ...app, ask }
}

/** What a client needs that is to come back. */
function assertMayBeAskedAgain({ headers }: Received, recordId: string): void {
  assert.match(headers['content-type'] ?? '', /^application\/json/)
  assert.match(headers['retry-after'] ?? '', /^[1-5]$/)
  assert.equal(headers['location'], statusUrl(recordId))
  assert.equal(headers['cache-control'], 'no-store')
  assert.match(headers['link'] ?? '', /rel="describedby"/)
  assert.equal(headers[REPLAYED], undefined)
}

/** The answer is what a retry gets, but no cache may keep it unless the handler said so. */
function finished(name: string, reply: CaseReply): AdapterCase {
  return {
    name,
    async run(fixture) {
      const { send, ask, runs } = await asked(fixture, { handle: () => reply })
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

/** A handler that waits inside. */
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

/** The same store, for which every claim is one for later. */
function accepting(store: Store): Store {
  return withCall(store, 'claim', (requests: Parameters<Store['claim']>[0]) =>
    store.claim(requests.map((request) => ({ ...request, mode: 'accept' }))),
  )
}

/** The same store, but reading a record first passes `before`, which may throw. */
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
