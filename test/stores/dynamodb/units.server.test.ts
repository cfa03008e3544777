/** The cost of calls in units of the service, and the shards of the index of states. */
import type { DynamoDB } from '@aws-sdk/client-dynamodb'
import { expect, it } from 'vitest'
import type { Store } from '../../../src/core/store/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import {
  assertBytes,
  claim,
  claimRequests,
  finish,
  hold,
  LEASE_MS,
  ofKind,
  releaseOf,
  RETENTION_MS,
  settle,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { around, counting, useDynamodb } from './setup.ts'

// Like DynamoDB, the server returns the item that a refused write found.
const setup = useDynamodb({ private: true, returnsItems: true })

const KIB = 1024

const pattern = (length: number) => new Uint8Array(length).map((_, n) => (n * 31) % 251)

/** Size of names and values as the service counts them. Numbers are slightly overestimated. */
function bytesOf(item: Readonly<Record<string, unknown>>): number {
  return Object.entries(item).reduce((sum, [name, value]) => {
    const length = value instanceof Uint8Array ? value.byteLength : String(value).length
    return sum + name.length + length
  }, 0)
}

/** Sums up the read units of a client, as the server counts them. */
function countReadUnits(client: DynamoDB) {
  const read = { units: 0 }
  client.middlewareStack.add(
    (next) => async (args) => {
      Object.assign(args.input, { ReturnConsumedCapacity: 'TOTAL' })
      const answer = await next(args)
      const { ConsumedCapacity: consumed } = answer.output as {
        ConsumedCapacity?: { CapacityUnits?: number }
      }
      if (!('Item' in args.input)) read.units += consumed?.CapacityUnits ?? 0
      return answer
    },
    { step: 'initialize' },
  )
  return read
}

// A refused write is charged by the size of the item that it finds. The answer has no such number.
it('replays a result of 20 KiB for two write units in a process that has not seen it', async () => {
  const { open, connect, items } = await setup()
  const clock = new FakeClock()
  await finish(open({ clock }), {}, pattern(20 * KIB))
  const record = (await items()).find(({ item }) => item === 'record')!
  expect(Math.ceil(bytesOf(record) / KIB)).toBeLessThanOrEqual(2)

  const client = connect()
  const read = countReadUnits(client)
  const { counted, calls } = counting(client)
  const other = open({ client: counted, clock })
  assertBytes(ofKind(await claim(other), 'completed').result, pattern(20 * KIB))
  expect(calls).toEqual(['putItem', 'getItem'])
  // Six times 4 KB at half the price: the read is eventually consistent.
  expect(read.units).toBe(3)
})

it('replays for read units only in a process that has seen the result', async () => {
  const { open, connect } = await setup()
  const client = connect()
  const read = countReadUnits(client)
  const { counted, calls } = counting(client)
  const store = open({ client: counted, clock: new FakeClock() })
  await finish(store, {}, pattern(20 * KIB))
  calls.length = 0
  read.units = 0
  assertBytes(ofKind(await claim(store), 'completed').result, pattern(20 * KIB))
  expect(calls).toEqual(['getItem', 'getItem'])
  // The record and the result.
  expect(read.units).toBe(1 + 3)
})

it('claims a key after its expiry in a process that has seen it completed', async () => {
  const { open } = await setup()
  const clock = new FakeClock()
  const [one, two] = [open({ clock }), open({ clock })]
  await finish(one)
  ofKind(await claim(two), 'completed')
  clock.advance(RETENTION_MS)
  expect((await two.reap({ limit: 10 })).removed).toBe(1)
  expect(ofKind(await claim(one), 'claimed').from).toBe('new')
  ofKind(await claim(two), 'in_progress')
})

it('reads a part again when an eventually consistent read misses it', async () => {
  const { open, client } = await setup()
  const clock = new FakeClock()
  await finish(open({ clock }), {}, pattern(2 * KIB))
  let reads = 0
  const behind = around(client, ({ name, input, go }) => {
    if (name !== 'getItem' || input['ConsistentRead'] === true) return go()
    reads++
    return Promise.resolve({})
  })
  const replay = ofKind(await claim(open({ client: behind, clock })), 'completed')
  assertBytes(replay.result, pattern(2 * KIB))
  expect(reads).toBe(1)
})

it('reads results that earlier versions have put into the item of their record', async () => {
  const { open, items } = await setup()
  const clock = new FakeClock()
  const earlier = open({ clock, inlineBytesMax: 32 * KIB })
  const lease = await finish(earlier, {}, pattern(32 * KIB))
  expect((await items()).map(({ item }) => item)).toEqual(['record'])
  const store = open({ clock })
  assertBytes(ofKind(await claim(store), 'completed').result, pattern(32 * KIB))
  assertBytes((await viewOf(store, lease)).result, pattern(32 * KIB))
})

const shardsOf = (records: readonly Record<string, unknown>[]) =>
  new Set(
    records.flatMap(({ stateShard }) =>
      typeof stateShard === 'string' ? [Number(stateShard.split('#')[1])] : [],
    ),
  )

/** Creates `count` records under lease, each with another key. */
const holdMany = async (store: Store, count: number) => {
  await Promise.all(claimRequests(count).map((request) => store.claim([request])))
}

// One node has the option, and one does not: before the option is deployed, or after a rollback.
it('finds records of every shard on a node with fewer shards', async () => {
  const { open, items } = await setup()
  const clock = new FakeClock()
  const [wide, plain] = [open({ clock, shards: 64 }), open({ clock })]
  await holdMany(wide, 100)
  const held = shardsOf(await items())
  expect(held.size).toBeGreaterThan(30)
  expect(Math.max(...held)).toBeLessThan(64)

  expect(await plain.list({ state: 'in_progress', limit: 1_000 })).toHaveLength(100)
  expect(await plain.sweep({ limit: 1_000 })).toEqual([])
  clock.advance(LEASE_MS)
  expect(await plain.sweep({ limit: 1_000 })).toHaveLength(100)
  // The node without the option has written only to its 8 shards.
  expect(Math.max(...shardsOf(await items()))).toBeLessThan(8)
  expect(await wide.list({ state: 'unknown', limit: 1_000 })).toHaveLength(100)
})

it('stores the highest number of shards, and nothing for the default', async () => {
  const { open, items } = await setup()
  const clock = new FakeClock()
  const marks = async () =>
    (await items()).filter(({ item }) => item === 'shards').map(({ shards }) => shards)
  await hold(open({ clock }), { key: 'a' })
  expect(await marks()).toEqual([])
  await hold(open({ clock, shards: 32 }), { key: 'b' })
  await hold(open({ clock, shards: 16 }), { key: 'c' })
  expect(await marks()).toEqual([32])
  await Promise.all([
    hold(open({ clock, shards: 128 }), { key: 'd' }),
    hold(open({ clock, shards: 64 }), { key: 'e' }),
  ])
  expect(await marks()).toEqual([128])
})

it('writes no record to a new shard before the number of shards is in the table', async () => {
  const { open, client } = await setup()
  const clock = new FakeClock()
  let isFailing = true
  const refusing = around(client, ({ name, input, go }) => {
    const { item } = (input['Item'] ?? {}) as { item?: { S?: string } }
    const isMark = name === 'putItem' && item?.S === 'shards'
    return isFailing && isMark ? Promise.reject(new Error('no answer')) : go()
  })
  const store = open({ clock, client: refusing, shards: 32 })
  await expect(claim(store)).rejects.toThrow('no answer')
  expect(await open({ clock }).list({ state: 'in_progress', limit: 10 })).toEqual([])
  isFailing = false
  ofKind(await claim(store), 'claimed')
})

// Two claims wait until the number is in the table, and the first one is aborted.
it('announces its shards for all waiting claims when the first one is aborted', async () => {
  const { open, client } = await setup()
  const [reached, answer] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  const slow = around(client, async ({ input, go }) => {
    const { item } = (input['Key'] ?? {}) as { item?: { S?: string } }
    if (item?.S === 'shards') {
      reached.resolve()
      await answer.promise
    }
    return go()
  })
  const store = open({ clock: new FakeClock(), client: slow, shards: 32 })
  const givenUp = new AbortController()
  const [one, two] = claimRequests(2)
  const first = store.claim([one!], givenUp.signal)
  const second = store.claim([two!])
  await reached.promise
  givenUp.abort(new Error('no answer'))
  await expect(first).rejects.toMatchObject({ failure: 'unavailable', wroteNothing: true })
  answer.resolve()
  expect((await second)[0]!.kind).toBe('claimed')
})

it('announces its shards again on a table that was emptied', async () => {
  const { open, items, client, table } = await setup()
  const clock = new FakeClock()
  const store = open({ clock, shards: 32 })
  await hold(store, { key: 'before' })
  for (const { identity, item } of await items()) {
    const key = { identity: { S: String(identity) }, item: { S: String(item) } }
    await client.deleteItem({ TableName: table, Key: key })
  }
  clock.advance(60_000)
  await hold(store, { key: 'after' })
  const isThere = async () => (await items()).some(({ shards }) => shards === 32)
  await expect.poll(isThere).toBe(true)
})

it('lists the oldest records of all shards, and reads few others', async () => {
  const { open, client } = await setup()
  const clock = new FakeClock()
  const store = open({ clock, shards: 16 })
  for (const request of claimRequests(120)) {
    await store.claim([request])
    clock.advance(1)
  }
  let entries = 0
  const counted = around(client, async ({ name, go }) => {
    const answer = await go()
    if (name === 'query') entries += (answer as { Items: unknown[] }).Items.length
    return answer
  })
  const reader = open({ clock, client: counted })
  const keys = (limit: number) =>
    reader.list({ state: 'in_progress', limit }).then((views) => views.map(({ key }) => key))
  const all = claimRequests(120).map(({ key }) => key)
  expect(await keys(5)).toEqual(all.slice(0, 5))
  entries = 0
  expect(await keys(100)).toEqual(all.slice(0, 100))
  expect(entries).toBeLessThanOrEqual(120)
  expect(await keys(1_000)).toEqual(all)
})

const inShard = (n: number, shard: number) => `${n}`.padStart(24, '0') + `${shard}`.padStart(8, '0')

/** Creates `count` records under lease, all in the first shard. */
const holdInOne = async (store: Store, name: string, count: number) => {
  const numbers = Array.from({ length: count }, (_, n) => n + name.length * 1_000)
  return Promise.all(
    numbers.map((n) => hold(store, { key: `${name}-${n}`, identity: inShard(n, 0) })),
  )
}

/** Stores with 8 shards on a table that had 256 before, of which nearly all are empty. */
async function loweredSetup() {
  const { open } = await setup()
  const clock = new FakeClock()
  await finish(open({ clock, shards: 256 }), { key: 'once' })
  return { clock, store: open({ clock }), other: open({ clock }) }
}

it('sweeps the youngest records after the number of shards was lowered', async () => {
  const { clock, store, other } = await loweredSetup()
  // More than a 256th of the records that a sweep watches.
  const live = await holdInOne(store, 'live', 100)
  clock.advance(10)
  const crashed = await holdInOne(store, 'crashed', 5)
  const swept: string[] = []
  for (let n = 0; n < 4; n++) {
    swept.push(...(await other.sweep({ limit: 1_000 })).map(({ identity }) => identity))
    clock.advance(LEASE_MS / 2)
    await Promise.all(live.map((lease) => store.renew([{ ...lease, leaseMs: LEASE_MS }])))
  }
  expect(swept.toSorted()).toEqual(crashed.map(({ identity }) => identity))
})

it('reaps a full shard in one pass after the number of shards was lowered', async () => {
  const { clock, store, other } = await loweredSetup()
  // More than a 256th of the records that a pass reads.
  const leases = await holdInOne(store, 'released', 60)
  await Promise.all(leases.map((lease) => settle(store, releaseOf(lease))))
  clock.advance(RETENTION_MS)
  // Including the record of `loweredSetup`.
  expect((await other.reap({ limit: 1_000 })).removed).toBe(61)
})

// All records of one shard are older than the only record of another.
it('reads the next page of a shard before it takes younger records of another', async () => {
  const { open } = await setup()
  const clock = new FakeClock()
  const store = open({ clock })
  for (let n = 0; n < 50; n++) {
    await hold(store, { key: `old-${n}`, identity: inShard(n, 0) })
    clock.advance(1)
  }
  await hold(store, { key: 'young', identity: inShard(50, 1) })
  const views = await store.list({ state: 'in_progress', limit: 51 })
  const old = Array.from({ length: 50 }, (_, n) => `old-${n}`)
  expect(views.map(({ key }) => key)).toEqual([...old, 'young'])
  expect(await store.list({ state: 'in_progress', limit: 45 })).toHaveLength(45)
})

it('reaps expired records in every shard', async () => {
  const { open } = await setup()
  const clock = new FakeClock()
  const store = open({ clock, shards: 32 })
  for (const { key } of claimRequests(20)) await finish(store, { key })
  const released = await hold(store, { key: 'released' })
  ofKind(await settle(store, releaseOf(released)), 'settled')
  clock.advance(RETENTION_MS)
  const plain = open({ clock })
  expect((await plain.reap({ limit: 15 })).removed).toBe(15)
  expect((await plain.reap({ limit: 100 })).removed).toBe(6)
})
