import { once } from 'node:events'
import { Redis } from 'ioredis'
import { afterAll, beforeAll, expect, it, onTestFinished, vi } from 'vitest'
import { systemClock } from '../../../src/core/time/clock.ts'
import { redisCache } from '../../../src/stores/cached/index.ts'
import { startRedis, type RedisServer } from '../../servers/redis.ts'
import { startTcpProxy } from '../../servers/tcp-proxy.ts'

let server: RedisServer

beforeAll(async () => {
  server = await startRedis()
}, 60_000)
afterAll(() => server.close())

it('redisCache ends its connection only after 5 s of silence', async () => {
  const proxy = await startTcpProxy({ host: '127.0.0.1', port: server.port })
  onTestFinished(() => proxy.close())
  const client = new Redis(`redis://127.0.0.1:${proxy.port}`)
  client.on('error', () => undefined)
  onTestFinished(() => client.disconnect())
  await once(client, 'ready')
  const cache = redisCache({ client })
  const { stream } = client
  const giveUpOn = async (call: (signal: AbortSignal) => Promise<unknown>) => {
    const givenUp = new AbortController()
    const called = call(givenUp.signal)
    givenUp.abort(new Error('no answer'))
    await expect(called).rejects.toThrow('no answer')
  }
  const entry = { bytes: new Uint8Array(1), expiresAtMs: 1, ttlMs: 1_000 }

  proxy.silence()
  await giveUpOn((signal) => cache.get(['a', 'b'], signal))
  await giveUpOn((signal) => cache.fill('a', entry, signal))
  await giveUpOn((signal) => cache.forget('a', 1, signal))
  expect(stream.destroyed).toBe(false)

  const aheadMs = 5_000
  const now = systemClock.monotonicMs.bind(systemClock)
  vi.spyOn(systemClock, 'monotonicMs').mockImplementation(() => now() + aheadMs)
  onTestFinished(() => void vi.restoreAllMocks())
  const back = once(client, 'ready')
  proxy.resume('dead')
  await giveUpOn((signal) => cache.get(['a'], signal))
  expect(stream.destroyed).toBe(true)
  await back
  expect(await cache.get(['a'])).toEqual([undefined])
})
