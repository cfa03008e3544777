/** Concurrent requests: one runs, and the others are answered without running. */
import assert from 'node:assert/strict'
import type { AdapterCase, AdapterFixture, CaseOptions } from './adapter-case.ts'
import type { Received, Send } from './case-client.ts'
import {
  assertInProgress,
  assertMismatch,
  assertProblem,
  assertRan,
  assertReplay,
  assertUnknown,
  created,
  gate,
  recordOf,
  stage,
  watched,
  type Stage,
} from './case-stage.ts'

const HOUR_MS = 3_600_000
const LEASE_MS = 60_000

type Request = Omit<Send, 'port'>

/** A handler that signals when it starts and runs until it is released. */
function held() {
  const entered = gate()
  const go = gate()
  const handle = async () => {
    entered.open()
    await go.passed
    return created
  }
  return { handle, entered: entered.passed, letGo: () => go.open() }
}

export const concurrencyCases: readonly AdapterCase[] = [
  {
    name: 'runs one of ten concurrent requests, and answers 409 to the others',
    async run(fixture) {
      const crowd = crowded(10)
      const app = await stage(fixture, { handle: crowd.handle })
      await assertOneRuns(await crowd.sendAll(app), app)
    },
  },
  {
    name: 'runs one of ten concurrent requests after the record has expired',
    async run(fixture) {
      const crowd = crowded(10)
      let isFirst = true
      const app = await stage(fixture, {
        options: { retentionMs: HOUR_MS },
        handle: () => {
          if (!isFirst) return crowd.handle()
          isFirst = false
          return { status: 200, body: 'long ago' }
        },
      })
      assertRan(await app.send({ key: 'key-1', json: { amount: 1 } }), 200)
      fixture.clock.advance(HOUR_MS)
      await assertOneRuns(await crowd.sendAll(app), app, 2)
    },
  },
  {
    name: "lets a duplicate wait for the result when whileInProgress is 'wait'",
    async run(fixture) {
      const { handle, entered, letGo } = held()
      const claims = gate()
      let count = 0
      const store = watched(fixture.store, (call, rows) => {
        if (call === 'claim' && (count += rows) >= 2) claims.open()
      })
      const whileInProgress = { waitMs: 30_000 }
      const { send, runs } = await stage(
        { ...fixture, store },
        { handle, route: { whileInProgress } },
      )
      const first = send({ key: 'key-1' })
      await entered
      const second = send({ key: 'key-1' })
      await claims.passed
      letGo()
      assertReplay(await second, await first)
      assert.equal(runs(), 1)
    },
  },
  {
    name: 'answers 409 to a duplicate that has waited for its maximum time',
    async run(fixture) {
      await whileHeld(fixture, { whileInProgress: { waitMs: 1 } }, async ({ send }) => {
        assertInProgress(await send({ key: 'key-1' }))
      })
    },
  },
  {
    name: "answers 202 with a Location to a duplicate when whileInProgress is 'accepted'",
    async run(fixture) {
      const statusUrl = (recordId: string) => `/status/${recordId}`
      await whileHeld(fixture, { whileInProgress: 'accepted', statusUrl }, async ({ send }) => {
        const { status, headers } = await send({ key: 'key-1' })
        assert.equal(status, 202)
        const { recordId } = await recordOf(fixture.store)
        assert.equal(headers['location'], statusUrl(recordId))
        assert.match(headers['retry-after'] ?? '', /^[1-5]$/)
      })
    },
  },
  {
    name: 'reports a mismatch, not a conflict, for another request under a key in use',
    async run(fixture) {
      await whileHeld(fixture, {}, async ({ send }) => {
        assertMismatch(await send({ key: 'key-1', json: { amount: 2 } }))
        assertInProgress(await send({ key: 'key-1' }))
      })
    },
  },
  {
    name: 'runs the same request under two keys twice',
    async run(fixture) {
      const { send, runs } = await stage(fixture, {})
      const json = { amount: 1 }
      const replies = [await send({ key: 'key-1', json }), await send({ key: 'key-2', json })]
      for (const reply of replies) assertRan(reply, 201)
      assert.equal(runs(), 2)
    },
  },
  {
    name: 'keeps the keys of tenants apart: no replay, no refusal, no mismatch',
    async run(fixture) {
      const { send, runs } = await stage(fixture, {
        handle: (request) => ({ status: 200, body: `of ${request.header('x-tenant')}` }),
      })
      const ann = await send({ key: 'key-1', tenant: 'ann', json: { amount: 1 } })
      const bob = await send({ key: 'key-1', tenant: 'bob', json: { amount: 1 } })
      const cy = await send({ key: 'key-1', tenant: 'cy', json: { amount: 3 } })
      assert.deepEqual([ann.text, bob.text, cy.text], ['of ann', 'of bob', 'of cy'])
      for (const reply of [ann, bob, cy]) assertRan(reply, 200)
      assertReplay(await send({ key: 'key-1', tenant: 'ann', json: { amount: 1 } }), ann)
      assert.equal(runs(), 3)
    },
  },
  {
    name: 'lets a tenant use a key that another tenant has in use',
    async run(fixture) {
      let calls = 0
      const first = held()
      const { send } = await stage(fixture, {
        handle: () => (++calls === 1 ? first.handle() : created),
      })
      const slow = send({ key: 'key-1', tenant: 'ann' })
      await first.entered
      assertRan(await send({ key: 'key-1', tenant: 'bob' }), 201)
      first.letGo()
      assertRan(await slow, 201)
    },
  },
  {
    name: 'keeps the keys of two routes apart',
    async run(fixture) {
      const { send } = await stage(fixture, {
        routes: ['/payments', '/refunds'].map((path) => ({
          path,
          handle: () => ({ status: 200, body: path }),
        })),
      })
      for (const path of ['/payments', '/refunds']) {
        const first = await send({ path, key: 'key-1', json: { amount: 1 } })
        assertRan(first, 200)
        assert.equal(first.text, path)
        assertReplay(await send({ path, key: 'key-1', json: { amount: 1 } }), first)
      }
    },
  },
  {
    name: "refuses a key on a second route when scopeBy is 'tenant'",
    async run(fixture) {
      const { send, runs } = await stage(fixture, {
        options: { scopeBy: 'tenant' },
        routes: ['/payments', '/refunds'].map((path) => ({ path, handle: () => created })),
      })
      const first = await send({ path: '/payments', key: 'key-1' })
      assertMismatch(await send({ path: '/refunds', key: 'key-1' }))
      assertReplay(await send({ path: '/payments', key: 'key-1' }), first)
      assert.equal(runs(), 1)
    },
  },
  {
    name: 'does not run a request again after its lease lapsed: the outcome is unknown',
    async run(fixture) {
      const { handle, entered, letGo } = held()
      const { send, runs } = await stage(fixture, { handle })
      const slow = send({ key: 'key-1' })
      await entered
      fixture.clock.advance(LEASE_MS)
      assertUnknown(await send({ key: 'key-1' }))
      letGo()
      // The first holder returns with the outcome, which settles the key.
      assertRan(await slow, 201)
      assertReplay(await send({ key: 'key-1' }), await slow)
      assert.equal(runs(), 1)
    },
  },
  {
    name: 'reports no success from a holder whose key was taken over',
    async run(fixture) {
      let calls = 0
      const first = held()
      const { send, runs } = await stage(fixture, {
        route: { onLapse: 'rerun' },
        handle: () => (++calls === 1 ? first.handle() : { status: 200, body: 'by the second' }),
      })
      const overtaken = send({ key: 'key-1' })
      await first.entered
      fixture.clock.advance(LEASE_MS)
      const second = await send({ key: 'key-1' })
      assertRan(second, 200)
      first.letGo()
      const late = await overtaken
      assert.notEqual(late.status, 201)
      if (late.status === 409) assertProblem(late, 409, 'idempotency_outcome_unknown')
      else assert.equal(late.text, 'by the second')
      assertReplay(await send({ key: 'key-1' }), second)
      assert.equal(runs(), 2)
    },
  },
]

/** Runs `act` while the first request with `key-1` is in its handler. */
async function whileHeld(
  fixture: AdapterFixture,
  options: Partial<CaseOptions>,
  look: (app: Stage) => Promise<void>,
): Promise<void> {
  const { handle, entered, letGo } = held()
  const app = await stage(fixture, { handle, options })
  const first = app.send({ key: 'key-1' })
  await entered
  await look(app)
  letGo()
  assertRan(await first, 201)
  assertReplay(await app.send({ key: 'key-1' }), await first)
  assert.equal(app.runs(), 1)
}

/** Handlers wait until every request has either started or been answered. */
function crowded(size: number) {
  const request: Request = { key: 'key-1', json: { amount: 1 } }
  const all = gate()
  let seen = 0
  const see = () => {
    if (++seen === size) all.open()
  }
  const handle = async () => {
    see()
    await all.passed
    return created
  }
  const sendAll = ({ send }: Stage): Promise<Received[]> =>
    Promise.all(
      Array.from({ length: size }, async () => {
        const reply = await send(request)
        see()
        return reply
      }),
    )
  return { handle, sendAll }
}

async function assertOneRuns(replies: readonly Received[], app: Stage, runs = 1): Promise<void> {
  const ran = replies.filter(({ status }) => status === 201)
  assert.equal(ran.length, 1)
  for (const reply of replies) if (reply !== ran[0]) assertInProgress(reply)
  assert.equal(app.runs(), runs)
  assertReplay(await app.send({ key: 'key-1', json: { amount: 1 } }), ran[0]!)
}
