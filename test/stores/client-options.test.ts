/** Options of clients that only the client can heed: the store says which one is missing. */
import { Redis } from 'ioredis'
import mysql from 'mysql2/promise'
import { createClient } from 'redis'
import { expect, it, onTestFinished } from 'vitest'
import { redisCache } from '../../src/stores/cached/index.ts'
import { mysqlStore } from '../../src/stores/mysql/index.ts'
import { redisStore } from '../../src/stores/redis/index.ts'

/** What is warned of while `make` runs. Each warning comes once in the life of a process. */
async function warningsOf(make: () => unknown): Promise<string[]> {
  const warnings: string[] = []
  const hear = (warning: Error) => warnings.push(warning.message)
  process.on('warning', hear)
  onTestFinished(() => void process.off('warning', hear))
  make()
  // Warnings are told in the next turn.
  await new Promise((resolve) => setImmediate(resolve))
  return warnings
}

const sentinels = [{ host: '127.0.0.1', port: 1 }]
const lazy = { lazyConnect: true } as const

it('says nothing where nothing is missing', async () => {
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

it('names the connectTimeout of a mysql2 pool, once', async () => {
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

it('names the socketTimeout of a client of redis', async () => {
  const warnings = await warningsOf(() => redisStore({ client: createClient() }))
  expect(warnings).toEqual([
    expect.stringMatching(/^redisStore: the client of redis has no socket\.socketTimeout.*3000/),
  ])
})

it('names the sentinelCommandTimeout of a client of ioredis', async () => {
  const warnings = await warningsOf(() =>
    redisStore({ client: new Redis({ ...lazy, sentinels, name: 'm' }) }),
  )
  expect(warnings).toEqual([
    expect.stringMatching(/^redisStore: the client of ioredis has no sentinelCommandTimeout/),
  ])
})
