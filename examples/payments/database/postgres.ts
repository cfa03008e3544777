import { postgresStore } from 'oncekey/postgres'
import pg from 'pg'
import type { Answer, Driver, Row, Value } from './driver.ts'
import { INDEXES, tablesFor, type Dialect } from './schema.ts'

// In the order of their bytes, whatever language the database was set up for.
const DIALECT: Dialect = { text: (length) => `VARCHAR(${length}) COLLATE "C"`, tableOptions: '' }

/** Four nodes of ten stay far below the 100 connections that a server has by itself. */
const CONNECTIONS_MAX = 10
/** Less than the engine waits for the store, so that a connection that hangs frees its place. */
const CONNECT_MS = 3_000
/** A database that does not answer must not keep a request for ever. */
const ANSWER_MS = 5_000

export function openPostgres(url: string): Driver {
  const pool = new pg.Pool({
    connectionString: url,
    max: CONNECTIONS_MAX,
    connectionTimeoutMillis: CONNECT_MS,
    keepAlive: true,
    statement_timeout: 30_000,
    idle_in_transaction_session_timeout: 60_000,
  })
  // A connection that is cut while nobody uses it, as all are when the database restarts. The pool
  // opens another one by itself; without a listener the process would end.
  pool.on('error', () => undefined)
  const store = postgresStore({ pool })
  return {
    store,
    async query(sql, values) {
      // After this time the pool closes the connection, too, instead of lending it to the next one.
      const timed = { ...toPgQuery(sql, values), query_timeout: ANSWER_MS }
      return toAnswer(await pool.query<Row>(timed))
    },
    within: (tx) => async (sql, values) =>
      toAnswer(await (tx as pg.ClientBase).query(toPgQuery(sql, values))),
    isDuplicate: (error) => error instanceof pg.DatabaseError && error.code === UNIQUE_VIOLATION,
    async makeTables() {
      await store.migrate()
      await makeOwnTables(pool)
    },
    async close() {
      await store.close()
      await pool.end()
    },
  }
}

const UNIQUE_VIOLATION = '23505'

/** Any number that no other program of the same database locks. */
const MIGRATION_LOCK = 7_245_001

/**
 * IF NOT EXISTS alone does not help two processes that look at the same moment, and an index makes
 * writers wait even where it exists. So one process makes all of them, at once or not at all.
 */
async function makeOwnTables(pool: pg.Pool): Promise<void> {
  const client = await pool.connect()
  // As above: while it is lent out, the pool does not listen for it.
  client.on('error', () => undefined)
  try {
    await client.query('BEGIN')
    await client.query(`SELECT pg_advisory_xact_lock(${MIGRATION_LOCK})`)
    const { rows } = await client.query<Row>(`SELECT to_regclass('provider_event') AS made`)
    const statements = rows[0]?.['made'] === null ? [...tablesFor(DIALECT), ...INDEXES] : []
    for (const statement of statements) await client.query(statement)
    await client.query('COMMIT')
  } catch (error) {
    // With its connection the transaction goes, too.
    client.release(true)
    throw error
  }
  client.release()
}

function toPgQuery(sql: string, values: readonly Value[] = []): pg.QueryConfig {
  let count = 0
  const text = sql.replaceAll('?', () => `$${++count}`)
  return { text, values: [...values], types: { getTypeParser } }
}

/** Amounts are BIGINT, which `pg` gives as text. Ours are far below 2^53. */
const getTypeParser: pg.CustomTypesConfig['getTypeParser'] = (id, format) => {
  if (id === pg.types.builtins.INT8) return Number
  return pg.types.getTypeParser(id, format) as (value: string) => unknown
}

function toAnswer({ rows, rowCount }: pg.QueryResult<Row>): Answer {
  return { rows, changes: rowCount ?? 0 }
}
