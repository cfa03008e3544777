import assert from 'node:assert/strict'
import { newToken } from '../../core/record/identity.ts'
import type { Completion, Lease, SettleOutcome, Store } from '../../core/store/store.ts'
import {
  assertBytes,
  bytes,
  claim,
  claimRequest,
  finish,
  hold,
  ofKind,
  releaseOf,
  RETENTION_MS,
  settle,
  viewOf,
  type StoreCase,
  type StoreFixture,
} from './store-case.ts'

function transact(
  store: Store,
  lease: Lease,
  work: (tx: unknown) => Completion | Promise<Completion>,
): Promise<SettleOutcome> {
  assert.ok(store.transaction !== undefined, `${store.name} store has no transaction() method`)
  return store.transaction(lease, work)
}

function completion(text = 'done'): Completion {
  return { result: bytes(text), retentionMs: RETENTION_MS }
}

function transactionCase(name: string, run: (fixture: StoreFixture) => Promise<void>): StoreCase {
  return { name, needs: 'transaction', run }
}

/** A promise, and the function that resolves it. */
function gate(): { readonly opened: Promise<void>; readonly open: () => void } {
  let open = () => {}
  const opened = new Promise<void>((resolve) => {
    open = resolve
  })
  return { opened, open: () => open() }
}

export const transactionCases: readonly StoreCase[] = [
  transactionCase('records the result that a transaction returns', async ({ store, clock }) => {
    const lease = await hold(store)
    clock.advance(1000)
    const outcome = await transact(store, lease, (tx) => {
      assert.ok(tx !== undefined)
      return completion('committed')
    })
    const expiresAt = new Date(clock.nowMs() + RETENTION_MS)
    assert.deepEqual(outcome, { kind: 'settled', expiresAt })
    assertBytes(ofKind(await claim(store), 'completed').result, bytes('committed'))
  }),
  transactionCase('waits for a transaction whose work is asynchronous', async ({ store }) => {
    const lease = await hold(store)
    const { opened, open } = gate()
    const outcome = transact(store, lease, async () => {
      await opened
      return completion('awaited')
    })
    open()
    ofKind(await outcome, 'settled')
    assertBytes(ofKind(await claim(store), 'completed').result, bytes('awaited'))
  }),
  transactionCase('passes the error of the work on, and keeps the key held', async ({ store }) => {
    const lease = await hold(store)
    const before = await viewOf(store, lease)
    const error = new Error('card declined')
    const failing = [
      () => {
        throw error
      },
      () => Promise.reject(error),
    ]
    for (const work of failing) {
      await assert.rejects(transact(store, lease, work), (thrown) => thrown === error)
      assert.deepEqual(await viewOf(store, lease), before)
    }
    ofKind(await settle(store, releaseOf(lease)), 'settled')
  }),
  transactionCase(
    'commits a transaction after an earlier one of the same lease failed',
    async ({ store }) => {
      const lease = await hold(store)
      const failing = transact(store, lease, () => {
        throw new Error('first try')
      })
      await assert.rejects(failing, /first try/)
      ofKind(await transact(store, lease, () => completion('second try')), 'settled')
    },
  ),
  transactionCase('refuses a transaction without a valid lease', async ({ store }) => {
    const lease = await hold(store)
    const fenced = { kind: 'fenced', own: false, state: 'in_progress' }
    for (const other of [
      { ...lease, token: newToken() },
      { ...lease, attempt: 2 },
    ]) {
      assert.deepEqual(await transact(store, other, () => completion()), fenced)
    }
    const { identity } = claimRequest({ key: 'never claimed' })
    const absent = await transact(store, { ...lease, identity }, () => completion())
    assert.deepEqual(absent, { kind: 'fenced', own: false, state: 'absent' })
    assert.equal((await viewOf(store, lease)).state, 'in_progress')
  }),
  transactionCase(
    'does not run the work again when a transaction that committed is repeated',
    async ({ store }) => {
      const lease = await hold(store)
      let runs = 0
      const work = () => completion(`run ${++runs}`)
      const first = await transact(store, lease, work)
      assert.deepEqual(await transact(store, lease, work), first)
      assert.equal(runs, 1)
      assertBytes(ofKind(await claim(store), 'completed').result, bytes('run 1'))
    },
  ),
  transactionCase(
    'answers a replay and a duplicate of the same key while a transaction is open',
    async ({ store }) => {
      await finish(store, { key: 'done' }, bytes('replayed'))
      const lease = await hold(store)
      const [entered, finished] = [gate(), gate()]
      const outcome = transact(store, lease, async () => {
        entered.open()
        await finished.opened
        return completion()
      })
      // `finished` opens after these claims: a claim that waits for the transaction would hang.
      await entered.opened
      ofKind(await claim(store), 'in_progress')
      ofKind(await claim(store, { fingerprint: 'other' }), 'mismatch')
      assertBytes(
        ofKind(await claim(store, { key: 'done' }), 'completed').result,
        bytes('replayed'),
      )
      assert.equal((await viewOf(store, lease)).state, 'in_progress')
      finished.open()
      ofKind(await outcome, 'settled')
    },
  ),
  transactionCase('commits the transactions of several keys at once', async ({ store }) => {
    const keys = Array.from({ length: 10 }, (_, n) => `key-${n}`)
    const outcomes = await Promise.all(
      keys.map(async (key) =>
        transact(store, await hold(store, { key }), async () => {
          await Promise.resolve()
          return completion(key)
        }),
      ),
    )
    for (const outcome of outcomes) ofKind(outcome, 'settled')
    for (const key of keys) {
      assertBytes(ofKind(await claim(store, { key }), 'completed').result, bytes(key))
    }
  }),
]
