/** Handlers that complete their key in a transaction that they opened themselves. */
import assert from 'node:assert/strict'
import type { Completion, Lease, Store } from '../../core/store/store.ts'
import type { AdapterCase, CaseReply } from './adapter-case.ts'
import { assertRan, assertReplay, assertUnknown, recordOf, REPLAYED, stage } from './case-stage.ts'

/** The reply that the transaction commits. The guard sends it instead of the handler's reply. */
const COMMITTED = { status: 201, headers: { location: '/payments/1' }, body: { id: 'pay-1' } }

export const joinCases: readonly AdapterCase[] = [
  ...[
    { sent: 'another reply', end: () => ({ status: 200, body: 'something else' }) },
    { sent: 'a failure', end: () => ({ status: 500, body: 'too late' }) },
    { sent: 'a larger reply', end: () => ({ status: 201, body: 'x'.repeat(5_000) }) },
  ].map(({ sent, end }) =>
    joining(`sends what the handler's own transaction has committed, not ${sent}`, end),
  ),
  {
    name: 'runs nothing again when the handler throws after its own transaction has committed',
    async run(fixture) {
      const { store, commit } = joinable(fixture.store)
      const { send, runs } = await stage(
        { ...fixture, store },
        {
          async handle(request) {
            const tx = new OwnTransaction()
            await request.idempotency!.completeIn(tx, COMMITTED)
            await commit(tx)
            throw new Error('too late')
          },
        },
      )
      // A framework that turns errors into replies sends the committed reply instead. Otherwise the
      // retry gets it.
      const first = await send({ key: 'key-1' })
      assert.ok(first.status === 201 || first.status >= 500, first.text)
      const replay = await send({ key: 'key-1' })
      assert.equal(replay.headers[REPLAYED], 'true')
      assert.deepEqual([replay.status, JSON.parse(replay.text)], [201, COMMITTED.body])
      assert.equal(runs(), 1)
    },
  },
  {
    name: "replies with no success when the handler's own transaction has not committed",
    async run(fixture) {
      const { store } = joinable(fixture.store)
      const { send, runs } = await stage(
        { ...fixture, store },
        {
          async handle(request) {
            await request.idempotency!.completeIn(new OwnTransaction(), COMMITTED)
            return { status: 201, body: 'never committed' }
          },
        },
      )
      // A handler that skips its commit is treated like a handler that throws.
      assert.ok((await send({ key: 'key-1' })).status >= 500)
      assert.equal((await recordOf(fixture.store)).state, 'unknown')
      assertUnknown(await send({ key: 'key-1' }))
      assert.equal(runs(), 1)
    },
  },
]

function joining(name: string, end: () => CaseReply): AdapterCase {
  return {
    name,
    async run(fixture) {
      const { store, commit } = joinable(fixture.store)
      const { send, runs } = await stage(
        { ...fixture, store },
        {
          async handle(request) {
            const tx = new OwnTransaction()
            await request.idempotency!.completeIn(tx, COMMITTED)
            await commit(tx)
            return end()
          },
        },
      )
      const first = await send({ key: 'key-1' })
      assertRan(first, 201)
      assert.deepEqual(JSON.parse(first.text), COMMITTED.body)
      assert.equal(first.headers['location'], COMMITTED.headers.location)
      assert.equal((await recordOf(fixture.store)).state, 'completed')
      assertReplay(await send({ key: 'key-1' }), first)
      assert.equal(runs(), 1)
    },
  }
}

/** A transaction of the application. It stages a completion until the commit. */
class OwnTransaction {
  staged: (Completion & { readonly lease: Lease }) | undefined
}

/** Wraps a store with `join`: a staged completion takes effect with the commit. */
function joinable(store: Store) {
  const settleIn: NonNullable<Store['settleIn']> = async (tx, lease, completion) => {
    assert.ok(tx instanceof OwnTransaction)
    tx.staged = { lease, ...completion }
    return { kind: 'settled', expiresAt: new Date(0) }
  }
  const commit = async ({ staged }: OwnTransaction): Promise<void> => {
    assert.ok(staged !== undefined)
    const [outcome] = await store.settle([{ kind: 'complete', ...staged }])
    assert.equal(outcome?.kind, 'settled')
  }
  const joined = new Proxy(store, {
    get(target, name) {
      if (name === 'settleIn') return settleIn
      const value: unknown = Reflect.get(target, name)
      return typeof value === 'function' ? (value.bind(target) as unknown) : value
    },
  })
  return { store: joined, commit }
}
