/** The context of a handler: what it knows about its key, and what it can do with it. */
import assert from 'node:assert/strict'
import { createEngine } from '../../core/engine/engine.ts'
import { currentIdempotency } from '../../http/guard/current.ts'
import type { AdapterCase, CaseHandler } from './adapter-case.ts'
import {
  assertRan,
  assertReplay,
  assertUnknown,
  created,
  EXPIRES,
  gate,
  jsonReply,
  recordOf,
  stage,
} from './case-stage.ts'

const HOUR_MS = 3_600_000

const knowing: CaseHandler = ({ idempotency }) => {
  const { key, scope, recordId, attempt } = idempotency!
  return jsonReply({ key, scope, recordId, attempt })
}

export const contextCases: readonly AdapterCase[] = [
  {
    name: 'gives the handler its key, scope, record id and attempt',
    async run(fixture) {
      const { send } = await stage(fixture, { handle: knowing })
      const reply = await send({ key: '"key-1"', tenant: 'ann' })
      assertRan(reply, 200)
      const { recordId } = await recordOf(fixture.store)
      const scope = { tenant: 'ann', operation: 'POST /payments' }
      assert.deepEqual(JSON.parse(reply.text), { key: 'key-1', scope, recordId, attempt: 1 })
    },
  },
  {
    name: 'names the operation by the template of its route',
    needs: 'templates',
    async run(fixture) {
      const routes = [{ path: '/users/:id/payments', handle: knowing }]
      const { send } = await stage(fixture, { routes })
      const reply = await send({ path: '/users/7/payments', key: 'key-1' })
      const { scope } = JSON.parse(reply.text) as { scope: { operation: string } }
      assert.equal(scope.operation, 'POST /users/:/payments')
    },
  },
  {
    name: 'gives every attempt of a key the same ids and downstream keys, unlike another key',
    async run(fixture) {
      const seen: string[][] = []
      const { send } = await stage(fixture, {
        options: { onError: 'retry' },
        handle: ({ idempotency }) => {
          const { downstreamKey, deterministicId, recordId } = boundTo(idempotency!)
          seen.push([recordId, downstreamKey('charge'), downstreamKey(), deterministicId('order')])
          return seen.length === 1 ? { status: 500, body: 'again' } : created
        },
      })
      assertRan(await send({ key: 'key-1' }), 500)
      assertRan(await send({ key: 'key-1' }), 201)
      assertRan(await send({ key: 'key-2' }), 201)
      const [first, second, other] = seen
      assert.deepEqual(second, first)
      for (const [index, value] of other!.entries()) assert.notEqual(value, first![index])
      assert.notEqual(first![1], first![2])
      assert.match(first![3]!, /^[\da-f]{8}-[\da-f]{4}-[\da-f]{4}-[\da-f]{4}-[\da-f]{12}$/)
    },
  },
  {
    name: 'confirms to the handler that it holds its key',
    async run(fixture) {
      const { send } = await stage(fixture, {
        handle: ({ idempotency }) => {
          idempotency!.assertHeld()
          return jsonReply({ aborted: idempotency!.signal.aborted })
        },
      })
      assert.deepEqual(JSON.parse((await send({ key: 'key-1' })).text), { aborted: false })
    },
  },
  {
    name: 'stops a handler after its maximum run time, with an unknown outcome',
    async run(fixture) {
      const { store, clock } = fixture
      const entered = gate()
      const stopped = gate<unknown>()
      const { send, runs } = await stage(fixture, {
        options: { engine: createEngine({ store, clock, runTimeoutMs: 1_000 }) },
        handle: async ({ idempotency }) => {
          const { signal } = idempotency!
          const aborted = new Promise((resolve) => {
            signal.addEventListener('abort', resolve)
          })
          entered.open()
          await aborted
          stopped.open(codeOf(() => idempotency!.assertHeld()))
          return created
        },
      })
      const first = send({ key: 'key-1' })
      await entered.passed
      await clock.advanceAsync(1_000)
      assert.equal(await stopped.passed, 'LEASE_LOST')
      assertUnknown(await first)
      assert.equal(runs(), 1)
    },
  },
  {
    name: 'keeps a reply for longer when its handler extends the retention',
    async run(fixture) {
      const { send, runs } = await stage(fixture, {
        options: { retentionMs: HOUR_MS },
        handle: ({ idempotency }) => {
          idempotency!.extendRetention(3 * HOUR_MS)
          return created
        },
      })
      const expires = new Date(fixture.clock.nowMs() + 3 * HOUR_MS).toUTCString()
      const first = await send({ key: 'key-1' })
      assert.equal(first.headers[EXPIRES], expires)
      fixture.clock.advance(2 * HOUR_MS)
      const replay = await send({ key: 'key-1' })
      assertReplay(replay, first)
      assert.equal(replay.headers[EXPIRES], expires)
      assert.equal(runs(), 1)
    },
  },
  {
    name: 'finds the context from functions that the handler calls',
    async run(fixture) {
      const deep = async (): Promise<string> => {
        await Promise.resolve()
        return currentIdempotency().key
      }
      const { send } = await stage(fixture, {
        handle: async (request) => {
          await request.json()
          return jsonReply(await Promise.all([deep(), deep()]))
        },
      })
      const keys = ['key-1', 'key-2', 'key-3']
      const replies = await Promise.all(keys.map((key) => send({ key, json: {} })))
      assert.deepEqual(
        replies.map(({ text }) => JSON.parse(text) as unknown),
        keys.map((key) => [key, key]),
      )
    },
  },
  {
    name: 'finds no context when the route is not protected',
    async run(fixture) {
      const { send } = await stage(fixture, {
        routes: [
          {
            path: '/payments',
            options: false,
            handle: () => jsonReply(codeOf(() => currentIdempotency())),
          },
        ],
      })
      assert.equal((await send({ key: 'key-1' })).text, '"INVALID_REQUEST"')
    },
  },
]

/** Copies the context with bound methods, so that they can be called alone. */
function boundTo(context: NonNullable<Parameters<CaseHandler>[0]['idempotency']>) {
  return {
    recordId: context.recordId,
    downstreamKey: (name?: string) => context.downstreamKey(name),
    deterministicId: (name: string) => context.deterministicId(name),
  }
}

/** Returns the code of the error that `run` throws. */
function codeOf(run: () => unknown): unknown {
  try {
    run()
    return 'nothing was thrown'
  } catch (error) {
    return (error as { readonly code?: unknown }).code
  }
}
