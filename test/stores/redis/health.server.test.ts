import { expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { redisStore, type RedisClient } from '../../../src/stores/redis/index.ts'
import { replicaOf, startRedis, type RedisServer } from '../../servers/redis.ts'
import { CONNECT } from './setup.ts'

const DRIVERS = Object.keys(CONNECT) as (keyof typeof CONNECT)[]

function closedAfterTest(server: RedisServer): RedisServer {
  onTestFinished(() => server.close())
  return server
}

function engineOf(client: RedisClient) {
  const engine = createEngine({ store: redisStore({ client }), onEvent: () => undefined })
  onTestFinished(async () => void (await engine.close()))
  return engine
}

it.each(DRIVERS)('reports ready on a master, and unready on a replica: %s', async (driver) => {
  const master = closedAfterTest(await startRedis())
  const replica = closedAfterTest(await replicaOf(master))
  expect(await engineOf(await CONNECT[driver](master.url)).health()).toMatchObject({
    status: 'ready',
    store: { state: 'answering' },
  })
  const { status, store } = await engineOf(await CONNECT[driver](replica.url)).health()
  expect([status, store.state]).toEqual(['unready', 'never_answered'])
  expect(store.error).toContain('connect to the master: this server is read-only')
})

it('reports unready on a server that evicts, where every claim fails', async () => {
  const server = closedAfterTest(
    await startRedis(['--maxmemory', '64mb', '--maxmemory-policy', 'allkeys-lru']),
  )
  const { status, store } = await engineOf(await CONNECT.ioredis(server.url)).health()
  expect(status).toBe('unready')
  expect(store.error).toContain('Set maxmemory-policy noeviction')
})
