/** PostgreSQL and MariaDB for payments: the store, the business rows, and every statement. */
import type { PoolConnection, RowDataPacket } from 'mysql2/promise'
import type { ClientBase } from 'pg'
import type { Clock } from '../../../src/core/time/clock.ts'
import type { Store } from '../../../src/core/store/store.ts'
import type { Write } from './operation.ts'

export type DatabaseKind = 'postgres' | 'mariadb'

export interface PaymentDatabase {
  readonly store: Store & { migrate(): Promise<unknown> }
  readonly write: Write
  readonly rows: (sql: string) => Promise<Record<string, unknown>[]>
  /** Removes all rows, except those that the store keeps permanently. */
  readonly clear: () => Promise<void>
  /** The number of other connections to this database. */
  readonly otherConnections: () => Promise<number>
  readonly close: () => Promise<void>
}

/** Intercepts the statements of a connection. `send` sends the statement. */
export type OnStatement = (sql: string, send: () => Promise<unknown>) => Promise<unknown>

interface Opening {
  readonly clock?: Clock
  readonly onStatement?: OnStatement
}

const CONNECTIONS_MAX = 4

/** Loads one driver only: loading is most of the work of a process that is killed early. */
export function openPaymentDatabase(
  kind: DatabaseKind,
  url: string,
  opening: Opening = {},
): Promise<PaymentDatabase> {
  return kind === 'postgres' ? openPostgres(url, opening) : openMariadb(url, opening)
}

async function openPostgres(
  url: string,
  { clock, onStatement }: Opening,
): Promise<PaymentDatabase> {
  const { default: pg } = await import('pg')
  const { postgresStore } = await import('../../../src/stores/postgres/index.ts')
  const pool = new pg.Pool({ connectionString: url, max: CONNECTIONS_MAX })
  pool.on('error', () => undefined)
  if (onStatement !== undefined) pool.on('connect', (client) => intercept(client, onStatement))
  const rows = async (sql: string) => (await pool.query<Record<string, unknown>>(sql)).rows
  return {
    store: postgresStore({ pool, ...(clock === undefined ? {} : { clock }) }),
    write: async (tx: ClientBase, statements) => {
      for (const statement of statements) await tx.query(statement)
    },
    rows,
    clear: () => clear(rows, 'current_schema()'),
    otherConnections: async () => {
      const [found] = await rows(`SELECT count(*)::int AS count FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend'
          AND pid <> pg_backend_pid()`)
      return Number(found!['count'])
    },
    close: () => pool.end(),
  }
}

async function openMariadb(url: string, { clock, onStatement }: Opening): Promise<PaymentDatabase> {
  const { default: mysql } = await import('mysql2/promise')
  const { mysqlStore } = await import('../../../src/stores/mysql/index.ts')
  const pool = mysql.createPool({ uri: url, connectionLimit: CONNECTIONS_MAX })
  const getConnection = pool.getConnection.bind(pool)
  if (onStatement !== undefined) {
    pool.getConnection = async () => intercept(await getConnection(), onStatement)
  }
  const rows = async (sql: string) => (await pool.query<RowDataPacket[]>(sql))[0]
  return {
    store: mysqlStore({ pool, ...(clock === undefined ? {} : { clock }) }),
    write: async (tx: PoolConnection, statements) => {
      for (const statement of statements) await tx.query(statement)
    },
    rows,
    clear: () => clear(rows, 'DATABASE()'),
    otherConnections: async () => {
      const [found] = await rows(`SELECT COUNT(*) AS count FROM information_schema.processlist
        WHERE db = DATABASE() AND id <> CONNECTION_ID()`)
      return Number(found!['count'])
    },
    close: () => pool.end(),
  }
}

/** Deletes the records last, because other rows refer to them. */
async function clear(rows: PaymentDatabase['rows'], schema: string): Promise<void> {
  const found = await rows(`SELECT table_name AS name FROM information_schema.tables
    WHERE table_schema = ${schema} ORDER BY length(table_name) DESC`)
  const names = found.map(({ name }) => String(name))
  const records = 'oncekey_record'
  const cleared = names.filter((name) => !/migration|audit/.test(name) && name !== records)
  for (const name of [...cleared, records]) await rows(`DELETE FROM ${name}`)
}

function intercept<Client extends object>(client: Client, onStatement: OnStatement): Client {
  const query = (Reflect.get(client, 'query') as (...given: unknown[]) => Promise<unknown>).bind(
    client,
  )
  const sqlOf = (given: unknown) =>
    typeof given === 'string' ? given : String(Object.values(given as object)[0])
  return Object.assign(client, {
    query: (...given: unknown[]) => onStatement(sqlOf(given[0]), () => query(...given)),
  })
}
