import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, onTestFinished } from 'vitest'
import type { Lease } from '../../../src/core/store/store.ts'
import {
  postgresStore,
  type PostgresStore,
  type PostgresStoreOptions,
} from '../../../src/stores/postgres/index.ts'
import { bytes, RETENTION_MS } from '../../../src/testing/store-cases/store-case.ts'
import { startPostgres, type PostgresServer } from '../../servers/postgres.ts'

export interface Queries {
  /** The first column of every row. */
  readonly column: (sql: string, values?: unknown[]) => Promise<unknown[]>
}

/** Starts one server and one database for the file; each test begins with an empty database. */
export function usePostgres(options: { private?: boolean } = {}) {
  let server: PostgresServer
  let url: string
  beforeAll(async () => {
    server = await startPostgres(options)
    url = await server.database()
  }, 120_000)
  afterAll(() => server.close())

  return async () => {
    const connect = (more: pg.PoolConfig = {}) => {
      const pool = new pg.Pool({ connectionString: url, ...more })
      // Every application needs this: a lost idle connection would otherwise end the process.
      pool.on('error', () => undefined)
      onTestFinished(async () => {
        if (!pool.ended) await pool.end()
      })
      return pool
    }
    const connectJs = () => {
      const sql = postgres(url, { onnotice: () => undefined })
      onTestFinished(() => sql.end({ timeout: 1 }))
      return sql
    }
    const app = connect({ max: 2 })
    await app.query(`DROP SCHEMA IF EXISTS keys, public CASCADE; CREATE SCHEMA public;
      CREATE TABLE payment (key text)`)
    const column: Queries['column'] = async (sql, values = []) =>
      (await app.query({ text: sql, values, rowMode: 'array' })).rows.map((row) => row[0])

    const open = async (more: Partial<PostgresStoreOptions> = {}): Promise<PostgresStore> => {
      const store = postgresStore({ pool: connect(), ...more })
      await store.migrate()
      return store
    }
    const paid = () => column('SELECT key FROM payment ORDER BY key')
    return { server, url, connect, connectJs, app, column, open, paid }
  }
}

export const completion = (text = 'done') => ({ result: bytes(text), retentionMs: RETENTION_MS })

/** A transaction that has written a row and is open until `finish` is called. */
export async function openTransaction(store: PostgresStore, lease: Lease, row: string) {
  const entered = Promise.withResolvers<void>()
  const finished = Promise.withResolvers<void>()
  const outcome = store.transaction<pg.Client>(lease, async (tx) => {
    await tx.query('INSERT INTO payment VALUES ($1)', [row])
    entered.resolve()
    await finished.promise
    return completion(row)
  })
  await Promise.race([entered.promise, outcome])
  return { outcome, finish: finished.resolve }
}
