import { createRequire } from 'node:module'
import { Redis } from 'ioredis'
import { createClientPool } from 'redis'
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { ClaimRequest } from '../../../src/core/store/store.ts'
import { Buckets, TAGS } from '../../../src/stores/redis/buckets.ts'
import { redisStore, type RedisStoreOptions } from '../../../src/stores/redis/index.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import {
  assertBytes,
  bytes,
  claim,
  claimRequest,
  claimRequests,
  completeOf,
  doubtOf,
  finish,
  hold,
  LEASE_MS,
  ofKind,
  releaseOf,
  RETENTION_MS,
  settle,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { startRedis, startRedisCluster, type RedisServer } from '../../servers/redis.ts'
import { connectIoRedis, connectNodeRedis, CONNECT } from './setup.ts'

const DAY_MS = 24 * 60 * 60 * 1000

let server: RedisServer

beforeAll(async () => {
  server = await startRedis()
}, 60_000)

afterAll(() => server.close())

async function setup(options: Partial<RedisStoreOptions> = {}) {
  const client = connectIoRedis(server.url)
  await client.flushall()
  return { client, store: redisStore({ client, ...options }) }
}

it('rejects unsupported clients, unknown options and invalid values', async () => {
  const client = connectIoRedis(server.url)
  const pool = createClientPool({ url: server.url })
  for (const wrong of [undefined, {}, 'redis://localhost', pool]) {
    expect(() => redisStore({ client: wrong as never })).toThrow('client must be')
  }
  expect(() => redisStore({ client, prefx: 'x' } as never)).toThrow('no option "prefx"')
  expect(() => redisStore({ client, prefix: 'a{b}' })).toThrow('prefix must be')
  expect(() => redisStore({ client, prefix: '' })).toThrow('prefix must be')
  expect(() => redisStore({ client, allowEviction: 1 as never })).toThrow('allowEviction')
  const waits = [{ count: 0 }, { count: 1, timeoutMs: 0 }, {}, { count: 1, timeout: 1 }]
  for (const waitReplicas of waits) {
    expect(() => redisStore({ client, waitReplicas: waitReplicas as never })).toThrow(
      'waitReplicas',
    )
  }
  const cluster = new Redis.Cluster([server.port], { lazyConnect: true })
  expect(() => redisStore({ client: cluster, waitReplicas: { count: 1 } })).toThrow('Cluster')
})

it('names every key with its prefix and the hash tag of its bucket', async () => {
  const { client, store } = await setup()
  const keys = ['{a}', '}{', '{{}}', 'a\r\nSET x 1\r\n', 'ключ 🗝', '*$%', ' ']
  for (const key of keys) await finish(store, { key, tenant: key, operation: key }, bytes(key))
  for (const key of keys) {
    const replay = ofKind(await claim(store, { key, tenant: key, operation: key }), 'completed')
    assertBytes(replay.result, bytes(key))
  }
  expect((await store.list({ state: 'completed', limit: 10 })).length).toBe(keys.length)
  for (const name of await client.keys('*')) {
    expect(name).toMatch(/^oncekey:\{[a-z0-9]{2}\}:(due|ids|[0-9a-f]{32})$/)
  }
})

// Nodes that share the slots evenly then share the buckets evenly, for any number of nodes.
it('spreads its buckets evenly over the slots of a cluster', () => {
  const slotOf = createRequire(import.meta.resolve('ioredis'))('cluster-key-slot') as (
    key: string,
  ) => number
  expect(TAGS.length).toBe(64)
  const slots = TAGS.map((tag) => slotOf(`oncekey:{${tag}}:due`))
  expect(slots.map((slot) => Math.floor(slot / 256))).toEqual([...TAGS.keys()])
})

it('rejects a value that a record cannot store, and writes nothing of its batch', async () => {
  const { client, store } = await setup()
  const [good] = claimRequests(1)
  for (const bad of [
    { key: 'half \ud800' },
    { key: 'k'.repeat(32_768) },
    { key: 'k'.repeat(20_000), tenant: 't'.repeat(20_000) },
    { leaseMs: Number.NaN },
    { retentionMs: Infinity },
    { maxLapses: Number.NaN },
    { identity: 'zz' },
    { identity: 'ABCDEF0123456789ABCDEF0123456789' },
    { onLapse: 'never' as never },
    { mode: 'grab' as never },
    { recordId: '@' },
    { idSeed: 'f'.repeat(31) },
    { idSeed: 'F'.repeat(32) },
    { refuseForMs: Number.NaN },
    { refuseForMs: -1 },
    { refuseForMs: Infinity },
  ]) {
    const error = await store.claim([good!, claimRequest(bad)]).catch((thrown: unknown) => thrown)
    expect({ bad, error }).toMatchObject({ bad, error: { failure: 'rejected' } })
    expect(await client.keys('*')).toEqual([])
  }
  const lease = await hold(store)
  const batch = [completeOf(lease), completeOf(lease, {} as never)]
  await expect(store.settle(batch)).rejects.toMatchObject({ failure: 'rejected' })
  expect((await viewOf(store, lease)).state).toBe('in_progress')
  const discard = { ref: { identity: lease.identity }, attempt: 1, idSeed: 'seed' }
  await expect(store.discard!(discard)).rejects.toMatchObject({ failure: 'rejected' })
})

// The server adds other texts to those of the claim, and stores their length in two bytes.
it('keeps a record with texts of the maximum length through every move', async () => {
  const clock = new FakeClock()
  const { store } = await setup({ clock })
  const idSeed = '0123456789abcdef0123456789abcdef'
  const long = { tenant: 't'.repeat(32_500), onLapse: 'rerun', idSeed, refuseForMs: 1 } as const
  const whole = { tenant: long.tenant, key: 'key-1', idSeed, refuseForMs: 1 }
  const errorCode = 'e'.repeat(32_740)
  const first = await hold(store, long)
  ofKind(await settle(store, { ...releaseOf(first), errorCode }), 'settled')
  expect(await viewOf(store, first)).toMatchObject({ ...whole, errorCode })
  const second = await hold(store, long)
  expect(await viewOf(store, second)).toMatchObject({ ...whole, state: 'in_progress' })
  clock.advance(LEASE_MS)
  expect((await store.sweep({ limit: 10 })).length).toBe(1)
  expect(await viewOf(store, second)).toMatchObject({ ...whole, state: 'failed_retryable' })
  const third = await hold(store, long)
  ofKind(await settle(store, completeOf(third, bytes('paid'))), 'settled')
  assertBytes(ofKind(await claim(store, long), 'completed').result, bytes('paid'))
  const tooLong = { ...releaseOf(third), errorCode: `${errorCode}e` }
  await expect(settle(store, tooLong)).rejects.toMatchObject({ failure: 'rejected' })
})

// As after a deploy was rolled back: other requests of the batch must still succeed.
it('rejects a record of a newer version, and claims the rest of the batch without it', async () => {
  const { client, store } = await setup()
  const [newer, other] = claimRequests(2)
  await store.claim([newer!])
  const [name] = (await client.keys('*')).filter((key) => /[0-9a-f]{32}$/.test(key))
  await client.setrange(name!, 0, '\u0002')
  const error = await store.claim([other!, newer!]).catch((thrown: unknown) => thrown)
  expect(error).toMatchObject({ failure: 'rejected' })
  expect(await store.read({ identity: other!.identity })).toBeUndefined()
  ofKind((await store.claim([other!]))[0]!, 'claimed')
})

// When a node of an older version gives a lease, the record has -1 instead of the lease length.
it('does not shorten a lease that an older node gave', async () => {
  const clock = new FakeClock()
  const { client, store } = await setup({ clock })
  await hold(store)
  const [name] = (await client.keys('*')).filter((key) => /[0-9a-f]{32}$/.test(key))
  const none = Buffer.alloc(8)
  none.writeDoubleLE(-1)
  await client.setrange(name!, 4, none)
  clock.jumpWallTime(-3_600_000)
  await store.sweep({ limit: 10 })
  const left = ofKind(await claim(store), 'in_progress').leaseLeftMs
  expect(left).toBe(LEASE_MS + 3_600_000)
  expect((await store.list({ state: 'in_progress', limit: 1 }))[0]?.reconcileAt).toBeUndefined()
})

// Each bucket has its own script: one script fails, and the other has claimed its key.
it('reports "rejected" for a batch on a cluster only if no script of it has run', async () => {
  const cluster = await startRedisCluster()
  onTestFinished(() => cluster.close())
  const client = new Redis.Cluster(cluster.nodes.map(({ port }) => ({ host: '127.0.0.1', port })))
  client.on('error', () => undefined)
  onTestFinished(() => client.disconnect())
  const store = redisStore({ client })
  const [newer, other] = claimRequests(2) as [ClaimRequest, ClaimRequest]
  const { base } = new Buckets('oncekey').of(newer.identity)
  expect(new Buckets('oncekey').of(other.identity).base).not.toBe(base)
  await client.set(base + newer.identity, Buffer.from([2, 0, 0]))
  const stateOf = async ({ identity }: ClaimRequest) => (await store.read({ identity }))?.state

  const batch = [{ ...other, token: 'half \ud800' }, newer]
  await expect(store.claim(batch)).rejects.toMatchObject({ failure: 'rejected' })
  await expect(store.claim([newer])).rejects.toMatchObject({ failure: 'rejected' })
  const unkept = [other, { ...newer, key: 'half \ud800' }]
  await expect(store.claim(unkept)).rejects.toMatchObject({ failure: 'rejected' })
  expect(await stateOf(other)).toBeUndefined()

  const half = store.claim([newer, other])
  await expect(half).rejects.toMatchObject({ failure: 'unavailable', message: /LAYOUT 2/ })
  // The call waits for all its scripts before it fails.
  expect(await stateOf(other)).toBe('in_progress')
}, 60_000)

it('removes the key from the errors of the client', async () => {
  const { client, store } = await setup()
  await store.claim([])
  await client.call('ACL', 'SETUSER', 'limited', 'on', 'nopass', '~*', '+@all', '-evalsha')
  const limited = connectIoRedis(server.url, { username: 'limited', password: 'x' })
  const error: unknown = await claim(redisStore({ client: limited }), {
    key: 'top-secret',
  }).catch((thrown: unknown) => thrown)
  expect(error).toMatchObject({ failure: 'unavailable' })
  const cause = (error as Error).cause
  expect(cause).toMatchObject({ message: expect.stringContaining('NOPERM') })
  // ioredis attaches the arguments as `command`, and they contain the key.
  expect(cause).not.toHaveProperty('command')
})

it('gives only results and releases a TTL, of their expiry plus a day', async () => {
  const { client, store } = await setup()
  const keys = {
    done: await finish(store, { key: 'done' }),
    released: await hold(store, { key: 'released' }),
    kept: await finish(store, { key: 'kept', afterExpiry: 'refuse' }),
    held: await hold(store, { key: 'held' }),
    doubtful: await hold(store, { key: 'doubtful' }),
    retried: await hold(store, { key: 'retried' }),
  }
  await settle(store, releaseOf(keys.released))
  await settle(store, doubtOf(keys.doubtful))
  await settle(store, releaseOf(keys.retried))
  await hold(store, { key: 'retried' })
  await claim(store, { key: 'accepted', mode: 'accept' })
  const ttlOf = async (key: string) => {
    const { identity } = claimRequest({ key })
    const [name] = await client.keys(`*${identity}`)
    return client.pttl(name!)
  }
  for (const key of ['done', 'released']) {
    expect(await ttlOf(key)).toBeGreaterThan(DAY_MS)
    expect(await ttlOf(key)).toBeLessThanOrEqual(DAY_MS + RETENTION_MS)
  }
  for (const key of ['kept', 'held', 'doubtful', 'retried', 'accepted']) {
    expect(await ttlOf(key)).toBe(-1)
  }
})

it('removes the index entries of records that were removed by their TTL', async () => {
  const clock = new FakeClock()
  const { client, store } = await setup({ clock })
  const [a, b, c] = ['a', 'b', 'c'].map((key) => claimRequest({ key }))
  for (const request of [a!, b!, c!]) await finish(store, request)
  const vanish = async ({ identity }: { identity: string }) =>
    client.del((await client.keys(`*${identity}`))[0]!)
  await vanish(a!)
  await vanish(b!)
  // A new record of the key is not mistaken for the removed one.
  const again = ofKind(await claim(store, { key: 'b' }), 'claimed')
  expect(again.from).toBe('new')
  expect(await store.read({ recordId: b!.recordId })).toBeUndefined()
  clock.advance(RETENTION_MS)
  expect(await store.reap({ limit: 10 })).toEqual({ removed: 1, expired: 0, abandoned: 0 })
  ofKind(await settle(store, completeOf(again.lease)), 'settled')
  clock.advance(RETENTION_MS)
  expect(await store.reap({ limit: 10 })).toEqual({ removed: 1, expired: 0, abandoned: 0 })
  expect(await client.keys('*')).toEqual([])
})

it('removes the index entries of a record that a new one has replaced', async () => {
  const clock = new FakeClock()
  const { client, store } = await setup({ clock })
  await settle(store, releaseOf(await hold(store)))
  clock.advance(RETENTION_MS)
  const second = ofKind(await claim(store), 'claimed')
  expect(second.from).toBe('expired')
  const nameOf = async (pattern: string) => (await client.keys(pattern))[0]!
  expect(await client.zrange(await nameOf('*due'), '0', '-1')).toEqual([second.recordId])
  expect(await client.hkeys(await nameOf('*ids'))).toEqual([second.recordId])
})

// By the clock of the server, records with a TTL are written at once, the others at the end.
it('applies two settlements of one record in the order of the batch', async () => {
  const { store } = await setup()
  const lease = await hold(store)
  const [doubt, complete] = await store.settle([doubtOf(lease), completeOf(lease)])
  expect([doubt!.kind, complete!.kind]).toEqual(['settled', 'settled'])
  expect((await viewOf(store, lease)).state).toBe('completed')
  expect(await store.list({ state: 'unknown', limit: 10 })).toEqual([])
})

it('lists records of all buckets in order, and sweeps them up to the limit', async () => {
  const clock = new FakeClock()
  const { store } = await setup({ clock })
  const long = 'n'.repeat(1000)
  for (let round = 0; round < 6; round++) {
    // The records of the first round have the longest leases.
    const requests = Array.from({ length: 100 }, (_, n) =>
      claimRequest({ key: `${round}-${n}`, operation: long, leaseMs: LEASE_MS - 10 * round }),
    )
    const outcomes = await store.claim(requests)
    const leases = outcomes.map((outcome) => ofKind(outcome, 'claimed').lease)
    await store.settle(leases.slice(0, 50).map((lease) => releaseOf(lease)))
    clock.advance(1)
  }
  for (const state of ['in_progress', 'failed_retryable'] as const) {
    const views = await store.list({ state, limit: 200 })
    expect(views.length).toBe(200)
    const times = views.map((view) => view.lastRunAt.getTime())
    expect(times).toEqual(times.toSorted((one, other) => one - other))
    expect(new Set(times).size).toBe(4)
    expect(views.every((view) => view.operation === long)).toBe(true)
  }
  clock.advance(10 * LEASE_MS)
  expect((await store.sweep({ limit: 250 })).length).toBe(250)
  expect((await store.sweep({ limit: 1000 })).length).toBe(50)
})

it.each(Object.keys(CONNECT) as (keyof typeof CONNECT)[])(
  'sends its scripts again when the script cache of the server was flushed: %s',
  async (driver) => {
    const client = await CONNECT[driver](server.url)
    const admin = connectIoRedis(server.url)
    const store = redisStore({ client, prefix: `flush-${driver}` })
    for (let round = 0; round < 3; round++) {
      await admin.script('FLUSH')
      const outcomes = await Promise.all(
        Array.from({ length: 5 }, (_, n) => claim(store, { key: `${round}-${n}` })),
      )
      await admin.script('FLUSH')
      const leases = outcomes.map((outcome) => ofKind(outcome, 'claimed').lease)
      await Promise.all(leases.map((lease) => settle(store, completeOf(lease))))
    }
    expect((await store.list({ state: 'completed', limit: 100 })).length).toBe(15)
  },
)

it('detects a server of a cluster behind a client for single servers', async () => {
  const node = await startRedis(['--cluster-enabled', 'yes'])
  try {
    const admin = connectIoRedis(node.url)
    await admin.call('CLUSTER', 'ADDSLOTSRANGE', '0', '16383')
    const isReady = async () => String(await admin.call('CLUSTER', 'INFO'))
    await expect.poll(isReady, { timeout: 10_000 }).toContain('cluster_state:ok')
    const client = await connectNodeRedis(node.url)
    const fresh = redisStore({ client })
    expect(await fresh.read({ recordId: claimRequest().recordId })).toBeUndefined()
    const store = redisStore({ client })
    const lane = () => store.batching!.lanes!.of(`07${'0'.repeat(30)}`)
    expect(lane()).toBeUndefined()
    const outcomes = await store.claim(claimRequests(200))
    for (const outcome of outcomes) ofKind(outcome, 'claimed')
    // From this call on, the engine sends each bucket separately.
    expect(lane()).toBe(7)
    expect((await store.list({ state: 'in_progress', limit: 1000 })).length).toBe(200)
  } finally {
    await node.close()
  }
})

it('uses the clock of the server, even if the clock of the node differs by an hour', async () => {
  const { client, store } = await setup()
  const serverMs = async () => Number((await client.time())[0]) * 1000
  const beforeMs = await serverMs()
  const lease = await hold(store)
  const { leaseUntil } = await viewOf(store, lease)
  expect(leaseUntil.getTime()).toBeGreaterThanOrEqual(beforeMs + LEASE_MS)
  expect(leaseUntil.getTime()).toBeLessThanOrEqual((await serverMs()) + 1000 + LEASE_MS)
  expect((await store.now()).getTime()).toBeGreaterThanOrEqual(beforeMs)
  // The clock of a node that is an hour ahead or behind has no influence.
  for (const hours of [1, -1]) {
    const engine = createEngine({ store, clock: new FakeClock(Date.now() + hours * 3_600_000) })
    const outcome = await engine.run(
      {
        scope: { tenant: 'tenant-1', operation: 'POST /payments' },
        key: 'key-1',
        fingerprint: 'fingerprint-1',
      },
      () => new Uint8Array(),
    )
    expect(outcome.kind).toBe('in_progress')
    expect(await store.sweep({ limit: 10 })).toEqual([])
  }
  ofKind(await settle(store, completeOf(lease)), 'settled')
})

it('rejects calls after close(), and leaves the client open', async () => {
  const { client, store } = await setup()
  await store.close()
  await expect(claim(store)).rejects.toThrow('closed')
  expect(await client.ping()).toBe('PONG')
})
