import mysql, {
  type Connection,
  type QueryOptions,
  type ResultSetHeader,
  type RowDataPacket,
} from 'mysql2/promise'
import { mysqlStore } from 'oncekey/mysql'
import type { Answer, Driver } from './driver.ts'
import { INDEXES, tablesFor, type Dialect } from './schema.ts'

const DIALECT: Dialect = {
  text: (length) => `VARCHAR(${length})`,
  tableOptions: 'CHARACTER SET utf8mb4 COLLATE utf8mb4_bin',
}

const CONNECTIONS_MAX = 10
/** A database that does not answer must not keep a request for ever. */
const ANSWER_MS = 5_000

/** MySQL and MariaDB. */
export function openMysql(url: string): Driver {
  const pool = mysql.createPool({
    uri: url,
    connectionLimit: CONNECTIONS_MAX,
    connectTimeout: ANSWER_MS,
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
      // The server lets one process at a time make a table.
      for (const table of tablesFor(DIALECT)) await pool.query(table)
      for (const { name, on } of INDEXES) {
        await pool.query(`CREATE INDEX ${name} ON ${on}`).catch((error: unknown) => {
          if (!isNumber(error, DUPLICATE_INDEX)) throw error
        })
      }
    },
    close: () => pool.end(),
  }
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
