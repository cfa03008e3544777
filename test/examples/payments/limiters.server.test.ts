/** The limiters of the reference service, which nodes share through its database. */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { Redis } from 'ioredis'
import mysql from 'mysql2/promise'
import pg from 'pg'
import type { RateLimiterAbstract } from 'rate-limiter-flexible'
import { afterAll, beforeAll, describe, expect, it, onTestFinished, vi } from 'vitest'
import type { Database } from '../../../examples/payments/database/database.ts'
import type { Limit } from '../../../examples/payments/database/driver.ts'
import * as onMysql from '../../../examples/payments/database/mysql-limiter.ts'
import * as onPostgres from '../../../examples/payments/database/postgres-limiter.ts'
import { createLimits } from '../../../examples/payments/limits.ts'
import { startMariadb } from '../../servers/mariadb.ts'
import { startPostgres } from '../../servers/postgres.ts'
import { startSharedRedis } from '../../servers/redis.ts'
import { startTcpProxy, type TcpProxy } from '../../servers/tcp-proxy.ts'

/** Opens a limiter of a node, with a separate pool. */
type OpenNode = (limit: Limit) => RateLimiterAbstract

interface Shared {
  readonly open: OpenNode
  readonly proxy: TcpProxy
  /** A part of the statement that takes points. */
  readonly upsert: string
}

interface SharedServer {
  readonly prepare: () => Promise<Shared>
  readonly close: () => Promise<void>
}

/** A connection attempt that gets no answer must not hold up a test. */
const CONNECT_MS = 1_000

async function proxyTo(url: string): Promise<TcpProxy> {
  const { hostname: host, port } = new URL(url)
  const proxy = await startTcpProxy({ host, port: Number(port) })
  onTestFinished(proxy.close)
  return proxy
}

async function startPostgresNodes(): Promise<SharedServer> {
  const server = await startPostgres()
  const prepare = async () => {
    const url = await server.database()
    const proxy = await proxyTo(url)
    const openPool = () => {
      const connectionString = proxy.through(url)
      const limits = { max: 1, connectionTimeoutMillis: CONNECT_MS }
      const pool = new pg.Pool({ connectionString, ...limits })
      pool.on('error', () => undefined)
      onTestFinished(() => pool.end())
      return pool
    }
    await openPool().query(onPostgres.LIMIT_TABLE)
    const open: OpenNode = (limit) => onPostgres.createPostgresLimiter(openPool(), limit)
    return { open, proxy, upsert: 'ON CONFLICT' }
  }
  return { prepare, close: () => server.close() }
}

async function startMariadbNodes(): Promise<SharedServer> {
  const server = await startMariadb()
  const prepare = async () => {
    const url = await server.database()
    const proxy = await proxyTo(url)
    const openPool = () => {
      const limits = { connectionLimit: 1, connectTimeout: CONNECT_MS }
      const pool = mysql.createPool({ uri: proxy.through(url), ...limits })
      onTestFinished(() => pool.end())
      return pool
    }
    await openPool().query(onMysql.LIMIT_TABLE)
    const name = new URL(url).pathname.slice(1)
    const open: OpenNode = (limit) => onMysql.createMysqlLimiter(openPool(), name, limit)
    return { open, proxy, upsert: 'ON DUPLICATE KEY' }
  }
  return { prepare, close: () => server.close() }
}

describe.each([
  ['PostgreSQL', startPostgresNodes],
  ['MariaDB', startMariadbNodes],
] as const)('limiters on %s', (_, start) => {
  let server: SharedServer

  beforeAll(async () => {
    server = await start()
  })
  afterAll(() => server?.close())

  it('count the points of two nodes together', async () => {
    const { open } = await server.prepare()
    const [left, right] = [1, 2].map(() => open({ name: 'new-keys', perSecond: 3 })) as [
      RateLimiterAbstract,
      RateLimiterAbstract,
    ]
    const refused = await vi.waitUntil(async () => {
      const tenant = randomUUID()
      await left.consume(tenant)
      await right.consume(tenant)
      await left.consume(tenant)
      const state = await right.get(tenant)
      // On a slow machine, the second may have ended in between.
      return state?.consumedPoints === 3 && { tenant, state }
    })
    expect(refused.state.remainingPoints).toBe(0)
    expect(refused.state.msBeforeNext).toBeLessThanOrEqual(1_000)
  })

  it('keep the counts of names, and of tenants that differ in case, apart', async () => {
    const { open } = await server.prepare()
    const [keys, lookUps] = ['new-keys', 'look-ups'].map((name) =>
      open({ name, perSecond: 1 }),
    ) as [RateLimiterAbstract, RateLimiterAbstract]
    const tenant = `acme-${randomUUID()}`
    await keys.consume(tenant)
    expect((await lookUps.consume(tenant)).consumedPoints).toBe(1)
    expect((await keys.consume(tenant.toUpperCase())).consumedPoints).toBe(1)
  })

  it('refuse a request above the limit with a state, not with an error', async () => {
    const { open } = await server.prepare()
    const limiter = open({ name: 'look-ups', perSecond: 1 })
    const refusal = await vi.waitUntil(async () => {
      const user = randomUUID()
      await limiter.consume(user)
      return limiter.consume(user).then(
        () => undefined,
        (reason: unknown) => reason,
      )
    })
    expect(refusal).not.toBeInstanceOf(Error)
    expect(refusal).toMatchObject({ msBeforeNext: expect.any(Number) })
  })

  it('fail when a connection is lost within a call, and work again on the next one', async () => {
    const { open, proxy, upsert } = await server.prepare()
    const limiter = open({ name: 'new-keys', perSecond: 100 })
    await limiter.consume('acme')
    const lost = proxy.once('answer lost', upsert)
    await expect(limiter.consume('acme')).rejects.toBeInstanceOf(Error)
    await lost
    expect(await vi.waitUntil(() => isCounting(limiter))).toBe(true)
  })

  it('fail when the database does not answer, and free their connection', async () => {
    const { open, proxy } = await server.prepare()
    const limiter = open({ name: 'new-keys', perSecond: 100 })
    await limiter.consume('acme')
    proxy.silence()
    await expect(limiter.consume('acme')).rejects.toBeInstanceOf(Error)
    // The old connection stays silent for ever, and the pool has no other.
    proxy.resume('dead')
    expect(await vi.waitUntil(() => isCounting(limiter))).toBe(true)
  })
})

/** A pool notices a closed connection at the latest when it is used. */
const isCounting = (limiter: RateLimiterAbstract) =>
  limiter.consume('acme').then(
    () => true,
    () => false,
  )

describe('the limits of a service with Redis', () => {
  it('count in Redis, so that replays cost the database nothing', async () => {
    const server = await startSharedRedis()
    const redis = new Redis(server.url)
    onTestFinished(async () => {
      redis.disconnect()
      await server.close()
    })
    await once(redis, 'ready')
    const limiter = () => {
      throw new Error('the database must not be asked')
    }
    const settings = { newKeysPerSecond: 5, lookUpsPerSecond: 1, inFlightMax: 7 }
    const database = { limiter } as unknown as Database
    const { newKeys, lookUps, inFlight } = createLimits({ database, redis, settings })
    const tenant = randomUUID()
    expect(await newKeys!.consume(tenant)).toMatchObject({ remainingPoints: 4 })
    expect(await lookUps!.consume(tenant)).toMatchObject({ remainingPoints: 0 })
    expect(inFlight).toBe(7)
  })

  it('fail at once while Redis cannot be reached, so that no request waits for it', async () => {
    const redis = new Redis('redis://127.0.0.1:1', { lazyConnect: true })
    onTestFinished(() => redis.disconnect())
    const settings = { newKeysPerSecond: 5, lookUpsPerSecond: 0, inFlightMax: 0 }
    const { newKeys } = createLimits({ database: {} as Database, redis, settings })
    await expect(newKeys!.consume('acme')).rejects.toThrow('Redis connection is not ready')
  })
})

describe('limits that are switched off', () => {
  it('are left out', () => {
    const settings = { newKeysPerSecond: 0, lookUpsPerSecond: 0, inFlightMax: 0 }
    expect(createLimits({ database: {} as Database, redis: undefined, settings })).toEqual({})
  })
})
