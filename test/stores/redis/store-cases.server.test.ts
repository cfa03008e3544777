import { Cluster, Redis } from 'ioredis'
import { createClient, createCluster } from 'redis'
import { afterAll, beforeAll } from 'vitest'
import { redisStore, type RedisClient } from '../../../src/stores/redis/index.ts'
import { newTestPrefix, startRedisCluster, startSharedRedis } from '../../servers/redis.ts'
import { runStoreCases } from '../run-store-cases.ts'

let url: string
let ports: readonly number[]
const closes: (() => Promise<unknown>)[] = []

beforeAll(async () => {
  const [server, cluster] = await Promise.all([startSharedRedis(), startRedisCluster()])
  closes.push(server.close, cluster.close)
  url = server.url
  ports = cluster.nodes.map(({ port }) => port)
}, 120_000)

afterAll(async () => {
  for (const close of closes.toReversed()) await close()
})

const CLIENTS: Readonly<Record<string, () => Promise<RedisClient>>> = {
  'redis, ioredis': async () => {
    const client = new Redis(url)
    closes.push(() => client.quit())
    return client
  },
  'redis, node-redis': async () => {
    const client = createClient({ url })
    await client.connect()
    closes.push(() => client.close())
    return client
  },
  'redis, ioredis with a keyPrefix': async () => {
    const client = new Redis(url, { keyPrefix: 'shop:' })
    closes.push(() => client.quit())
    return client
  },
  'redis cluster, ioredis': async () => {
    const cluster = new Cluster(ports.map((port) => ({ host: '127.0.0.1', port })))
    closes.push(() => cluster.quit())
    return cluster
  },
  'redis cluster, node-redis': async () => {
    const rootNodes = ports.map((port) => ({ url: `redis://127.0.0.1:${port}` }))
    const cluster = createCluster({ rootNodes })
    await cluster.connect()
    closes.push(() => cluster.close())
    return cluster
  },
}

for (const [name, connect] of Object.entries(CLIENTS)) {
  let client: RedisClient | undefined

  runStoreCases({
    name,
    open: async (clock) => {
      client ??= await connect()
      // Nothing has to be removed: a store with a new prefix is empty.
      const prefix = newTestPrefix()
      return { store: redisStore({ client, prefix, clock }) }
    },
    without: {
      transaction: 'the rows of the caller are not in Redis, so nothing commits with the key',
      history: 'a cache server is not an archive',
    },
  })
}
