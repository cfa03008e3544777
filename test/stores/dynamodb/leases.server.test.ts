// DynamoDB has no clock in its conditions. Each store here represents another machine: it has a
// separate clock, and shares only the table.
import { expect, it } from 'vitest'
import type { Lease, Store } from '../../../src/core/store/store.ts'
import { RecordMoves } from '../../../src/stores/dynamodb/moves.ts'
import { Calls } from '../../../src/stores/dynamodb/calls.ts'
import { timeOf } from '../../../src/stores/dynamodb/driver/service-time.ts'
import { Sightings } from '../../../src/stores/dynamodb/sightings.ts'
import { StateIndex } from '../../../src/stores/dynamodb/shards/state-index.ts'
import { Upkeep } from '../../../src/stores/dynamodb/upkeep.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import {
  claim,
  claimRequests,
  completeOf,
  hold,
  LEASE_MS,
  ofKind,
  only,
  settle,
  tally,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { around, useDynamodb } from './setup.ts'

const setup = useDynamodb()

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS
const POLICY = { onLapse: 'rerun', retentionMs: DAY_MS } as const

const renew = async (store: Store, lease: Lease) =>
  only(await store.renew([{ ...lease, leaseMs: LEASE_MS }]))

/** A machine is a store with a separate clock. */
async function machines() {
  const { open, client } = await setup()
  const machine = (startMs?: number) => {
    const clock = new FakeClock(startMs)
    return { clock, store: open({ clock }) }
  }
  return { open, client, machine }
}

it('waits a whole lease before it takes over a record that it has not seen before', async () => {
  const { machine } = await machines()
  const [holder, other] = [machine(), machine()]
  const lease = await hold(holder.store, POLICY)
  // Other clocks do not count.
  holder.clock.advance(5 * LEASE_MS)
  expect(ofKind(await claim(other.store, POLICY), 'in_progress').leaseLeftMs).toBe(LEASE_MS)
  other.clock.advance(LEASE_MS - 1)
  expect(ofKind(await claim(other.store, POLICY), 'in_progress').leaseLeftMs).toBe(1)
  other.clock.advance(1)
  const second = ofKind(await claim(other.store, POLICY), 'claimed')
  expect([second.from, second.lease.attempt]).toEqual(['lapsed', 2])
  ofKind(await settle(holder.store, completeOf(lease)), 'fenced')
  expect(await renew(holder.store, lease)).toBe(false)
})

it('never takes over a record that another machine keeps renewing', async () => {
  const { machine } = await machines()
  const [holder, other] = [machine(), machine()]
  const lease = await hold(holder.store, POLICY)
  for (let n = 0; n < 12; n++) {
    expect(await renew(holder.store, lease)).toBe(true)
    ofKind(await claim(other.store, POLICY), 'in_progress')
    expect(await other.store.sweep({ limit: 10 })).toEqual([])
    for (const { clock } of [holder, other]) clock.advance(LEASE_MS - 1)
  }
  ofKind(await settle(holder.store, completeOf(lease)), 'settled')
})

it.each([HOUR_MS, -HOUR_MS])(
  'does not end a live lease when the clock of a machine is off by %i ms',
  async (offMs) => {
    const { machine } = await machines()
    const [holder, other] = [machine(), machine(new FakeClock().nowMs() + offMs)]
    const lease = await hold(holder.store, POLICY)
    ofKind(await claim(other.store, POLICY), 'in_progress')
    other.clock.jumpWallTime(2 * offMs)
    ofKind(await claim(other.store, POLICY), 'in_progress')
    expect(await other.store.sweep({ limit: 10 })).toEqual([])
    expect(await renew(holder.store, lease)).toBe(true)
  },
)

// other reads the record · the answer is delayed · the holder renews · the answer arrives
it('counts a lease from the arrival of the answer, not from the request', async () => {
  const { machine, client, open } = await machines()
  const holder = machine()
  const lease = await hold(holder.store, POLICY)
  const clock = new FakeClock()
  let stallMs = LEASE_MS - 1
  const stalled = around(client, async ({ name, go }) => {
    const answer = await go()
    if (name === 'getItem') clock.advance(stallMs)
    return answer
  })
  const other = open({ clock, client: stalled })
  expect(ofKind(await claim(other, POLICY), 'in_progress').leaseLeftMs).toBe(LEASE_MS)
  stallMs = 1
  ofKind(await claim(other, POLICY), 'in_progress')
  expect(await renew(holder.store, lease)).toBe(true)
})

// other sees the lease lapse · stalls before it writes · the holder renews · other writes
it('does not take over a record that was renewed while it stalled', async () => {
  const { machine, client, open } = await machines()
  const holder = machine()
  const lease = await hold(holder.store, POLICY)
  const clock = new FakeClock()
  let renewed: boolean | undefined
  const standing = around(client, async ({ name, input, go }) => {
    const isTakeover =
      name === 'putItem' && String(input['ConditionExpression']).includes('version')
    if (isTakeover) renewed ??= await renew(holder.store, lease)
    return go()
  })
  const other = open({ clock, client: standing })
  ofKind(await claim(other, POLICY), 'in_progress')
  clock.advance(LEASE_MS)
  ofKind(await claim(other, POLICY), 'in_progress')
  expect(renewed).toBe(true)
  // The same with a sweep.
  renewed = undefined
  clock.advance(LEASE_MS)
  expect(await other.sweep({ limit: 10 })).toEqual([])
  expect(renewed).toBe(true)
  ofKind(await settle(holder.store, completeOf(lease)), 'settled')
})

it('gives a lapsed key to one of many machines that have waited for the lapse', async () => {
  const { machine } = await machines()
  const lease = await hold(machine().store, POLICY)
  const others = Array.from({ length: 6 }, () => machine())
  for (const { store } of others) ofKind(await claim(store, POLICY), 'in_progress')
  for (const { clock } of others) clock.advance(LEASE_MS)
  const outcomes = await Promise.all(others.map(({ store }) => claim(store, POLICY)))
  expect(tally(outcomes)).toEqual({ claimed: 1, in_progress: 5 })
  expect((await viewOf(others[0]!.store, lease)).lapses).toBe(1)
})

it('sweeps the records of crashed machines after it has watched them for a lease', async () => {
  const { machine } = await machines()
  const [dead, ...sweepers] = [machine(), machine(), machine()]
  await dead.store.claim(claimRequests(20))
  for (const { store } of sweepers) expect(await store.sweep({ limit: 100 })).toEqual([])
  for (const { clock } of sweepers) clock.advance(LEASE_MS)
  const swept = await Promise.all(sweepers.map(({ store }) => store.sweep({ limit: 100 })))
  expect(new Set(swept.flat().map((one) => one.identity)).size).toBe(20)
  expect(swept.flat().length).toBe(20)
})

it('counts a renewed lease by the length it was renewed for', async () => {
  const { machine } = await machines()
  const [holder, other] = [machine(), machine()]
  const lease = await hold(holder.store, POLICY)
  expect(await holder.store.renew([{ ...lease, leaseMs: 3 * LEASE_MS }])).toEqual([true])
  expect(ofKind(await claim(other.store, POLICY), 'in_progress').leaseLeftMs).toBe(3 * LEASE_MS)
  other.clock.advance(3 * LEASE_MS - 1)
  ofKind(await claim(other.store, POLICY), 'in_progress')
  other.clock.advance(1)
  ofKind(await claim(other.store, POLICY), 'claimed')
})

it('drops the oldest sighting at the limit, and then counts its lease anew', () => {
  const clock = new FakeClock()
  const sightings = new Sightings(clock, 2)
  sightings.ageMs('a', '1')
  sightings.ageMs('b', '1')
  clock.advance(10)
  expect(sightings.ageMs('a', '1')).toBe(10)
  sightings.ageMs('c', '1')
  clock.advance(10)
  expect(['a', 'b', 'c'].map((identity) => sightings.has(identity))).toEqual([true, false, true])
  expect(sightings.ageMs('a', '1')).toBe(20)
  expect(sightings.ageMs('b', '1')).toBe(0)
  // Another version of the record is another lease.
  expect(sightings.ageMs('b', '2')).toBe(0)
})

it('sweeps more records than it can watch, a part at a time', async () => {
  const { table: name, client, open } = await setup()
  const clock = new FakeClock()
  await open({ clock }).claim(claimRequests(40))
  const calls = new Calls(client, { name, shards: 8 })
  const time = timeOf(client, clock)
  const moves = new RecordMoves({
    calls,
    clock,
    time,
    history: false,
    ttl: false,
    inlineBytesMax: 1024,
    sightingsMax: 32,
  })
  const upkeep = new Upkeep(moves, new StateIndex(calls), time)
  expect(await upkeep.sweep(100)).toEqual([])
  const swept: string[] = []
  for (let n = 0; n < 40 && swept.length < 40; n++) {
    clock.advance(LEASE_MS)
    swept.push(...(await upkeep.sweep(100)).map(({ identity }) => identity))
  }
  expect(new Set(swept).size).toBe(40)
})
