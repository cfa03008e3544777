/** The calls of a claim with the mode `find`, and how it judges leases. */
import { expect, it } from 'vitest'
import type { ClaimOutcome, ClaimRequest, Store } from '../../../src/core/store/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import {
  assertBytes,
  claim,
  claimRequests,
  completeOf,
  finish,
  hold,
  LEASE_MS,
  ofKind,
  releaseOf,
  RETENTION_MS,
  settle,
} from '../../../src/testing/store-cases/store-case.ts'
import { around, counting, useDynamodb } from './setup.ts'

// Like DynamoDB, the server returns the item that a refused write found.
const setup = useDynamodb({ returnsItems: true })

const find = (store: Store, overrides: Partial<ClaimRequest> = {}): Promise<ClaimOutcome> =>
  claim(store, { mode: 'find', ...overrides })

it('finds a key in any state with one consistent read, and writes nothing', async () => {
  const { open, client, items } = await setup()
  const clock = new FakeClock()
  const store = open({ clock })
  await finish(store, { key: 'expired' })
  clock.advance(RETENTION_MS)
  await finish(store, { key: 'done' })
  await hold(store, { key: 'held' })
  await settle(store, releaseOf(await hold(store, { key: 'released' })))
  const before = await items()
  const reads: unknown[] = []
  const { counted, calls } = counting(
    around(client, ({ input, go }) => {
      reads.push(input['ConsistentRead'])
      return go()
    }),
  )
  // In a process that knows the keys, and in one that does not, twice.
  const other = open({ clock, client: counted })
  for (const node of [open({ clock, client: counted }), other, other]) {
    const kinds: string[] = []
    for (const key of ['free', 'done', 'held', 'released', 'expired']) {
      kinds.push((await find(node, { key })).kind)
    }
    expect(kinds).toEqual(['free', 'completed', 'in_progress', 'free', 'free'])
  }
  expect(calls).toEqual(Array.from({ length: 15 }, () => 'getItem'))
  expect(new Set(reads)).toEqual(new Set([true]))
  expect(await items()).toEqual(before)
})

it('finds a key with one read in the process that holds it, and settles it as before', async () => {
  const { open, client } = await setup()
  const { counted, calls } = counting(client)
  const store = open({ client: counted, clock: new FakeClock() })
  const lease = await hold(store)
  calls.length = 0
  ofKind(await find(store), 'in_progress')
  expect(calls.splice(0)).toEqual(['getItem'])
  ofKind(await settle(store, completeOf(lease)), 'settled')
  expect(calls).toEqual(['putItem'])
})

it('finds a large result with its parts', async () => {
  const { open } = await setup()
  const clock = new FakeClock()
  const large = new Uint8Array(500 * 1024).fill(7)
  await finish(open({ clock }), {}, large)
  assertBytes(ofKind(await find(open({ clock })), 'completed').result, large)
})

it('claims a key that was found free in one call, as without the look-up', async () => {
  const { open, client } = await setup()
  const { counted, calls } = counting(client)
  const store = open({ client: counted, clock: new FakeClock() })
  const requests = claimRequests(2).map((request, n) =>
    n === 0 ? request : { ...request, mode: 'find' as const },
  )
  const [held, free] = await store.claim(requests)
  expect([held?.kind, free?.kind]).toEqual(['claimed', 'free'])
  expect(calls.splice(0).toSorted()).toEqual(['getItem', 'putItem'])
  ofKind(await claim(store, { key: 'key-1' }), 'claimed')
  expect(calls).toEqual(['putItem'])
})

// Each store represents another machine, and counts leases by its own clock.
it('counts a lease from its first look-up, and finds the lapse without making it', async () => {
  const { open } = await setup()
  const [holder, other] = [new FakeClock(), new FakeClock()]
  const lease = await hold(open({ clock: holder }))
  const machine = open({ clock: other })
  holder.advance(5 * LEASE_MS)
  expect(ofKind(await find(machine), 'in_progress').leaseLeftMs).toBe(LEASE_MS)
  other.advance(LEASE_MS)
  expect(ofKind(await find(machine), 'unknown').lapsed).toBe(false)
  // The record is still that of the holder.
  ofKind(await settle(open({ clock: holder }), completeOf(lease)), 'settled')
})

it('says that a failed look-up has written nothing', async () => {
  const { open, client } = await setup()
  const broken = around(client, () => Promise.reject(new Error('the answer is lost')))
  const store = open({ client: broken, clock: new FakeClock() })
  const failure = { code: 'STORE_FAILED', failure: 'unavailable', wroteNothing: true }
  await expect(find(store)).rejects.toMatchObject(failure)
})
