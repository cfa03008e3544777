import { postgresStore } from 'oncekey/postgres'
import pg from 'pg'
import type { Answer, Driver, Row, Value } from './driver.ts'
import { createPostgresLimiter, LIMIT_TABLE } from './postgres-limiter.ts'
import { INDEXES, tablesFor, type Dialect } from './schema.ts'

// Compares bytes, regardless of the language of the database.
const DIALECT: Dialect = { text: (length) => `VARCHAR(${length}) COLLATE "C"`, tableOptions: '' }

/** Four nodes with ten connections each stay far below the default limit of 100. */
const CONNECTIONS_MAX = 10
/** Below the engine's timeout for the store, so that a hanging connection frees its place. */
const CONNECT_MS = 3_000
/** A database that does not answer must not block a request indefinitely. */
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
  // Emitted when an idle connection is cut, for example when the database restarts. The pool opens
  // a new one; without a listener the process would end.
  pool.on('error', () => undefined)
  const store = postgresStore({ pool })
  return {
    store,
    async query(sql, values) {
      // After this time the pool also closes the connection instead of reusing it.
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
    limiter: (limit) => createPostgresLimiter(pool, limit),
    async close() {
      await store.close()
      await pool.end()
    },
  }
}

const UNIQUE_VIOLATION = '23505'

/** Any number that no other program locks in the same database. */
const MIGRATION_LOCK = 7_245_001

/**
 * IF NOT EXISTS alone does not help two processes that check at the same moment, and creating an
 * index blocks writers even if it exists. So one process creates all tables in one transaction.
 */
async function makeOwnTables(pool: pg.Pool): Promise<void> {
  const client = await pool.connect()
  // The pool does not listen for errors of a connection that is checked out.
  client.on('error', () => undefined)
  try {
    await client.query('BEGIN')
    await client.query(`SELECT pg_advisory_xact_lock(${MIGRATION_LOCK})`)
    const { rows } = await client.query<Row>(`SELECT to_regclass('provider_event') AS made`)
    const statements = rows[0]?.['made'] === null ? [...tablesFor(DIALECT), ...INDEXES] : []
    for (const statement of [...statements, LIMIT_TABLE]) await client.query(statement)
    await client.query('COMMIT')
  } catch (error) {
    // Closing the connection ends its transaction.
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

/** Amounts are BIGINT, which `pg` returns as text. Ours are far below 2^53. */
const getTypeParser: pg.CustomTypesConfig['getTypeParser'] = (id, format) => {
  if (id === pg.types.builtins.INT8) return Number
  return pg.types.getTypeParser(id, format) as (value: string) => unknown
}

function toAnswer({ rows, rowCount }: pg.QueryResult<Row>): Answer {
  return { rows, changes: rowCount ?? 0 }
}
