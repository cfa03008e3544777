import { expect, it } from 'vitest'
import { redisCache, type RedisCacheClient } from '../../../src/stores/cached/index.ts'
import { bytes } from '../../../src/testing/store-cases/store-case.ts'

// A disconnected driver would queue the commands and send them when they are outdated.
it.each([
  [{ status: 'reconnecting' }, false],
  [{ status: 'connecting' }, false],
  [{ status: 'end' }, false],
  [{ status: 'ready' }, true],
  [{ status: 'wait' }, true],
  [{ isReady: false }, false],
  [{ isReady: true }, true],
  [{}, true],
])('redisCache sends reads and fills only when connected: %j, %s', async (state, isSent) => {
  const sent: string[] = []
  const note = (command: string) => async () => void sent.push(command)
  const client = { ...state, get: note('get'), eval: note('eval') } as RedisCacheClient
  const cache = redisCache({ client })
  const fill = { bytes: bytes(''), expiresAtMs: 1, ttlMs: 1 }
  const calls = await Promise.allSettled([cache.get(['a']), cache.fill('a', fill)])
  expect(calls.map(({ status }) => status === 'fulfilled')).toEqual([isSent, isSent])
  expect(sent).toEqual(isSent ? ['get', 'eval'] : [])
  // An operator who discards a reply waits for the connection.
  await cache.forget('a', 60_000)
  expect(sent.at(-1)).toBe('eval')
})

it('redisCache refuses a value that is not a client, and a prefix that is not a string', () => {
  expect(() => redisCache({ client: {} as never })).toThrow(/client must be a client of ioredis/)
  expect(() => redisCache({} as never)).toThrow(/client must be a client of ioredis/)
  const client = { get: async () => null, eval: async () => null }
  expect(() => redisCache({ client, prefix: 1 as never })).toThrow(/prefix must be a string/)
})
