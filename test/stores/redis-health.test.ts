import { expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../src/core/engine.ts'
import { redisStore, type RedisClient } from '../../src/stores/redis/index.ts'
import { replicaOf, startRedis, type RedisServer } from '../servers/redis.ts'
import { CONNECT } from './redis-setup.ts'

const DRIVERS = Object.keys(CONNECT) as (keyof typeof CONNECT)[]

function kept(server: RedisServer): RedisServer {
  onTestFinished(() => server.close())
  return server
}

function engineOf(client: RedisClient) {
  const engine = createEngine({ store: redisStore({ client }), onEvent: () => undefined })
  onTestFinished(async () => void (await engine.close()))
  return engine
}

it.each(DRIVERS)('is ready on a master, and not on a replica: %s', async (driver) => {
  const master = kept(await startRedis())
  const replica = kept(await replicaOf(master))
  expect(await engineOf(await CONNECT[driver](master.url)).health()).toMatchObject({
    status: 'ready',
    store: { state: 'answering' },
  })
  const { status, store } = await engineOf(await CONNECT[driver](replica.url)).health()
  expect([status, store.state]).toEqual(['unready', 'never_answered'])
  expect(store.error).toContain('connect to the master: this server takes no writes')
})

it('is not ready on a server that evicts, where every claim is refused', async () => {
  const server = kept(
    await startRedis(['--maxmemory', '64mb', '--maxmemory-policy', 'allkeys-lru']),
  )
  const { status, store } = await engineOf(await CONNECT.ioredis(server.url)).health()
  expect(status).toBe('unready')
  expect(store.error).toContain('Set maxmemory-policy noeviction')
})
