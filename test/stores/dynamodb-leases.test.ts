// DynamoDB has no clock in its conditions. Each store here stands for a machine of its own: it has
// its own clock, and shares only the table.
import { expect, it } from 'vitest'
import type { Lease, Store } from '../../src/core/store.ts'
import { RecordMoves } from '../../src/stores/dynamodb/record-moves.ts'
import { RecordTable } from '../../src/stores/dynamodb/record-table.ts'
import { timeOf } from '../../src/stores/dynamodb/service-time.ts'
import { Sightings } from '../../src/stores/dynamodb/sightings.ts'
import { StateIndex } from '../../src/stores/dynamodb/state-index.ts'
import { Upkeep } from '../../src/stores/dynamodb/upkeep.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
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
} from '../../src/testing/store-cases/store-case.ts'
import { around, useDynamodb } from './dynamodb-setup.ts'

const setup = useDynamodb()

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS
const POLICY = { onLapse: 'rerun', retentionMs: DAY_MS } as const

const renew = async (store: Store, lease: Lease) =>
  only(await store.renew([{ ...lease, leaseMs: LEASE_MS }]))

/** A machine: a store with a clock of its own. */
async function machines() {
  const { open, client } = await setup()
  const machine = (startMs?: number) => {
    const clock = new FakeClock(startMs)
    return { clock, store: open({ clock }) }
  }
  return { open, client, machine }
}

it('waits a whole lease for a record that it meets for the first time', async () => {
  const { machine } = await machines()
  const [holder, other] = [machine(), machine()]
  const lease = await hold(holder.store, POLICY)
  // However long ago that was by any other clock.
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

it('takes over nothing that another machine renews, for however long', async () => {
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
  'lapses no live lease where the clock of a machine is off by %i ms',
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

// other reads the record · the answer is held up · the holder renews · the answer arrives
it('counts from the answer, not from the question', async () => {
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

// other sees the lease lapse · stands still before it writes · the holder renews · other writes
it('takes over nothing that was renewed while it stood still', async () => {
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

it('gives a lapsed key to one of many machines that have all waited for it', async () => {
  const { machine } = await machines()
  const lease = await hold(machine().store, POLICY)
  const others = Array.from({ length: 6 }, () => machine())
  for (const { store } of others) ofKind(await claim(store, POLICY), 'in_progress')
  for (const { clock } of others) clock.advance(LEASE_MS)
  const outcomes = await Promise.all(others.map(({ store }) => claim(store, POLICY)))
  expect(tally(outcomes)).toEqual({ claimed: 1, in_progress: 5 })
  expect((await viewOf(others[0]!.store, lease)).lapses).toBe(1)
})

it('sweeps what dead machines held once it has watched it for a lease', async () => {
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

it('forgets what it saw longest ago when there is too much, and then counts anew', () => {
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
  // Another version of the same record is another lease.
  expect(sightings.ageMs('b', '2')).toBe(0)
})

it('sweeps more than it can keep an eye on, a part at a time', async () => {
  const { table: name, client, open } = await setup()
  const clock = new FakeClock()
  await open({ clock }).claim(claimRequests(40))
  const table = new RecordTable(client, { name, shards: 8 })
  const time = timeOf(client, clock)
  const moves = new RecordMoves({
    table,
    clock,
    time,
    history: false,
    ttl: false,
    inlineBytesMax: 1024,
    sightingsMax: 32,
  })
  const upkeep = new Upkeep(moves, new StateIndex(table), time)
  expect(await upkeep.sweep(100)).toEqual([])
  const swept: string[] = []
  for (let n = 0; n < 40 && swept.length < 40; n++) {
    clock.advance(LEASE_MS)
    swept.push(...(await upkeep.sweep(100)).map(({ identity }) => identity))
  }
  expect(new Set(swept).size).toBe(40)
})
