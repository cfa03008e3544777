/** A failing store, and options that cannot name the owner of a key: nothing runs unprotected. */
import assert from 'node:assert/strict'
import { createEngine } from '../../core/engine/engine.ts'
import type { EngineEvent } from '../../core/events.ts'
import type { AdapterCase, AdapterFixture, CaseHandler, CaseOptions } from './adapter-case.ts'
import {
  assertProblem,
  assertRan,
  assertReplay,
  created,
  EXPIRES,
  gate,
  recordsOf,
  stage,
  watched,
} from './case-stage.ts'

export const storeFailureCases: readonly AdapterCase[] = [
  {
    name: 'runs nothing while the store fails at the claim',
    run: (fixture) =>
      withoutUnhandledRejection(async () => {
        const { send, runs, broken } = await breakable(fixture)
        broken.add('claim')
        assertProblem(await send({ key: 'key-1' }), 503, 'idempotency_store_unavailable')
        assert.equal(runs(), 0)
        broken.clear()
        assertRan(await send({ key: 'key-1' }), 201)
        assert.equal(runs(), 1)
      }),
  },
  {
    name: 'answers when the store does not respond, and runs nothing',
    run: (fixture) =>
      withoutUnhandledRejection(async () => {
        const { send, runs, hanging, reached } = await breakable(fixture)
        hanging.add('claim')
        const first = send({ key: 'key-1' })
        await reached
        await fixture.clock.advanceAsync(5_000)
        assertProblem(await first, 503, 'idempotency_store_unavailable')
        assert.equal(runs(), 0)
      }),
  },
  {
    name: "runs unprotected when onStoreFailure is 'open', and reports it",
    run: (fixture) =>
      withoutUnhandledRejection(async () => {
        const contexts: unknown[] = []
        const { send, runs, broken, events } = await breakable(
          fixture,
          (request) => {
            contexts.push(request.idempotency)
            return created
          },
          { onStoreFailure: 'open' },
        )
        broken.add('claim')
        const reply = await send({ key: 'key-1' })
        assertRan(reply, 201)
        assert.equal(reply.headers[EXPIRES], undefined)
        assert.deepEqual(contexts, [undefined])
        assert.equal(runs(), 1)
        assert.ok(events.some(({ kind }) => kind === 'unprotected_run'))
      }),
  },
  {
    name: 'confirms no work whose reply is not recorded, and replays it once it is recorded',
    run: (fixture) =>
      withoutUnhandledRejection(async () => {
        const { send, runs, broken, reached } = await breakable(fixture)
        broken.add('settle')
        const first = send({ key: 'key-1' })
        await reached
        await fixture.clock.advanceAsync(5_000)
        assertProblem(await first, 503, 'idempotency_outcome_not_recorded')
        broken.clear()
        await fixture.clock.advanceAsync(10_000)
        const replay = await send({ key: 'key-1' })
        assertReplay(replay, { ...replay, status: 201, body: Buffer.from('created') })
        assert.equal(runs(), 1)
      }),
  },
  {
    name: 'sends the reply when the store recovers in time',
    run: (fixture) =>
      withoutUnhandledRejection(async () => {
        const { send, runs, broken, reached } = await breakable(fixture)
        broken.add('settle')
        const first = send({ key: 'key-1' })
        await reached
        broken.clear()
        await fixture.clock.advanceAsync(1_000)
        assertRan(await first, 201)
        assertReplay(await send({ key: 'key-1' }), await first)
        assert.equal(runs(), 1)
      }),
  },
  ...tenants().map(({ what, tenant }): AdapterCase => ({
    name: `runs and records nothing when the tenant ${what}`,
    run: (fixture) =>
      withoutUnhandledRejection(async () => {
        const { send, runs } = await stage(fixture, { options: { tenant } })
        const reply = await send({ key: 'key-1' })
        assert.ok(reply.status >= 400, reply.text)
        assert.equal(runs(), 0)
        assert.deepEqual(await recordsOf(fixture.store), [])
      }),
  })),
  {
    name: 'runs and records nothing when the principal function fails',
    run: (fixture) =>
      withoutUnhandledRejection(async () => {
        const principal = () => Promise.reject(new Error('no session'))
        const { send, runs } = await stage(fixture, { route: { principal } })
        assert.ok((await send({ key: 'key-1' })).status >= 400)
        assert.equal(runs(), 0)
        assert.deepEqual(await recordsOf(fixture.store), [])
      }),
  },
  {
    name: 'refuses new work once the engine is closed',
    async run(fixture) {
      const { send, runs, engine } = await breakable(fixture)
      const first = await send({ key: 'key-1' })
      assertRan(first, 201)
      await engine.close()
      assertProblem(await send({ key: 'key-2' }), 503, 'idempotency_server_stopping')
      assert.equal(runs(), 1)
    },
  },
]

function tenants(): { what: string; tenant: CaseOptions['tenant'] }[] {
  return [
    {
      what: 'function throws',
      tenant: () => {
        throw new Error('no session')
      },
    },
    { what: 'function rejects', tenant: () => Promise.reject(new Error('no session')) },
    { what: 'is empty', tenant: () => '' },
    { what: "is 'undefined'", tenant: () => String(undefined) },
    { what: 'is not a string', tenant: () => 7 as unknown as string },
  ]
}

type Call = 'claim' | 'settle'

/** A store whose calls fail or hang while they are in these sets. Its engine uses the clock. */
async function breakable(
  fixture: AdapterFixture,
  handle: CaseHandler = () => created,
  route: Partial<CaseOptions> = {},
) {
  const { clock } = fixture
  const broken = new Set<Call>()
  const hanging = new Set<Call>()
  const events: EngineEvent[] = []
  const reached = gate()
  const store = watched(fixture.store, async (call) => {
    if (broken.has(call) || hanging.has(call)) reached.open()
    if (hanging.has(call)) await new Promise(() => undefined)
    if (broken.has(call)) throw new Error('connection refused')
  })
  const engine = createEngine({ store, clock, onEvent: (event) => void events.push(event) })
  const app = await stage(fixture, { handle, options: { engine }, route })
  return { ...app, engine, broken, hanging, events, reached: reached.passed }
}

/** Asserts that `run` causes no unhandled rejection, which would end the process of a user. */
async function withoutUnhandledRejection(run: () => Promise<void>): Promise<void> {
  const accidents: unknown[] = []
  const onAccident = (error: unknown) => void accidents.push(error)
  process.on('unhandledRejection', onAccident)
  try {
    await run()
    assert.deepEqual(accidents, [])
  } finally {
    process.off('unhandledRejection', onAccident)
  }
}
