/** The database of a node: the store, and the service's table of effects beside it. */
import type { PoolConnection } from 'mysql2/promise'
import type { Store } from 'oncekey'
import type { SqliteTransaction } from 'oncekey/sqlite'
import type { PoolClient } from 'pg'

/** The transaction that a store passes to its callback. */
export type Tx = SqliteTransaction | PoolClient | PoolConnection

export interface Backend {
  readonly store: Store
  /** Commits in a separate transaction. */
  readonly insertEffect: (key: string, node: string) => Promise<void>
  /** Returns `undefined` when the insert is synchronous, and so already done. */
  readonly insertEffectIn: (tx: Tx, key: string, node: string) => Promise<void> | undefined
  readonly close: () => Promise<void>
}

const POOL_SIZE = 6

// Each function imports only its own driver, because a test starts many nodes.

export async function openBackend(name: string, place: string): Promise<Backend> {
  if (name === 'sqlite') return openSqlite(place)
  return name === 'postgres' ? openPostgres(place) : openMysql(place)
}

async function openSqlite(path: string): Promise<Backend> {
  const { DatabaseSync } = await import('node:sqlite')
  const { sqliteStore } = await import('oncekey/sqlite')
  const store = sqliteStore({ path })
  const sql = 'INSERT INTO effect VALUES (?, ?)'
  const app = new DatabaseSync(path, { timeout: 5_000 })
  return {
    store,
    insertEffect: async (key, node) => void app.prepare(sql).run(key, node),
    insertEffectIn: (tx, key, node) => {
      ;(tx as SqliteTransaction).prepare(sql).run(key, node)
      return undefined
    },
    close: async () => {
      app.close()
      await store.close()
    },
  }
}

async function openPostgres(url: string): Promise<Backend> {
  const { Pool } = (await import('pg')).default
  const { postgresStore } = await import('oncekey/postgres')
  const pool = new Pool({ connectionString: url, max: POOL_SIZE })
  const store = postgresStore({ pool })
  await store.migrate()
  const sql = 'INSERT INTO effect VALUES ($1, $2)'
  return {
    store,
    insertEffect: async (key, node) => void (await pool.query(sql, [key, node])),
    insertEffectIn: async (tx, key, node) => {
      await (tx as PoolClient).query(sql, [key, node])
    },
    close: () => pool.end(),
  }
}

async function openMysql(url: string): Promise<Backend> {
  const { createPool } = await import('mysql2/promise')
  const { mysqlStore } = await import('oncekey/mysql')
  const pool = createPool({ uri: url, connectionLimit: POOL_SIZE })
  const store = mysqlStore({ pool })
  await store.migrate()
  const sql = 'INSERT INTO effect VALUES (?, ?)'
  return {
    store,
    insertEffect: async (key, node) => void (await pool.query(sql, [key, node])),
    insertEffectIn: async (tx, key, node) => {
      await (tx as PoolConnection).query(sql, [key, node])
    },
    close: () => pool.end(),
  }
}
