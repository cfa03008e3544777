import type { Redis } from 'ioredis'
import { afterAll, beforeAll, expect, it } from 'vitest'
import type { Clock } from '../../../src/core/time/clock.ts'
import { redisStore, type RedisClient } from '../../../src/stores/redis/index.ts'
import { STATE_CODES } from '../../../src/stores/redis/scripts/prelude.ts'
import { newTestPrefix, startSharedRedis } from '../../servers/redis.ts'
import { playHistories } from '../play-histories.ts'
import { playRefusals } from './play-refusals.ts'
import { connectIoRedis } from './setup.ts'

const HISTORIES = 10

let server: Awaited<ReturnType<typeof startSharedRedis>>

beforeAll(async () => {
  server = await startSharedRedis()
}, 60_000)

afterAll(() => server.close())

it('decides like the in-memory store in random histories', async () => {
  const client = connectIoRedis(server.url)
  const open = (clock: Clock) => redisStore({ client, clock, prefix: newTestPrefix() })
  await playHistories({ count: HISTORIES, open })
})

// By the clock of the server, records with a TTL are written at once, each with its own command.
it('decides like the in-memory store about records that get a TTL', async () => {
  const client = connectIoRedis(server.url)
  const prefixes: string[] = []
  const open = (clock: Clock) => {
    prefixes.push(newTestPrefix())
    return redisStore({ client: withTtls(client), clock, prefix: prefixes.at(-1)! })
  }
  await playHistories({ count: HISTORIES, open })

  let withTtl = 0
  for (const prefix of prefixes) {
    const names = await client.keys(`${prefix}:*`)
    for (const name of names.filter((one) => /[0-9a-f]{32}$/.test(one))) {
      const data = await client.getBuffer(name)
      const state = STATE_CODES[data![1]!]
      const mayExpire = state === 'completed' || state === 'failed_retryable'
      const isKept = data![AFTER_EXPIRY_AT] === REFUSE
      const hasTtl = (await client.pttl(name)) > 0
      expect([state, isKept, hasTtl]).toEqual([state, isKept, mayExpire && !isKept])
      if (hasTtl) withTtl++
    }
  }
  expect(withTtl).toBeGreaterThan(0)
})

it.each(['by a test clock', 'with TTLs'])(
  'decides like the in-memory store about look-ups, seeds, refusals and discards: %s',
  async (kind) => {
    const client = connectIoRedis(server.url)
    let prefix = ''
    const open = (clock: Clock) => {
      prefix = newTestPrefix()
      const used = kind === 'with TTLs' ? withTtls(client) : client
      return redisStore({ client: used, clock, prefix })
    }
    // No entry of an index is left behind, and no record is without one.
    const check = async (records: number) => {
      const ids: string[] = []
      const due: string[] = []
      for (const name of await client.keys(`${prefix}:*:ids`))
        ids.push(...(await client.hkeys(name)))
      for (const name of await client.keys(`${prefix}:*:due`)) {
        due.push(...(await client.zrange(name, '0', '-1')))
      }
      expect(ids.length).toBe(records)
      expect(due.filter((id) => !id.startsWith('@')).toSorted()).toEqual(ids.toSorted())
      const seconds = due.filter((id) => id.startsWith('@')).map((id) => id.slice(1))
      expect(ids).toEqual(expect.arrayContaining(seconds))
    }
    await playRefusals({ count: HISTORIES, open, check })
  },
)

/** Position of `afterExpiry` in the head of a record, and its code for `refuse`. */
const AFTER_EXPIRY_AT = 29
const REFUSE = 2

/**
 * A client whose scripts set TTLs by a test's clock, too. The TTLs are so long that no record
 * expires during the test.
 */
function withTtls(client: Redis): RedisClient {
  return {
    isCluster: false,
    duplicate: () => {
      throw new Error('the store must not open a connection for replicas')
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
