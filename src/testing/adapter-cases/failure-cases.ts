/** Failures of a handler: every framework must pass the error on to the guard unchanged. */
import assert from 'node:assert/strict'
import type { Failure } from '../../core/attempt/failure.ts'
import { NotExecutedError, OutcomeUnknownError } from '../../core/errors.ts'
import type { AdapterCase, CaseHandler } from './adapter-case.ts'
import { assertRan, assertReplay, assertUnknown, created, recordOf, stage } from './case-stage.ts'

export const failureCases: readonly AdapterCase[] = [
  runsAgain('throws at once', 'declared', () => {
    throw new Error('broken')
  }),
  runsAgain('throws after it has waited', 'declared', async (request) => {
    await request.json()
    await Promise.resolve()
    throw new Error('broken')
  }),
  runsAgain('throws a value that is not an Error', 'declared', () => {
    // eslint-disable-next-line typescript/only-throw-error
    throw 'broken'
  }),
  runsAgain('throws a NotExecutedError', 'proven', async (request) => {
    request.idempotency!.downstreamKey('charge')
    await Promise.resolve()
    throw new NotExecutedError('the card was refused before anything was sent')
  }),
  runsAgain('replies with 500 after it declared that it did nothing', 'proven', (request) => {
    request.idempotency!.notExecuted()
    return { status: 500, body: 'no' }
  }),
  runsAgain('replies with 500 after it reported a NotExecutedError', 'proven', (request) => {
    request.idempotency!.failed(new NotExecutedError())
    return { status: 500, body: 'no' }
  }),
  runsAgain('replies with 409 after it reported a NotExecutedError', 'proven', (request) => {
    request.idempotency!.failed(new NotExecutedError())
    return { status: 409, body: 'no' }
  }),
  staysUnknown('replies with 400 after it reported an OutcomeUnknownError', (request) => {
    request.idempotency!.failed(new OutcomeUnknownError())
    return { status: 400, body: 'no' }
  }),
  staysUnknown('throws an OutcomeUnknownError', async () => {
    await Promise.resolve()
    throw new OutcomeUnknownError('the provider did not answer')
  }),
  staysUnknown('throws the error of a lost network call', async () => {
    await Promise.resolve()
    throw Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' })
  }),
  staysUnknown('throws an error that was caused by a lost call', () => {
    const cause = Object.assign(new Error('other side closed'), { code: 'UND_ERR_SOCKET' })
    throw new TypeError('fetch failed', { cause })
  }),
  staysUnknown('throws after an outside effect has begun', (request) => {
    request.idempotency!.downstreamKey('charge')
    throw new Error('broken')
  }),
  staysUnknown('replies with 500 after an outside effect has begun', (request) => {
    request.idempotency!.downstreamKey('charge')
    return { status: 500, body: 'no' }
  }),
  staysUnknown('replies with 500 after it declared the outcome unknown', (request) => {
    request.idempotency!.outcomeUnknown()
    return { status: 500, body: 'no' }
  }),
  hidesSuccess('declared unknown', (request) => {
    request.idempotency!.outcomeUnknown()
    return created
  }),
  hidesSuccess('reported as an OutcomeUnknownError', (request) => {
    request.idempotency!.failed(new OutcomeUnknownError())
    return created
  }),
  {
    name: 'passes onError the same error object that the handler threw',
    async run(fixture) {
      class CardRefused extends Error {}
      const thrown = new CardRefused('refused')
      const failures: Failure[] = []
      const { send, runs } = await stage(fixture, {
        route: {
          onError: (failure) => {
            failures.push(failure)
            return 'unknown'
          },
        },
        handle: async () => {
          await Promise.resolve()
          throw thrown
        },
      })
      assert.ok((await send({ key: 'key-1' })).status >= 500)
      assertUnknown(await send({ key: 'key-1' }))
      assert.equal(runs(), 1)
      assert.equal(failures.length, 1)
      const { error, blind, effectBegun, attempt } = failures[0]!
      assert.equal(error, thrown)
      assert.deepEqual([blind, effectBegun, attempt], [false, false, 1])
    },
  },
  {
    name: 'gives a key that failed to one of the next concurrent requests',
    async run(fixture) {
      let calls = 0
      const { send, runs } = await stage(fixture, {
        options: { whileInProgress: { waitMs: 30_000 } },
        handle: () => {
          if (++calls === 1) throw new Error('broken')
          return created
        },
      })
      assert.ok((await send({ key: 'key-1' })).status >= 500)
      const replies = await Promise.all([1, 2, 3, 4, 5].map(() => send({ key: 'key-1' })))
      assert.deepEqual([...new Set(replies.map(({ status }) => status))], [201])
      assert.equal(runs(), 2)
    },
  },
]

/** The failed first attempt may run again. The record states whether that is proven. */
function runsAgain(what: string, proof: 'declared' | 'proven', fail: CaseHandler): AdapterCase {
  return {
    name: `runs a handler again when it ${what}`,
    async run(fixture) {
      const attempts: unknown[] = []
      const { send, runs } = await stage(fixture, {
        handle: (request) => {
          attempts.push(request.idempotency?.attempt)
          return attempts.length === 1 ? fail(request) : created
        },
      })
      const request = { key: 'key-1', json: { amount: 1 } }
      const first = await send(request)
      assert.ok(first.status >= 400, first.text)
      const record = await recordOf(fixture.store)
      assert.deepEqual([record.state, record.proof], ['failed_retryable', proof])
      const second = await send(request)
      assertRan(second, 201)
      assertReplay(await send(request), second)
      assert.equal(runs(), 2)
      assert.deepEqual(attempts, [1, 2])
    },
  }
}

/** The failed attempt may have had an effect, so it must not run again. */
function staysUnknown(what: string, handle: CaseHandler): AdapterCase {
  return {
    name: `does not run a handler again when it ${what}`,
    async run(fixture) {
      const { send, runs } = await stage(fixture, { handle })
      const first = await send({ key: 'key-1' })
      assert.ok(first.status >= 400, first.text)
      assertUnknown(await send({ key: 'key-1' }))
      assert.equal((await recordOf(fixture.store)).state, 'unknown')
      assert.equal(runs(), 1)
    },
  }
}

/** The client must not see a success of an unknown outcome: a later verdict may allow a rerun. */
function hidesSuccess(what: string, handle: CaseHandler): AdapterCase {
  return {
    name: `replies with no success that the handler ${what}`,
    async run(fixture) {
      const { send, runs } = await stage(fixture, { handle })
      assertUnknown(await send({ key: 'key-1' }))
      assertUnknown(await send({ key: 'key-1' }))
      assert.equal(runs(), 1)
    },
  }
}
