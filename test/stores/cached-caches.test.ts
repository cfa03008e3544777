import { expect, it } from 'vitest'
import { inTime } from '../../src/stores/cached/in-time.ts'
import { memoryCache, redisCache, type RedisCacheClient } from '../../src/stores/cached/index.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import { bytes } from '../../src/testing/store-cases/store-case.ts'

it('keeps as many replies in memory as it may, those asked for last', async () => {
  const cache = memoryCache({ entriesMax: 2, bytesMax: 1000 })
  const fill = (length: number) => ({
    bytes: new Uint8Array(length),
    expiresAtMs: 1,
    ttlMs: 60_000,
  })
  const kept = async () => {
    const found = await cache.get(['a', 'b', 'c'])
    return ['a', 'b', 'c'].filter((_, n) => found[n] !== undefined)
  }
  await cache.fill('a', fill(1))
  await cache.fill('b', fill(1))
  await cache.get(['a'])
  await cache.fill('c', fill(1))
  expect(await kept()).toEqual(['a', 'c'])
  await cache.fill('b', fill(500))
  expect(await kept()).toEqual(['b', 'c'])
  await cache.fill('c', fill(500))
  expect(await kept()).toEqual(['c'])
  await cache.fill('a', fill(1001))
  expect(await kept()).toEqual([])

  await cache.forget('a', 60_000)
  await cache.forget('b', 60_000)
  await cache.forget('b', 60_000)
  await expect(cache.forget('c', 60_000)).rejects.toThrow('keeps 2 keys out already')
})

// Drivers would keep the commands back, and send them when nobody wants them any more.
it.each([
  [{ status: 'reconnecting' }, false],
  [{ status: 'connecting' }, false],
  [{ status: 'end' }, false],
  [{ status: 'ready' }, true],
  [{ status: 'wait' }, true],
  [{ isReady: false }, false],
  [{ isReady: true }, true],
  [{}, true],
])('sends reads and fills over the client %j: %s', async (state, isSent) => {
  const sent: string[] = []
  const note = (command: string) => async () => void sent.push(command)
  const client = { ...state, get: note('get'), eval: note('eval') } as RedisCacheClient
  const cache = redisCache({ client })
  const fill = { bytes: bytes(''), expiresAtMs: 1, ttlMs: 1 }
  const calls = await Promise.allSettled([cache.get(['a']), cache.fill('a', fill)])
  expect(calls.map(({ status }) => status === 'fulfilled')).toEqual([isSent, isSent])
  expect(sent).toEqual(isSent ? ['get', 'eval'] : [])
  // An operator's order is worth waiting for.
  await cache.forget('a', 60_000)
  expect(sent.at(-1)).toBe('eval')
})

it('refuses the options of a cache that make no sense', () => {
  expect(() => memoryCache({ entriesMax: 0 })).toThrow(/entriesMax must be a whole number/)
  expect(() => memoryCache({ ttl: 1 } as never)).toThrow(/no option "ttl"/)
  expect(() => redisCache({ client: {} as never })).toThrow(/client must be a client of ioredis/)
  expect(() => redisCache({} as never)).toThrow(/client must be a client of ioredis/)
  const client = { get: async () => null, eval: async () => null }
  expect(() => redisCache({ client, prefix: 1 as never })).toThrow(/prefix must be a string/)
})

it('counts an answer that had arrived while the process was busy', async () => {
  const clock = new FakeClock()
  let afterInput = () => {}
  clock.soon = (run) => {
    afterInput = run
  }
  const answers = [Promise.withResolvers<string>(), Promise.withResolvers<string>()] as const
  const outcomes = answers.map(({ promise }) => inTime(clock, 50, () => promise).catch(String))
  clock.advance(50)
  answers[0].resolve('in time')
  expect(await outcomes[0]).toBe('in time')
  afterInput()
  expect(await outcomes[1]).toBe('Error: no answer within 50 ms')
  expect(clock.pendingTimers).toBe(0)
})
