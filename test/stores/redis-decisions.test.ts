import type { Redis } from 'ioredis'
import { afterAll, beforeAll, expect, it } from 'vitest'
import type { Clock } from '../../src/core/clock.ts'
import { redisStore, type RedisClient } from '../../src/stores/redis/index.ts'
import { STATE_CODES } from '../../src/stores/redis/scripts.ts'
import { newTestPrefix, startSharedRedis } from '../servers/redis.ts'
import { playHistories } from './play-histories.ts'
import { connectIoRedis } from './redis-setup.ts'

const HISTORIES = 10

let server: Awaited<ReturnType<typeof startSharedRedis>>

beforeAll(async () => {
  server = await startSharedRedis()
}, 60_000)

afterAll(() => server.close())

it('decides like every other store, whatever happens in whichever order', async () => {
  const client = connectIoRedis(server.url)
  const open = (clock: Clock) => redisStore({ client, clock, prefix: newTestPrefix() })
  await playHistories({ count: HISTORIES, open })
})

// By the server's clock some records are written at once, and with the time at which they vanish.
it('decides the same about records that vanish by themselves', async () => {
  const client = connectIoRedis(server.url)
  const prefixes: string[] = []
  const open = (clock: Clock) => {
    prefixes.push(newTestPrefix())
    return redisStore({ client: vanishing(client), clock, prefix: prefixes.at(-1)! })
  }
  await playHistories({ count: HISTORIES, open })

  let vanish = 0
  for (const prefix of prefixes) {
    const names = await client.keys(`${prefix}:*`)
    for (const name of names.filter((one) => /[0-9a-f]{32}$/.test(one))) {
      const data = await client.getBuffer(name)
      const state = STATE_CODES[data![1]!]
      const mayVanish = state === 'completed' || state === 'failed_retryable'
      const isKept = data![AFTER_EXPIRY_AT] === REFUSE
      const doesVanish = (await client.pttl(name)) > 0
      expect([state, isKept, doesVanish]).toEqual([state, isKept, mayVanish && !isKept])
      if (doesVanish) vanish++
    }
  }
  expect(vanish).toBeGreaterThan(0)
})

/** Where the head of a record has its `afterExpiry`, and its code for `refuse`. */
const AFTER_EXPIRY_AT = 29
const REFUSE = 2

/** A client whose scripts take a test's clock for the server's, long before its own time is up. */
function vanishing(client: Redis): RedisClient {
  return {
    isCluster: false,
    duplicate: () => {
      throw new Error('nobody waits for replicas here')
    },
    callBuffer: (command, ...args) => {
      if (command === 'EVALSHA') return Promise.reject(new Error('NOSCRIPT'))
      if (command !== 'EVAL') return client.callBuffer(command, ...args)
      const script = String(args[0])
      const changed = script
        .replace('if vanishAt and real then', 'if vanishAt then')
        .replace('+ 86400000)', '+ 1e12)')
      expect(changed.includes('1e12')).toBe(script.includes('PXAT'))
      return client.callBuffer(command, changed, ...args.slice(1))
    },
  }
}
