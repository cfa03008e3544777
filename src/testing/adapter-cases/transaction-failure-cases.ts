/** Transactions whose begin or commit fails: the guard answers, in every framework. */
import assert from 'node:assert/strict'
import { createEngine } from '../../core/engine/engine.ts'
import { StoreFailedError } from '../../core/errors.ts'
import type { Store } from '../../core/store/store.ts'
import type { AdapterCase, AdapterFixture, CaseHandler, CaseOptions } from './adapter-case.ts'
import {
  assertProblem,
  assertRan,
  assertReplay,
  assertUnknown,
  gate,
  recordOf,
  stage,
  watched,
} from './case-stage.ts'

/**
 * How a transaction fails. `begin`: its work does not start. `commit`: everything is rolled back.
 * `answer`: the transaction has committed, and the answer to the commit is lost.
 */
type TransactionFailure = 'begin' | 'commit' | 'answer'

export const transactionFailureCases: readonly AdapterCase[] = [
  unavailable('cannot begin', 'begin'),
  unavailable('cannot commit', 'commit'),
  unavailable("cannot begin and onError is 'store'", 'begin', { onError: 'store' }),
  {
    name: 'sends the reply of a committed transaction when the answer to the commit is lost',
    async run(fixture) {
      const { pay, runs, troubles } = await troubled(fixture)
      troubles.push('answer')
      const first = await pay()
      assertRan(first, 201)
      assertReplay(await pay(), first)
      assert.equal(runs(), 1)
    },
  },
  {
    name: 'answers OUTCOME_NOT_RECORDED while the store cannot confirm a commit',
    async run(fixture) {
      const { pay, runs, troubles, settling, clock } = await troubled(fixture)
      troubles.push('answer')
      settling.isBroken = true
      const first = pay()
      await settling.reached
      // The first timeout ends the check of the commit, the second the attempt to record the doubt.
      await clock.advanceAsync(5_000)
      await clock.advanceAsync(5_000)
      assertProblem(await first, 503, 'idempotency_outcome_not_recorded')
      settling.isBroken = false
      await clock.advanceAsync(10_000)
      const replay = await pay()
      assertReplay(replay, { ...replay, status: 201, body: Buffer.from('paid') })
      assert.equal(runs(), 1)
    },
  },
  {
    name: 'answers that the outcome is unknown when the record cannot be settled otherwise',
    async run(fixture) {
      const { pay, runs, troubles, settling, clock } = await troubled(fixture)
      troubles.push('commit')
      settling.isBroken = true
      const first = pay()
      await settling.reached
      await clock.advanceAsync(5_000)
      settling.isBroken = false
      await clock.advanceAsync(4_000)
      assertUnknown(await first)
      assertUnknown(await pay())
      assert.equal(runs(), 1)
    },
  },
  {
    name: 'answers that the outcome is unknown when an effect has begun before a transaction fails',
    async run(fixture) {
      const { pay, runs, troubles } = await troubled(fixture, (request) => {
        request.idempotency!.downstreamKey('charge')
        return paying(request)
      })
      troubles.push('begin')
      assertUnknown(await pay())
      assertUnknown(await pay())
      assert.equal(runs(), 1)
    },
  },
  ...[409, 503].map((status): AdapterCase => ({
    name: `sends the ${status} of a handler that caught the failure of its transaction`,
    async run(fixture) {
      const { pay, troubles } = await troubled(fixture, async (request) => {
        try {
          return await paying(request)
        } catch {
          const headers = { 'content-type': 'text/plain' }
          return { status, headers, body: 'not now' }
        }
      })
      troubles.push('begin')
      const first = await pay()
      assertRan(first, status)
      assert.equal(first.text, 'not now')
      // A 409 is recorded, a 503 is not.
      const second = await pay()
      if (status === 409) assertReplay(second, first)
      else assertRan(second, 201)
    },
  })),
]

/** Everything was rolled back, and the problem states that the request was not executed. */
function unavailable(
  what: string,
  trouble: TransactionFailure,
  route: Partial<CaseOptions> = {},
): AdapterCase {
  return {
    name: `answers that nothing was executed when a transaction ${what}`,
    async run(fixture) {
      const { pay, runs, troubles } = await troubled(fixture, paying, route)
      troubles.push(trouble)
      assertProblem(await pay(), 503, 'idempotency_store_unavailable')
      const { state, proof } = await recordOf(fixture.store)
      assert.deepEqual([state, proof], ['failed_retryable', 'proven'])
      const second = await pay()
      assertRan(second, 201)
      assertReplay(await pay(), second)
      assert.equal(runs(), 2)
    },
  }
}

const paying: CaseHandler = async (request) => {
  await request.idempotency!.transaction(() => ({ status: 201, body: 'paid' }))
  return { status: 500, body: 'too late' }
}

async function troubled(
  fixture: AdapterFixture,
  handle: CaseHandler = paying,
  route: Partial<CaseOptions> = {},
) {
  const { clock } = fixture
  const troubles: TransactionFailure[] = []
  const reached = gate()
  const settling = { isBroken: false, reached: reached.passed }
  const store = watched(failing(fixture.store, troubles), (call) => {
    if (call !== 'settle' || !settling.isBroken) return
    reached.open()
    throw new Error('connection refused')
  })
  const engine = createEngine({ store, clock, onEvent: () => undefined })
  const { send, runs } = await stage(fixture, { handle, options: { engine }, route })
  return { pay: () => send({ key: 'key-1', json: { amount: 1 } }), runs, troubles, settling, clock }
}

type Begin = NonNullable<Store['transaction']>

/** Wraps a store: each transaction fails in the next way of `troubles`, if any is left. */
function failing(store: Store, troubles: TransactionFailure[]): Store {
  const begin = store.transaction!.bind(store)
  const transaction: Begin = async (lease, work, signal) => {
    const trouble = troubles.shift()
    const cause = new Error('connection lost')
    const failed = (operation: string) =>
      new StoreFailedError({ store: store.name, operation, cause })
    if (trouble === undefined) return begin(lease, work, signal)
    if (trouble === 'begin') throw failed('begin a transaction')
    const undone = (): never => {
      throw failed('commit')
    }
    const entered: typeof work = (tx) => {
      const completion = work(tx)
      if (trouble === 'answer') return completion
      return completion instanceof Promise ? completion.then(undone) : undone()
    }
    await begin(lease, entered, signal)
    return undone()
  }
  return new Proxy(store, {
    get(target, name) {
      if (name === 'transaction') return transaction
      const value: unknown = Reflect.get(target, name)
      return typeof value === 'function' ? (value.bind(target) as unknown) : value
    },
  })
}
