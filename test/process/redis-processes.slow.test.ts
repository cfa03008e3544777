import { afterAll, beforeAll, expect, it } from 'vitest'
import { Redis } from 'ioredis'
import { redisStore } from '../../src/stores/redis/index.ts'
import { startRedis, type RedisServer } from '../servers/redis.ts'
import { startWorker } from './worker-process.ts'

const RACERS = 20
const RACED_KEYS = 1000

let server: RedisServer

beforeAll(async () => {
  server = await startRedis()
}, 60_000)

afterAll(() => server.close())

it('gives each of 1,000 keys to one of 20 Redis processes', { timeout: 120_000 }, async () => {
  const racers = Array.from({ length: RACERS }, (_, n) => {
    const driver = n % 2 === 0 ? 'ioredis' : 'node-redis'
    return startWorker('redis-worker.ts', [driver, server.url, `${RACED_KEYS}`])
  })
  await Promise.all(racers.map((racer) => racer.written(1)))
  for (const racer of racers) racer.tell('go')
  const codes = await Promise.all(racers.map((racer) => racer.ended))
  expect(codes).toEqual(racers.map(() => 0))

  const keys = Array.from({ length: RACED_KEYS }, (_, n) => `key-${n}`).toSorted()
  expect(racers.flatMap((racer) => racer.lines.slice(1)).toSorted()).toEqual(keys)
  const client = new Redis(server.url)
  const store = redisStore({ client })
  const completed = await store.list({ state: 'completed', limit: 2 * RACED_KEYS })
  client.disconnect()
  expect(completed.map((view) => view.key).toSorted()).toEqual(keys)
  expect(completed.every((view) => view.attempt === 1)).toBe(true)
})
