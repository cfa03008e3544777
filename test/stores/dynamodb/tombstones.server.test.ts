/** What is kept of expired records whose keys stay refused, and how a reap finds it. */
import { expect, it } from 'vitest'
import type { ClaimRequest, Lease, Store } from '../../../src/core/store/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import {
  bytes,
  claim,
  claimRequest,
  finish,
  hold,
  ofKind,
  RETENTION_MS,
  settle,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { around, counting, useDynamodb, type Call } from './setup.ts'

// Like DynamoDB, the server returns the item that a refused write found.
const setup = useDynamodb({ returnsItems: true })

const REFUSE_MS = 5000
const FOR_EVER = { afterExpiry: 'refuse' } as const
const REFUSE = { afterExpiry: 'refuse', refuseForMs: REFUSE_MS } as const
const SEED = '0123456789abcdef0123456789abcdef'
const DAY_S = 24 * 60 * 60
const NOTHING = { removed: 0, expired: 0, abandoned: 0 }

/** Completes `count` keys, and lets them expire. They become tombstones. */
async function expireMany(
  { store, clock }: { store: Store; clock: FakeClock },
  count: number,
  overrides: Partial<ClaimRequest>,
): Promise<void> {
  const keys = Array.from({ length: count }, (_, n) => `${overrides.refuseForMs ?? 'ever'}-${n}`)
  await Promise.all(keys.map((key) => finish(store, { ...overrides, key })))
  clock.advance(RETENTION_MS)
  let expired = 0
  while (expired < count) expired += (await store.reap({ limit: 100 })).expired
}

it('reads no key that is refused for ever in a reap or a sweep', async () => {
  const { open, client } = await setup()
  const clock = new FakeClock()
  let entries = 0
  const { counted, calls } = counting(
    around(client, async ({ name, go }) => {
      const answer = await go()
      if (name === 'query') entries += (answer as { Items: unknown[] }).Items.length
      return answer
    }),
  )
  const store = open({ clock, client: counted })
  const pass = async () => {
    calls.length = 0
    entries = 0
    expect(await store.reap({ limit: 100 })).toEqual(NOTHING)
    expect(await store.sweep({ limit: 100 })).toEqual([])
    return { calls: countOf(calls), entries }
  }
  const empty = await pass()
  expect(empty.entries).toBe(0)
  await expireMany({ store, clock }, 60, FOR_EVER)
  expect(await pass()).toEqual(empty)
  // Tombstones with an end are not read either before it is reached.
  await expireMany({ store, clock }, 60, { ...REFUSE, refuseForMs: 10 * RETENTION_MS })
  expect(await pass()).toEqual(empty)
})

function countOf(calls: readonly Call[]): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const name of calls) counts[name] = (counts[name] ?? 0) + 1
  return counts
}

it('removes a refused key that is due with one read and one delete', async () => {
  const { open, client } = await setup()
  const clock = new FakeClock()
  const { counted, calls } = counting(client)
  const store = open({ clock, client: counted })
  await expireMany({ store, clock }, 20, FOR_EVER)
  clock.advance(REFUSE_MS)
  calls.length = 0
  expect(await store.reap({ limit: 100 })).toEqual(NOTHING)
  const idle = countOf(calls)

  await expireMany({ store, clock }, 5, REFUSE)
  clock.advance(REFUSE_MS)
  calls.length = 0
  expect(await store.reap({ limit: 3 })).toEqual({ ...NOTHING, removed: 3 })
  expect(countOf(calls)).toEqual({ ...idle, getItem: idle['getItem']! + 3, deleteItem: 3 })
  expect(await store.reap({ limit: 3 })).toEqual({ ...NOTHING, removed: 2 })
  expect(await store.list({ state: 'expired', limit: 100 })).toHaveLength(20)
})

it('removes refused keys of every shard on a node with fewer shards', async () => {
  const { open } = await setup()
  const clock = new FakeClock()
  await expireMany({ store: open({ clock, shards: 64 }), clock }, 30, REFUSE)
  clock.advance(REFUSE_MS)
  expect(await open({ clock }).reap({ limit: 100 })).toEqual({ ...NOTHING, removed: 30 })
})

it('does not remove a new record when the index still has the refused key before it', async () => {
  const { open, client } = await setup()
  const clock = new FakeClock()
  const store = open({ clock })
  await expireMany({ store, clock }, 1, REFUSE)
  const answers = new Map<string, object>()
  let isBehind = false
  const stale = around(client, async ({ name, input, go }) => {
    if (name !== 'query') return go()
    const { ':shard': shard } = input['ExpressionAttributeValues'] as { ':shard': { S: string } }
    if (!isBehind) answers.set(shard.S, await go())
    return answers.get(shard.S) ?? { Items: [] }
  })
  const other = open({ clock, client: stale })
  clock.advance(REFUSE_MS)
  // Reads the entry, and may move nothing.
  expect(await other.reap({ limit: 0 })).toEqual(NOTHING)
  expect(await other.list({ state: 'expired', limit: 10 })).toHaveLength(1)

  isBehind = true
  const key = `${REFUSE_MS}-0`
  const { lease } = ofKind(await claim(store, { key }), 'claimed')
  expect(await other.reap({ limit: 10 })).toEqual(NOTHING)
  expect(await other.list({ state: 'expired', limit: 10 })).toEqual([])
  expect((await viewOf(store, lease)).state).toBe('in_progress')
})

it('lists all expired records, with and without an end, the oldest run first', async () => {
  const { open } = await setup()
  const clock = new FakeClock()
  const store = open({ clock })
  const ids: string[] = []
  for (const refuseForMs of [undefined, 2 * REFUSE_MS, undefined, REFUSE_MS]) {
    const request = claimRequest({ ...FOR_EVER, refuseForMs, key: `key-${ids.length}` })
    await finish(store, request)
    ids.push(request.recordId)
    clock.advance(1)
  }
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 10 })).expired).toBe(4)
  const listed = async (limit: number) =>
    (await store.list({ state: 'expired', limit })).map(({ recordId }) => recordId)
  expect(await listed(10)).toEqual(ids)
  expect(await listed(4)).toEqual(ids)
  expect(await listed(1)).toEqual(ids.slice(0, 1))
})

it('lets the service remove a refused key a day after its time, if it has one', async () => {
  const { open, items } = await setup()
  const store = open()
  const endSoon = async (overrides: Partial<ClaimRequest>) => {
    const lease = await hold(store, { ...overrides, retentionMs: 1 })
    const done = { kind: 'complete', lease, result: bytes('done'), retentionMs: 1 } as const
    ofKind(await settle(store, done), 'settled')
    return lease
  }
  const until = await endSoon({ key: 'until', ...REFUSE })
  const ever = await endSoon({ key: 'ever', ...FOR_EVER })
  const ttlOf = async ({ identity }: Lease) =>
    (await items()).find((item) => item['identity'] === identity)?.['ttl']
  expect([await ttlOf(until), await ttlOf(ever)]).toEqual([undefined, undefined])
  let expired = 0
  const reap = async () => (expired += (await store.reap({ limit: 10 })).expired)
  await expect.poll(reap, { timeout: 20_000 }).toBe(2)
  const { reconcileAt } = await viewOf(store, until)
  expect(await ttlOf(until)).toBe(Math.ceil(reconcileAt!.getTime() / 1000) + DAY_S)
  expect(await ttlOf(ever)).toBe(undefined)
})

/** The size of an item as the service counts it. A number has one byte, and one for two digits. */
function sizeOf(item: Readonly<Record<string, unknown>>): number {
  const valueSize = (value: unknown) =>
    typeof value === 'number' ? Math.ceil(String(value).length / 2) + 1 : String(value).length
  return Object.entries(item).reduce(
    (sum, [name, value]) => sum + name.length + valueSize(value),
    0,
  )
}

it('keeps about 500 bytes of a refused key with a long name and a large result', async () => {
  const { open, items } = await setup()
  const clock = new FakeClock()
  const store = open({ clock })
  const names = { key: 'k'.repeat(1000), fingerprint: 'f'.repeat(64), tenant: crypto.randomUUID() }
  await finish(store, { ...REFUSE, ...names, idSeed: SEED }, new Uint8Array(100_000))
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 10 })).expired).toBe(1)
  const [tombstone, ...more] = await items()
  expect(more).toEqual([])
  expect(sizeOf(tombstone!)).toBeLessThanOrEqual(500)
})
