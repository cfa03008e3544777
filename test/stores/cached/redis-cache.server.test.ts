import { Cluster, Redis } from 'ioredis'
import { createClient, createCluster } from 'redis'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import {
  cachedStore,
  redisCache,
  type CachedStoreOptions,
  type RedisCacheClient,
} from '../../../src/stores/cached/index.ts'
import { sqliteStore } from '../../../src/stores/sqlite/index.ts'
import type { FakeClock } from '../../../src/testing/fake-clock.ts'
import {
  assertBytes,
  bytes,
  claim,
  claimRequest,
  finish,
  hold,
  ofKind,
} from '../../../src/testing/store-cases/store-case.ts'
import { startRedis, type RedisServer } from '../../servers/cache-redis.ts'
import { setupCached } from './setup.ts'
import { runStoreCases } from '../run-store-cases.ts'
import { scratchFolder } from '../scratch-folder.ts'

let server: RedisServer
let cluster: RedisServer
let ioredis: Redis
let nodeRedis: NodeRedis
let ioredisCluster: Cluster
let nodeRedisCluster: ReturnType<typeof createCluster>

const ignore = () => {}

beforeAll(async () => {
  ;[server, cluster] = await Promise.all([startRedis(), startRedis({ cluster: true })])
  ioredis = await openIoredis(server)
  nodeRedis = await openNodeRedis(server)
  ioredisCluster = new Cluster([{ host: '127.0.0.1', port: cluster.port }])
  nodeRedisCluster = createCluster({ rootNodes: [{ url: urlOf(cluster) }] })
  await nodeRedisCluster.connect()
}, 60_000)

afterAll(async () => {
  ioredis.disconnect()
  nodeRedis.destroy()
  ioredisCluster.disconnect()
  nodeRedisCluster.destroy()
  await Promise.all([server.close(), cluster.close()])
})

const urlOf = ({ port }: RedisServer) => `redis://127.0.0.1:${port}`

async function openIoredis({ port }: RedisServer): Promise<Redis> {
  const client = new Redis({ port, host: '127.0.0.1', retryStrategy: () => 20 })
  client.on('error', ignore)
  await client.ping()
  return client
}

type NodeRedis = ReturnType<typeof newNodeRedis>

function newNodeRedis(of: RedisServer) {
  return createClient({ url: urlOf(of), socket: { reconnectStrategy: 20 } })
}

async function openNodeRedis(of: RedisServer): Promise<NodeRedis> {
  const client = newNodeRedis(of)
  client.on('error', ignore)
  await client.connect()
  return client
}

const CLIENTS: readonly [string, () => RedisCacheClient][] = [
  ['ioredis', () => ioredis],
  ['node-redis', () => nodeRedis],
  ['a Cluster of ioredis', () => ioredisCluster],
  ['a cluster of node-redis', () => nodeRedisCluster],
]

/** A new prefix, so that tests do not share keys. */
const newPrefix = () => `test:${crypto.randomUUID()}:`

for (const [name, client] of CLIENTS.slice(0, 2)) {
  runStoreCases({
    name: `${name} cache over a sqlite store`,
    open: (clock: FakeClock) => {
      const folder = scratchFolder()
      const path = folder.file('records.db')
      const durable = sqliteStore({ path, clock, synchronous: 'normal', history: true })
      const cache = redisCache({ client: client(), prefix: newPrefix() })
      return { store: cachedStore({ durable, cache, clock }), cleanUp: folder.remove }
    },
    without: { discard: 'it is an act of the durable part of SQLite' },
  })
}

describe.each(CLIENTS)('redisCache with %s', (_, client) => {
  const fill = (text: string, expiresAtMs = 1000) => ({
    bytes: bytes(text),
    expiresAtMs,
    ttlMs: 60_000,
  })
  const newCache = () => {
    const cache = redisCache({ client: client(), prefix: newPrefix() })
    const get = async (identity: string) => {
      const [kept] = await cache.get([identity])
      return kept && Buffer.from(kept).toString()
    }
    return { cache, get }
  }

  it('redisCache returns every byte of each key', async () => {
    const { cache } = newCache()
    const all = Uint8Array.from({ length: 70_000 }, (__, n) => n % 256)
    await cache.fill('a', { ...fill(''), bytes: all })
    await cache.fill('b', fill(''))
    const [c, a, b] = await cache.get(['c', 'a', 'b'])
    assertBytes(a, all)
    expect([b?.length, c]).toEqual([0, undefined])
  })

  it('redisCache replaces an entry unless the entry expires later than the fill', async () => {
    const { cache, get } = newCache()
    await cache.fill('a', fill('first', 999))
    await cache.fill('a', fill('second', 1000))
    expect(await get('a')).toBe('second')
    await cache.fill('a', fill('same', 1000))
    expect(await get('a')).toBe('same')
    await cache.fill('a', fill('late', 999))
    expect(await get('a')).toBe('same')
  })

  it('redisCache ignores fills of a forgotten key until its tombstone expires', async () => {
    const { cache, get } = newCache()
    await cache.fill('a', fill('first'))
    await cache.forget('a', 60_000)
    expect(await get('a')).toBeUndefined()
    await cache.fill('a', fill('late', 2000))
    expect(await get('a')).toBeUndefined()
    await cache.forget('a', 1)
    await expect
      .poll(async () => {
        await cache.fill('a', fill('new'))
        return get('a')
      })
      .toBe('new')
  })

  it('redisCache lets Redis expire an entry after its ttlMs', async () => {
    const { cache, get } = newCache()
    await cache.fill('a', { ...fill('brief'), ttlMs: 1 })
    await expect.poll(() => get('a')).toBeUndefined()
  })
})

it('redisCache reads the buffers of a client that is configured to return them', async () => {
  const client = nodeRedis.withTypeMapping({ 36: Buffer })
  const cache = redisCache({ client, prefix: newPrefix() })
  await cache.fill('a', { bytes: bytes('bytes'), expiresAtMs: 1, ttlMs: 60_000 })
  assertBytes((await cache.get(['a']))[0], bytes('bytes'))
})

it('redisCache takes text of other programs for a miss, and rejects another type', async () => {
  const prefix = newPrefix()
  const cache = redisCache({ client: ioredis, prefix })
  await ioredis.set(`${prefix}text`, 'something else')
  await ioredis.set(`${prefix}digits`, 'rsixteen digits!!@@')
  await ioredis.rpush(`${prefix}list`, 'a list')
  expect(await cache.get(['text'])).toEqual([undefined])
  await cache.fill('digits', { bytes: bytes('own'), expiresAtMs: 1, ttlMs: 60_000 })
  assertBytes((await cache.get(['digits']))[0], bytes('own'))
  await expect(cache.get(['list'])).rejects.toThrow(/WRONGTYPE/)
})

/** A new server, and a cached store with a fake clock. */
async function setupServer(
  open: (server: RedisServer) => Promise<RedisCacheClient & { destroy?(): void }>,
  options: Partial<CachedStoreOptions> = {},
) {
  const own = await startRedis()
  onTestFinished(own.close)
  const client = await open(own)
  const world = setupCached({ cache: redisCache({ client }), ...options })
  // Repeats the claim until the fill has arrived and the cache answers.
  const untilHit = async () => {
    await expect
      .poll(() => world.isHit(() => claim(world.store)), { timeout: 20_000, interval: 5 })
      .toBe(true)
  }
  return { ...world, server: own, untilHit }
}

const DRIVERS = [
  [
    'ioredis',
    async (own: RedisServer) => {
      const client = await openIoredis(own)
      onTestFinished(() => client.disconnect())
      return client
    },
  ],
  [
    'node-redis',
    async (own: RedisServer) => {
      const client = await openNodeRedis(own)
      onTestFinished(() => client.destroy())
      return client
    },
  ],
] as const

describe.each(DRIVERS)('a cached store with %s', (_, open) => {
  it('the store answers while Redis is stopped, and uses the cache again afterwards', async () => {
    const { store, server: own, untilHit, advance, isHit, failures } = await setupServer(open)
    await finish(store)
    await untilHit()
    await own.stop()
    for (let n = 0; n < 20; n++) {
      ofKind(await claim(store), 'completed')
      await hold(store, { key: `while-stopped-${n}` })
    }
    expect(await isHit(() => claim(store))).toBe(false)
    expect(failures.length).toBeGreaterThan(0)
    expect(failures.length).toBeLessThanOrEqual(6)

    await own.start()
    // Redis is empty now. Each claim moves the clock past the break, and refills the reply.
    await expect
      .poll(
        async () => {
          await advance(5001)
          return isHit(() => claim(store, { retentionMs: 86_400_000 }))
        },
        { timeout: 20_000, interval: 20 },
      )
      .toBe(true)
  })

  it('a claim waits for a frozen Redis no longer than timeoutMs', async () => {
    const { store, server: own, untilHit, clock, advance } = await setupServer(open)
    await finish(store)
    await untilHit()
    own.freeze()
    for (let n = 0; n < 3; n++) {
      const answer = claim(store)
      await expect.poll(() => clock.pendingTimers).toBe(1)
      await advance(50)
      ofKind(await answer, 'completed')
    }
    // The cache is not asked from here on: answers need no time.
    for (let n = 0; n < 10; n++) ofKind(await claim(store), 'completed')
    own.thaw()
    await advance(5001)
    await untilHit()
  })
})

it('nodes share replies and tombstones through Redis', async () => {
  const prefix = newPrefix()
  const { store, durable, clock, advance, isHit } = setupCached({
    cache: redisCache({ client: ioredis, prefix }),
  })
  const cache = redisCache({ client: nodeRedis, prefix })
  const other = cachedStore({ durable: durable.store, cache, clock })
  for (const node of [store, other]) await hold(node, { key: crypto.randomUUID() })
  await advance(0)
  await finish(store)
  await expect.poll(() => isHit(() => claim(other))).toBe(true)
  await other.forget(claimRequest().identity)
  expect(await isHit(() => claim(store))).toBe(false)
  expect(await isHit(() => claim(store))).toBe(false)
})
