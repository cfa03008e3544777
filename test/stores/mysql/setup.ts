import mysql, { type Pool, type PoolConnection, type PoolOptions } from 'mysql2/promise'
import { afterAll, beforeAll, expect, onTestFinished } from 'vitest'
import type { Lease } from '../../../src/core/store/store.ts'
import {
  mysqlStore,
  type MysqlStore,
  type MysqlStoreOptions,
} from '../../../src/stores/mysql/index.ts'
import { bytes, RETENTION_MS } from '../../../src/testing/store-cases/store-case.ts'
import type { MysqlPoolConnection, MysqlPromisePool } from '../../../src/stores/mysql/client.ts'
import { startMariadb, type MariadbServer } from '../../servers/mariadb.ts'

/** One server for the test file, and a new database for each test. */
export function useMariadb(options: { private?: boolean } = {}) {
  let server: MariadbServer | undefined
  beforeAll(async () => {
    server = await startMariadb(options)
  }, 120_000)
  afterAll(() => server?.close())

  return async () => {
    if (server === undefined) throw new Error('there is no server')
    const own = server
    const url = await own.database()
    /** `settings` is the first statement on every connection of the pool. */
    const connect = (more: PoolOptions = {}, settings?: string): Pool => {
      const pool = mysql.createPool({ uri: url, ...more })
      if (settings !== undefined) {
        // At run time this is the callback connection, contrary to its type.
        pool.on('connection', (connection) => void connection.query(settings))
      }
      onTestFinished(() => pool.end().catch(() => undefined))
      return pool
    }
    const app = connect({ connectionLimit: 2 })
    await app.query('CREATE TABLE payment (`key` VARCHAR(255)) ENGINE = InnoDB')

    /** The first column of every row. */
    const column = async (sql: string): Promise<unknown[]> => {
      const [rows] = await app.query<mysql.RowDataPacket[]>({ sql, rowsAsArray: true })
      return rows.map((row) => row[0] as unknown)
    }
    const open = async (more: Partial<MysqlStoreOptions> = {}): Promise<MysqlStore> => {
      const store = mysqlStore({ pool: connect(), ...more })
      await store.migrate()
      return store
    }
    const paid = () => column('SELECT `key` FROM payment ORDER BY `key`')
    return { server: own, url, connect, app, column, open, paid }
  }
}

export const completion = (text = 'done') => ({ result: bytes(text), retentionMs: RETENTION_MS })

export const pay = (tx: Pick<PoolConnection, 'query'>, row: string) =>
  tx.query('INSERT INTO payment VALUES (?)', [row])

/** A transaction that has written a row and stays open until `finish` is called. */
export async function openTransaction(store: MysqlStore, lease: Lease, row: string) {
  const entered = Promise.withResolvers<void>()
  const finished = Promise.withResolvers<void>()
  const outcome = store.transaction<PoolConnection>(lease, async (tx) => {
    await pay(tx, row)
    entered.resolve()
    await finished.promise
    return completion(row)
  })
  await Promise.race([entered.promise, outcome])
  return { outcome, finish: finished.resolve }
}

/** A pool that calls and awaits `tell` with every statement before it is sent. */
export function telling(pool: Pool, tell: (sql: string) => unknown): MysqlPromisePool {
  return {
    pool: pool.pool,
    getConnection: async (): Promise<MysqlPoolConnection> => {
      const connection = await pool.getConnection()
      return {
        query: async (query) => {
          await tell(query.sql)
          return connection.query(query as never)
        },
        release: () => connection.release(),
        destroy: () => connection.destroy(),
      }
    },
  }
}

/**
 * Waits until the transactions of killed processes have ended. The server notices a lost client
 * only when it next reads from the connection or writes to it.
 */
export async function untilGone(column: (sql: string) => Promise<unknown[]>): Promise<void> {
  const others = `SELECT COUNT(*) FROM information_schema.processlist
    WHERE db = DATABASE() AND command <> 'Sleep' AND id <> CONNECTION_ID()`
  const open = 'SELECT COUNT(*) FROM information_schema.innodb_trx'
  // InnoDB caches this table for 0.1 s after each read.
  const poll = { timeout: 10_000, interval: 150 }
  await expect.poll(() => column(others), poll).toEqual([0])
  await expect.poll(() => column(open), poll).toEqual([0])
}
