/** The store warns about missing options of a client, because only the client can apply them. */
import { Redis } from 'ioredis'
import mysql from 'mysql2/promise'
import { createClient } from 'redis'
import { expect, it, onTestFinished } from 'vitest'
import { redisCache } from '../../src/stores/cached/index.ts'
import { mysqlStore } from '../../src/stores/mysql/index.ts'
import { redisStore } from '../../src/stores/redis/index.ts'

/** Returns the warnings that `make` causes. Each warning is emitted once in a process. */
async function warningsOf(make: () => unknown): Promise<string[]> {
  const warnings: string[] = []
  const listener = (warning: Error) => warnings.push(warning.message)
  process.on('warning', listener)
  onTestFinished(() => void process.off('warning', listener))
  make()
  // Node emits warnings in the next turn of the event loop.
  await new Promise((resolve) => setImmediate(resolve))
  return warnings
}

const sentinels = [{ host: '127.0.0.1', port: 1 }]
const lazy = { lazyConnect: true } as const

it('does not warn if no client lacks an option', async () => {
  const warnings = await warningsOf(() => {
    mysqlStore({ pool: mysql.createPool({ connectTimeout: 3_000 }) })
    redisStore({ client: new Redis(lazy) })
    redisStore({ client: createClient({ socket: { socketTimeout: 3_000 } }) })
    redisCache({ client: new Redis(lazy) })
    const withSentinels = { ...lazy, sentinels, name: 'm', sentinelCommandTimeout: 2_000 }
    redisStore({ client: new Redis(withSentinels) })
  })
  expect(warnings).toEqual([])
})

it('warns once about the long connectTimeout of a mysql2 pool', async () => {
  const warnings = await warningsOf(() => {
    mysqlStore({ pool: mysql.createPool({}) })
    mysqlStore({ pool: mysql.createPool({}) })
  })
  expect(warnings).toEqual([
    expect.stringMatching(
      /^mysqlStore: the pool has a connectTimeout of 10000 ms\..*such as 3000$/,
    ),
  ])
})

it('warns about a node-redis client without socketTimeout', async () => {
  const warnings = await warningsOf(() => redisStore({ client: createClient() }))
  expect(warnings).toEqual([
    expect.stringMatching(/^redisStore: the client of redis has no socket\.socketTimeout.*3000/),
  ])
})

it('warns about an ioredis client with sentinels and without sentinelCommandTimeout', async () => {
  const warnings = await warningsOf(() =>
    redisStore({ client: new Redis({ ...lazy, sentinels, name: 'm' }) }),
  )
  expect(warnings).toEqual([
    expect.stringMatching(/^redisStore: the client of ioredis has no sentinelCommandTimeout/),
  ])
})
