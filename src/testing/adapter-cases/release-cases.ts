/** Replies that release the key and are not recorded. */
import assert from 'node:assert/strict'
import type { HttpReply } from '../../http/guard/exchange.ts'
import type { AdapterCase, CaseReply } from './adapter-case.ts'
import {
  assertRan,
  assertReplay,
  assertUnknown,
  created,
  EXPIRES,
  jsonReply,
  recordOf,
  stage,
} from './case-stage.ts'

const REFUSAL = jsonReply({ error: 'no such customer' }, 404)

export const releaseCases: readonly AdapterCase[] = [
  {
    name: 'runs a request again after a reply that releaseOn releases',
    async run(fixture) {
      const { send, runs } = await stage(fixture, {
        route: { releaseOn: ({ status }) => status === 404 },
        handle: inTurn(REFUSAL, REFUSAL, jsonReply({ error: 'invalid' }, 422)),
      })
      for (let count = 1; count <= 2; count++) {
        const refused = await send({ key: 'key-1' })
        assertRan(refused, 404)
        assert.equal(refused.text, REFUSAL.body)
        assert.equal(refused.headers[EXPIRES], undefined)
        assert.equal((await recordOf(fixture.store)).state, 'failed_retryable')
      }
      const recorded = await send({ key: 'key-1' })
      assertRan(recorded, 422)
      assertReplay(await send({ key: 'key-1' }), recorded)
      assert.equal(runs(), 3)
    },
  },
  {
    name: 'passes releaseOn the status, the headers and the body of a reply',
    async run(fixture) {
      const seen: HttpReply[] = []
      const { send } = await stage(fixture, {
        route: {
          releaseOn: (reply) => {
            seen.push(reply)
            return true
          },
        },
        handle: () => REFUSAL,
      })
      assertRan(await send({ key: 'key-1' }), 404)
      const [{ status, headers, body } = { status: 0, headers: [], body: new Uint8Array() }] = seen
      assert.equal(status, 404)
      assert.equal(Buffer.from(body).toString(), REFUSAL.body)
      const type = headers.find(([name]) => name.toLowerCase() === 'content-type')
      assert.match(type?.[1] ?? '', /^application\/json/)
    },
  },
  ...[200, 201, 303].map((status): AdapterCase => ({
    name: `records a ${status} without calling releaseOn`,
    async run(fixture) {
      let asked = 0
      const { send, runs } = await stage(fixture, {
        route: { releaseOn: () => ++asked > 0 },
        handle: () => ({ ...created, status }),
      })
      const first = await send({ key: 'key-1' })
      assertRan(first, status)
      assertReplay(await send({ key: 'key-1' }), first)
      assert.deepEqual([runs(), asked], [1, 0])
    },
  })),
  {
    name: 'keeps an outcome unknown after an effect has begun, even when releaseOn returns true',
    async run(fixture) {
      const { send, runs } = await stage(fixture, {
        route: { releaseOn: () => true },
        handle: (request) => {
          request.idempotency!.downstreamKey('charge')
          return REFUSAL
        },
      })
      assertRan(await send({ key: 'key-1' }), 404)
      assertUnknown(await send({ key: 'key-1' }))
      assert.equal(runs(), 1)
    },
  },
  {
    name: 'rolls back a transaction when releaseOn releases its reply',
    async run(fixture) {
      const replies = [404, 201]
      const { send, runs } = await stage(fixture, {
        route: { releaseOn: () => true },
        handle: async (request) => {
          await request.idempotency!.transaction(() => ({ status: replies.shift()!, body: 'x' }))
          return { status: 500, body: 'too late' }
        },
      })
      assertRan(await send({ key: 'key-1' }), 404)
      assert.equal((await recordOf(fixture.store)).state, 'failed_retryable')
      const second = await send({ key: 'key-1' })
      assertRan(second, 201)
      assertReplay(await send({ key: 'key-1' }), second)
      assert.equal(runs(), 2)
    },
  },
  {
    name: 'runs a retry after the framework rejected the request before its handler was called',
    needs: 'validation',
    async run(fixture) {
      let isValid = false
      const { send, runs } = await stage(fixture, {
        routes: [{ path: '/payments', isValid: () => isValid, handle: () => created }],
      })
      for (let count = 0; count < 2; count++) {
        const refused = await send({ key: 'key-1' })
        assertRan(refused, 400)
        assert.equal(refused.headers[EXPIRES], undefined)
      }
      assert.equal(runs(), 0)
      isValid = true
      const first = await send({ key: 'key-1' })
      assertRan(first, 201)
      assertReplay(await send({ key: 'key-1' }), first)
      assert.equal(runs(), 1)
    },
  },
  {
    name: 'records the 400 of a handler that was called',
    needs: 'validation',
    async run(fixture) {
      const { send, runs } = await stage(fixture, {
        routes: [{ path: '/payments', isValid: () => true, handle: inTurn(jsonReply({}, 400)) }],
      })
      const first = await send({ key: 'key-1' })
      assertRan(first, 400)
      assertReplay(await send({ key: 'key-1' }), first)
      assert.equal(runs(), 1)
    },
  },
]

/** A handler that returns these replies in order, and then `created`. */
function inTurn(...replies: CaseReply[]): () => CaseReply {
  return () => replies.shift() ?? created
}
