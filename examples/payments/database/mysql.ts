import mysql, {
  type Connection,
  type Pool,
  type QueryOptions,
  type ResultSetHeader,
  type RowDataPacket,
} from 'mysql2/promise'
import { mysqlStore } from 'oncekey/mysql'
import type { Answer, Driver } from './driver.ts'
import { createMysqlLimiter, LIMIT_TABLE } from './mysql-limiter.ts'
import { INDEXES, tablesFor, type Dialect } from './schema.ts'

const DIALECT: Dialect = {
  text: (length) => `VARCHAR(${length})`,
  tableOptions: 'CHARACTER SET utf8mb4 COLLATE utf8mb4_bin',
}

const CONNECTIONS_MAX = 10
/** A database that does not answer must not block a request indefinitely. */
const ANSWER_MS = 5_000
/** Below the engine's `storeTimeoutMs`, so that calls find a connection after an outage. */
const CONNECT_MS = 3_000
/** Detects a lost connection even when nothing is sent. */
const KEEP_ALIVE_MS = 10_000

/** MySQL and MariaDB. */
export function openMysql(url: string): Driver {
  const pool = mysql.createPool({
    uri: url,
    connectionLimit: CONNECTIONS_MAX,
    connectTimeout: CONNECT_MS,
    keepAliveInitialDelay: KEEP_ALIVE_MS,
  })
  const store = mysqlStore({ pool })
  return {
    store,
    query: (sql, values = []) => run(pool, { sql, values: [...values], timeout: ANSWER_MS }),
    within:
      (tx) =>
      (sql, values = []) =>
        run(tx as Connection, { sql, values: [...values] }),
    isDuplicate: (error) => isNumber(error, DUPLICATE_ENTRY),
    async makeTables() {
      await store.migrate()
      await makeOwnTables(pool)
      await pool.query(LIMIT_TABLE)
    },
    limiter: (limit) => createMysqlLimiter(pool, databaseOf(url), limit),
    close: () => pool.end(),
  }
}

/** Each statement commits separately here. The event table is created last, so it marks the end. */
async function makeOwnTables(pool: Pool): Promise<void> {
  const [made] = await pool.query<RowDataPacket[]>("SHOW TABLES LIKE 'provider_event'")
  if (made.length > 0) return
  const tables = tablesFor(DIALECT)
  const last = tables.pop()!
  for (const statement of [...tables, ...INDEXES, last]) {
    await pool.query(statement).catch((error: unknown) => {
      // Another node creates the index at the same moment.
      if (!isNumber(error, DUPLICATE_INDEX)) throw error
    })
  }
}

function databaseOf(url: string): string {
  return decodeURIComponent(new URL(url).pathname.slice(1))
}

async function run(
  connection: Pick<Connection, 'query'>,
  statement: QueryOptions,
): Promise<Answer> {
  const [answer] = await connection.query<RowDataPacket[] | ResultSetHeader>(statement)
  if (Array.isArray(answer)) return { rows: answer, changes: 0 }
  return { rows: [], changes: answer.affectedRows }
}

const DUPLICATE_INDEX = 1061
const DUPLICATE_ENTRY = 1062

function isNumber(error: unknown, errno: number): boolean {
  return error instanceof Error && 'errno' in error && error.errno === errno
}
