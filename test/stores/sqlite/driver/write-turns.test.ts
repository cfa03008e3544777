import { expect, it } from 'vitest'
import { WriteTurns } from '../../../../src/stores/sqlite/driver/write-turns.ts'
import {
  completeOf,
  hold,
  LEASE_MS,
  settle,
  viewOf,
} from '../../../../src/testing/store-cases/store-case.ts'
import { completion, openTransaction, setup } from '../setup.ts'

// A transaction is open, two more are queued; then a settlement and a renewal arrive.
it('runs a renewal and a settlement before transactions that were queued earlier', async () => {
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

it('gives a transaction its turn while more urgent calls keep arriving', async () => {
  const turns = new WriteTurns()
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

it('runs the next turn after a failed one, and is drained after the last', async () => {
  const turns = new WriteTurns()
  const failed = turns.take('claim', () => Promise.reject(new Error('busy')))
  const done = turns.take('claim', () => Promise.resolve('done'))
  let isDone = false
  void done.then(() => (isDone = true))
  expect(turns.waiting).toBe(2)
  await expect(failed).rejects.toThrow('busy')
  await turns.drain()
  expect([isDone, turns.waiting]).toEqual([true, 0])
})
