/** The databases on which relays are tested, each with transactions of the application. */
import { DatabaseSync } from 'node:sqlite'
import mysql from 'mysql2/promise'
import pg from 'pg'
import type { Store } from '../../../src/core/store/store.ts'
import { mysqlStore } from '../../../src/stores/mysql/index.ts'
import { postgresStore } from '../../../src/stores/postgres/index.ts'
import { sqliteStore } from '../../../src/stores/sqlite/index.ts'

export const DATABASES = ['sqlite', 'postgres', 'mariadb'] as const

export type DatabaseKind = (typeof DATABASES)[number]

export interface OutboxDatabase {
  readonly store: Store
  /** Commits the writes of `work`, or rolls them back if it throws. */
  readonly transact: (work: (tx: AppTransaction) => Promise<void>) => Promise<void>
  readonly close: () => Promise<void>
}

export interface AppTransaction {
  /** For `outbox.add`. */
  readonly tx: unknown
  readonly query: (sql: string) => Promise<readonly Record<string, unknown>[]>
}

/** `location`: the path of a file or the URL of a database. */
export function openDatabase(kind: DatabaseKind, location: string): Promise<OutboxDatabase> {
  switch (kind) {
    case 'sqlite':
      return openSqlite(location)
    case 'postgres':
      return openPostgres(location)
    case 'mariadb':
      return openMariadb(location)
  }
}

async function openSqlite(path: string): Promise<OutboxDatabase> {
  const store = sqliteStore({ path })
  const app = new DatabaseSync(path)
  app.exec('PRAGMA busy_timeout = 10000')
  // A connection runs one transaction at a time.
  let last: Promise<unknown> = Promise.resolve()
  const query: AppTransaction['query'] = (sql) => Promise.resolve(app.prepare(sql).all())
  return {
    store,
    transact: (work) => {
      const run = last.then(() => within(query, () => work({ tx: app, query }), 'BEGIN IMMEDIATE'))
      last = run.catch(() => undefined)
      return run
    },
    async close() {
      await last
      app.close()
      await store.close()
    },
  }
}

async function openPostgres(url: string): Promise<OutboxDatabase> {
  const pool = new pg.Pool({ connectionString: url, max: 12 })
  pool.on('error', () => undefined)
  const store = postgresStore({ pool })
  await store.migrate()
  return {
    store,
    async transact(work) {
      const tx = await pool.connect()
      const query: AppTransaction['query'] = async (sql) => (await tx.query(sql)).rows
      try {
        await within(query, () => work({ tx, query }))
      } finally {
        tx.release()
      }
    },
    async close() {
      await store.close?.()
      await pool.end()
    },
  }
}

async function openMariadb(url: string): Promise<OutboxDatabase> {
  const pool = mysql.createPool({ uri: url, connectionLimit: 12 })
  const store: Store & { migrate(): Promise<void> } = mysqlStore({ pool })
  await store.migrate()
  return {
    store,
    async transact(work) {
      const tx = await pool.getConnection()
      const query: AppTransaction['query'] = async (sql) =>
        (await tx.query<mysql.RowDataPacket[]>(sql))[0]
      try {
        await within(query, () => work({ tx, query }))
      } finally {
        tx.release()
      }
    },
    async close() {
      await store.close?.()
      await pool.end()
    },
  }
}

async function within(
  query: AppTransaction['query'],
  work: () => Promise<void>,
  begin = 'BEGIN',
): Promise<void> {
  await query(begin)
  try {
    await work()
    await query('COMMIT')
  } catch (error) {
    await query('ROLLBACK')
    throw error
  }
}
