/** Our stores, set up as in their guides. */
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { Redis } from 'ioredis'
import mysql from 'mysql2/promise'
import pg from 'pg'
import type { Store } from '../../src/core/store/store.ts'
import { cachedStore, redisCache } from '../../src/stores/cached/index.ts'
import { memoryStore } from '../../src/stores/memory/store.ts'
import { mysqlStore } from '../../src/stores/mysql/index.ts'
import { postgresStore } from '../../src/stores/postgres/index.ts'
import { redisStore } from '../../src/stores/redis/index.ts'
import { sqliteStore } from '../../src/stores/sqlite/index.ts'
import type { Places } from '../run/contract.ts'
import { CONNECTIONS } from '../run/work.ts'

/** As in the guides: below the engine's `storeTimeoutMs`. */
const CONNECT_MS = 3_000

export const STORES = [
  'memory',
  'sqlite-full',
  'sqlite-normal',
  'postgres',
  'mariadb',
  'redis',
  'cached',
] as const

export type StoreName = (typeof STORES)[number]

export interface OpenStore {
  readonly store: Store
  /** Runs a statement of the application, if there is a database. */
  readonly execute?: (sql: string) => Promise<unknown>
  /** Removes everything between rounds, because the data is in memory. */
  readonly flush?: () => Promise<unknown>
  readonly close: () => Promise<void>
}

/** Idle connections are closed soon: many programs share one server and its default limit. */
const IDLE_MS = 2_000

export async function openStore(name: StoreName, places: Places): Promise<OpenStore> {
  switch (name) {
    case 'memory':
      return { store: memoryStore(), close: async () => undefined }
    case 'sqlite-full':
    case 'sqlite-normal':
      return openSqlite(places, name === 'sqlite-full' ? 'full' : 'normal')
    case 'postgres':
      return openPostgres(places)
    case 'mariadb':
      return openMariadb(places)
    case 'redis':
      return openRedis(places)
    case 'cached':
      return openCached(places)
  }
}

export function openPool(places: Places, options: pg.PoolConfig = {}): pg.Pool {
  return new pg.Pool({
    connectionString: addressOf(places, 'postgres'),
    max: CONNECTIONS,
    idleTimeoutMillis: IDLE_MS,
    connectionTimeoutMillis: CONNECT_MS,
    ...options,
  })
}

export function addressOf(places: Places, server: 'postgres' | 'mariadb' | 'redis'): string {
  const address = places[server]
  if (address === undefined) throw new Error(`this program has no ${server} server`)
  return address
}

async function openSqlite({ folder }: Places, synchronous: 'full' | 'normal'): Promise<OpenStore> {
  const path = join(folder, `${synchronous}.db`)
  const store = sqliteStore({ path, synchronous })
  const execute = async (sql: string) => {
    const database = new DatabaseSync(path)
    database.exec(sql)
    database.close()
  }
  return { store, execute, close: () => store.close() }
}

async function openPostgres(places: Places): Promise<OpenStore> {
  const pool = openPool(places)
  const store = postgresStore({ pool })
  await store.migrate()
  const close = async () => {
    await store.close()
    await pool.end()
  }
  return { store, execute: (sql) => pool.query(sql), close }
}

async function openMariadb(places: Places): Promise<OpenStore> {
  const pool = mysql.createPool({
    uri: addressOf(places, 'mariadb'),
    connectionLimit: CONNECTIONS,
    connectTimeout: CONNECT_MS,
  })
  const store = mysqlStore({ pool })
  await store.migrate()
  return { store, execute: (sql) => pool.query(sql), close: () => pool.end() }
}

async function openRedis(places: Places): Promise<OpenStore> {
  const client = new Redis(addressOf(places, 'redis'))
  const store = redisStore({ client })
  const close = async () => {
    await store.close()
    await client.quit()
  }
  return { store, flush: () => client.flushdb(), close }
}

async function openCached(places: Places): Promise<OpenStore> {
  const { store: durable, close: closeDurable } = await openPostgres(places)
  const client = new Redis(addressOf(places, 'redis'))
  const store = cachedStore({ durable, cache: redisCache({ client }) })
  const close = async () => {
    await closeDurable()
    await client.quit()
  }
  return { store, close }
}
