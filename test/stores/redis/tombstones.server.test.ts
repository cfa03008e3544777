import type { Redis } from 'ioredis'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { redisStore, type RedisStore } from '../../../src/stores/redis/index.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import {
  bytes,
  claim,
  claimRequest,
  claimRequests,
  completeOf,
  finish,
  hold,
  LEASE_MS,
  ofKind,
  releaseOf,
  RETENTION_MS,
  settle,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { startRedis, type RedisServer } from '../../servers/redis.ts'
import { connectIoRedis } from './setup.ts'

const DAY_MS = 24 * 60 * 60 * 1000
const REFUSE_MS = 5000
const SEED = '0123456789abcdef0123456789abcdef'
const refuse = { afterExpiry: 'refuse', refuseForMs: REFUSE_MS } as const

let server: RedisServer

beforeAll(async () => {
  server = await startRedis()
}, 60_000)

afterAll(() => server.close())

async function setup({ clock }: { readonly clock?: FakeClock } = {}) {
  const client = connectIoRedis(server.url)
  await client.flushall()
  const options = clock === undefined ? { client } : { client, clock }
  return { client, store: redisStore(options) }
}

/** How often the server ran each command during `work`, also inside scripts. */
async function commandsOf(
  client: Redis,
  work: () => Promise<unknown>,
): Promise<Record<string, number>> {
  await client.config('RESETSTAT')
  await work()
  const stats = await client.info('commandstats')
  const calls = stats.matchAll(/cmdstat_([a-z]+):calls=(\d+)/g)
  return Object.fromEntries([...calls].map(([, name, count]) => [name, Number(count)]))
}

/** Completes keys whose records are refused after their expiry. */
async function finishMany(store: RedisStore, count: number, overrides: object): Promise<void> {
  for (let left = count; left > 0; left -= 1000) {
    const requests = claimRequests(Math.min(left, 1000), { ...overrides, tenant: `t-${left}` })
    const outcomes = await store.claim(requests)
    await store.settle(outcomes.map((one) => completeOf(ofKind(one, 'claimed').lease)))
  }
}

it('removes everything of a tombstone when its refusal is over', async () => {
  const clock = new FakeClock()
  const { client, store } = await setup({ clock })
  await finish(store, refuse)
  await settle(store, releaseOf(await hold(store, { ...refuse, key: 'key-2' })))
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 10 })).expired).toBe(2)
  expect((await store.list({ state: 'expired', limit: 10 })).length).toBe(2)
  expect(await store.list({ state: 'failed_retryable', limit: 10 })).toEqual([])
  clock.advance(REFUSE_MS)
  expect(await store.reap({ limit: 10 })).toEqual({ removed: 2, expired: 0, abandoned: 0 })
  expect(await client.keys('*')).toEqual([])
})

// An erased record is a tombstone before its expiry. So is one whose clock was set back.
it('refuses the key of a tombstone before its expiry, under every policy', async () => {
  const clock = new FakeClock()
  const { store } = await setup({ clock })
  const { recordId } = await viewOf(store, await finish(store, { ...refuse, refuseForMs: 0 }))
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 10 })).expired).toBe(1)
  clock.jumpWallTime(-1)
  for (const mode of ['hold', 'accept', 'take', 'find'] as const) {
    expect(await claim(store, { mode })).toEqual({ kind: 'expired', recordId })
  }
  clock.jumpWallTime(1)
  expect(ofKind(await claim(store), 'claimed').from).toBe('expired')
})

it('lists a tombstone by its last run, and finds it by its record id', async () => {
  const clock = new FakeClock()
  const { store } = await setup({ clock })
  const ids: string[] = []
  // The first refusal ends last.
  for (const [n, refuseForMs] of [90_000, 1000, undefined].entries()) {
    const overrides = { ...refuse, refuseForMs, key: `key-${n}`, idSeed: SEED }
    ids.push((await viewOf(store, await finish(store, overrides))).recordId)
    clock.advance(1)
  }
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 10 })).expired).toBe(3)
  const listed = await store.list({ state: 'expired', limit: 10 })
  expect(listed.map((view) => view.recordId)).toEqual(ids)
  for (const view of listed) {
    expect(await store.read({ recordId: view.recordId })).toEqual(view)
    expect([view.key, view.fingerprint, view.idSeed]).toEqual(['', '', SEED])
  }
})

// The TTL removes what no reaper does. It must never end a refusal.
it('gives a tombstone a TTL of a day after its refusal, and none if it has no end', async () => {
  const { client, store } = await setup()
  const overrides = { retentionMs: 1, afterExpiry: 'refuse' } as const
  for (const [key, refuseForMs] of [
    ['ends', 60_000],
    ['stays', undefined],
  ] as const) {
    const lease = await hold(store, { ...overrides, key, refuseForMs })
    await settle(store, { kind: 'complete', lease, result: bytes('done'), retentionMs: 1 })
    const isReaped = async () => (await store.reap({ limit: 10 })).expired
    await expect.poll(isReaped).toBe(1)
  }
  const ttlOf = async (key: string) => {
    const [name] = await client.keys(`*${claimRequest({ key }).identity}`)
    return client.pttl(name!)
  }
  expect(await ttlOf('stays')).toBe(-1)
  expect(await ttlOf('ends')).toBeGreaterThan(DAY_MS)
  expect(await ttlOf('ends')).toBeLessThanOrEqual(DAY_MS + 60_000)
  // A claim that may use the key takes the TTL away, together with the tombstone.
  ofKind(await claim(store, { key: 'ends' }), 'claimed')
  expect(await ttlOf('ends')).toBe(-1)
})

it('removes the index entries of a tombstone that was removed by its TTL', async () => {
  const clock = new FakeClock()
  const { client, store } = await setup({ clock })
  const { identity } = await finish(store, refuse)
  clock.advance(RETENTION_MS)
  await store.reap({ limit: 10 })
  await client.del((await client.keys(`*${identity}`))[0]!)
  clock.advance(REFUSE_MS)
  expect(await store.reap({ limit: 10 })).toEqual({ removed: 0, expired: 0, abandoned: 0 })
  expect(await client.keys('*')).toEqual([])
})

it('reads no tombstone whose refusal is not over, in reap and in sweep', async () => {
  const clock = new FakeClock()
  const { client, store } = await setup({ clock })
  const reap = () => store.reap({ limit: 100 })
  const sweep = () => store.sweep({ limit: 100 })
  // The server gets the whole scripts only once.
  await reap()
  await sweep()
  const [emptyReap, emptySweep] = [await commandsOf(client, reap), await commandsOf(client, sweep)]
  await finishMany(store, 3000, { afterExpiry: 'refuse' })
  await finishMany(store, 500, { ...refuse, operation: 'later', refuseForMs: 10 * REFUSE_MS })
  await finishMany(store, 20, { ...refuse, operation: 'over' })
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 10_000 })).expired).toBe(3520)

  expect(await commandsOf(client, reap)).toEqual(emptyReap)
  expect(await commandsOf(client, sweep)).toEqual(emptySweep)
  clock.advance(REFUSE_MS)
  // The index gives the identity of each entry that it returns: one HGET.
  const { hget, del } = await commandsOf(client, () => store.reap({ limit: 8 }))
  expect(del).toBe(8)
  expect(hget).toBeLessThanOrEqual(20)
  expect(await commandsOf(client, sweep)).toEqual(emptySweep)
  expect(await reap()).toEqual({ removed: 12, expired: 0, abandoned: 0 })
  expect((await store.list({ state: 'expired', limit: 10_000 })).length).toBe(3500)
})

it('claims with a seed by the same commands as without one', async () => {
  const clock = new FakeClock()
  const { client, store } = await setup({ clock })
  await store.claim([])
  const claimAll = (overrides: object) => () => store.claim(claimRequests(10, overrides))
  const plain = await commandsOf(client, claimAll({ tenant: 'plain' }))
  const seeded = await commandsOf(client, claimAll({ ...refuse, idSeed: SEED }))
  expect(seeded).toEqual(plain)
  expect(plain).toMatchObject({ evalsha: 1, mget: 1, mset: 1, hset: 10, zadd: 10 })
})

it('looks keys up with one read, and writes nothing', async () => {
  const clock = new FakeClock()
  const { client, store } = await setup({ clock })
  await finish(store, { key: 'key-0' })
  await hold(store, { key: 'key-1', onLapse: 'rerun' })
  await hold(store, { key: 'key-2' })
  await settle(store, releaseOf(await hold(store, { key: 'key-3' })))
  await claim(store, { key: 'key-4', mode: 'accept' })
  const states = [
    [0, ['completed', 'in_progress', 'in_progress', 'free', 'pending', 'free']],
    [LEASE_MS, ['completed', 'free', 'unknown', 'free', 'pending', 'free']],
    [RETENTION_MS, ['free', 'free', 'unknown', 'free', 'pending', 'free']],
  ] as const
  for (const [ms, expected] of states) {
    clock.advance(ms)
    let kinds: string[] = []
    const commands = await commandsOf(client, async () => {
      const outcomes = await store.claim(claimRequests(6, { mode: 'find' }))
      kinds = outcomes.map(({ kind }) => kind)
    })
    expect({ ms, kinds }).toEqual({ ms, kinds: expected })
    expect(commands).toEqual({ evalsha: 1, mget: 1 })
  }
})
