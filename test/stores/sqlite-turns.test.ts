import { expect, it } from 'vitest'
import type { Store } from '../../src/core/store.ts'
import { Turns } from '../../src/stores/sqlite/turns.ts'
import {
  claim,
  claimRequests,
  completeOf,
  hold,
  LEASE_MS,
  ofKind,
  RETENTION_MS,
  settle,
  viewOf,
} from '../../src/testing/store-cases/store-case.ts'
import { completion, openTransaction, setup } from './sqlite-setup.ts'

// A transaction is open, two more are queued; then a settlement and a renewal arrive.
it('renews and settles before the transactions that were queued earlier', async () => {
  const { store, clock } = setup()
  const keys = ['a', 'b', 'c', 'renewed', 'settled']
  const leases = await Promise.all(keys.map((key) => hold(store, { key })))
  const [first, second, third, renewed, settled] = leases
  const committed = async () => [
    (await viewOf(store, renewed!)).leaseUntil.getTime() - clock.nowMs(),
    (await viewOf(store, settled!)).state,
  ]
  const { outcome, finish } = await openTransaction(store, first!)
  const seen: unknown[] = []
  const queued = [second!, third!].map((lease) =>
    store.transaction(lease, async () => {
      seen.push(await committed())
      return completion()
    }),
  )
  const settling = settle(store, completeOf(settled!))
  const renewing = store.renew([{ ...renewed!, leaseMs: 2 * LEASE_MS }])
  expect(await committed()).toEqual([LEASE_MS, 'in_progress'])
  finish()
  await Promise.all([outcome, ...queued, settling, renewing])
  const done = [2 * LEASE_MS, 'completed']
  expect(seen).toEqual([done, done])
})

it('lets a transaction in although more urgent calls keep coming', async () => {
  const turns = new Turns()
  const order: string[] = []
  const renewals = Promise.withResolvers<void>()
  const renew = async (): Promise<void> => {
    order.push('renew')
    if (order.length < 20) void turns.take('renew', renew)
    else renewals.resolve()
  }
  await Promise.all([
    turns.take('renew', renew),
    turns.take('claim', async () => order.push('claim')),
    turns.take('begin a transaction', async () => order.push('transaction')),
    renewals.promise,
  ])
  expect(order.slice(0, 4)).toEqual(['renew', 'claim', 'transaction', 'renew'])
})

it('goes on after a turn that failed, and is drained after the last', async () => {
  const turns = new Turns()
  const failed = turns.take('claim', () => Promise.reject(new Error('busy')))
  const done = turns.take('claim', () => Promise.resolve('done'))
  let isDone = false
  void done.then(() => (isDone = true))
  expect(turns.waiting).toBe(2)
  await expect(failed).rejects.toThrow('busy')
  await turns.drain()
  expect([isDone, turns.waiting]).toEqual([true, 0])
})

/** How many claims, one after another, each in a turn of the event loop, `call` lets pass. */
async function claimsDuring(store: Store, call: () => Promise<unknown>): Promise<number> {
  const over = new AbortController()
  const called = call().finally(() => over.abort())
  let count = 0
  for (; !over.signal.aborted; count++) {
    ofKind(await claim(store, { key: `between-${count}` }), 'claimed')
    await new Promise((resolve) => {
      setImmediate(resolve)
    })
  }
  await called
  return count
}

it('sweeps many records in pieces, and lets others in between', async () => {
  const { store, clock } = setup()
  await store.claim(claimRequests(450))
  clock.advance(LEASE_MS)
  const claims = await claimsDuring(store, async () => {
    expect((await store.sweep({ limit: 425 })).length).toBe(425)
  })
  expect(claims).toBeGreaterThanOrEqual(4)
  expect((await store.sweep({ limit: 425 })).length).toBe(25)
})

it('reaps many records in pieces, and lets others in between', async () => {
  const { store, clock } = setup()
  await completeAll(store, 450, new Uint8Array(1))
  clock.advance(RETENTION_MS)
  const claims = await claimsDuring(store, async () => {
    expect(await store.reap({ limit: 425 })).toEqual({ removed: 425, expired: 0, abandoned: 0 })
  })
  expect(claims).toBeGreaterThanOrEqual(4)
  expect(await store.reap({ limit: 425 })).toEqual({ removed: 25, expired: 0, abandoned: 0 })
})

it('reaps few records at a time where their results are large', async () => {
  const { store, clock } = setup({ synchronous: 'normal' })
  await completeAll(store, 20, new Uint8Array(1024 * 1024))
  clock.advance(RETENTION_MS)
  const claims = await claimsDuring(store, async () => {
    expect(await store.reap({ limit: 1000 })).toEqual({ removed: 20, expired: 0, abandoned: 0 })
  })
  expect(claims).toBeGreaterThanOrEqual(5)
})

it('reaps a record whose result alone is more than a piece', async () => {
  const { store, clock } = setup({ synchronous: 'normal' })
  await completeAll(store, 2, new Uint8Array(5 * 1024 * 1024))
  clock.advance(RETENTION_MS)
  expect(await store.reap({ limit: 1000 })).toEqual({ removed: 2, expired: 0, abandoned: 0 })
})

// The store is closed while a sweep is between two of its pieces.
it('tells what it has swept when it cannot go on', async () => {
  const { store, open, clock } = setup()
  await store.claim(claimRequests(250))
  clock.advance(LEASE_MS)
  const sweeping = store.sweep({ limit: 250 })
  ofKind(await claim(store, { key: 'between' }), 'claimed')
  await store.close()
  const swept = await sweeping
  expect(swept.length).toBeGreaterThan(0)
  const rest = await open().sweep({ limit: 250 })
  expect(swept.length + rest.length).toBe(250)
})

async function completeAll(store: Store, count: number, result: Uint8Array): Promise<void> {
  const outcomes = await store.claim(claimRequests(count))
  const leases = outcomes.map((outcome) => ofKind(outcome, 'claimed').lease)
  await store.settle(leases.map((lease) => completeOf(lease, result)))
}
