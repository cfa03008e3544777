import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll } from 'vitest'
import {
  postgresStore,
  type PostgresPool,
  type PostgresStoreOptions,
} from '../../../src/stores/postgres/index.ts'
import { startPostgres, type PostgresServer } from '../../servers/postgres.ts'
import { runStoreCases } from '../run-store-cases.ts'

let server: PostgresServer
let url: string

beforeAll(async () => {
  server = await startPostgres()
  url = await server.database()
}, 120_000)

afterAll(() => server.close())

/** Settings that an operator may have chosen for the whole database. */
const ODD_SETTINGS =
  '-c plpgsql.extra_errors=all -c bytea_output=escape -c extra_float_digits=0 -c datestyle=German'

interface Opened {
  readonly pool: PostgresPool
  readonly run: (sql: string) => Promise<unknown>
  readonly end: () => Promise<unknown>
}

const DRIVERS: Readonly<Record<string, () => Opened>> = {
  pg: () => {
    const pool = new pg.Pool({ connectionString: url })
    return { pool, run: (sql) => pool.query(sql), end: () => pool.end() }
  },
  'pg, changed': () => {
    const types = { getTypeParser: () => (value: unknown) => `changed: ${String(value)}` }
    const pool = new pg.Pool({ connectionString: url, options: ODD_SETTINGS, types })
    return { pool, run: (sql) => pool.query(sql), end: () => pool.end() }
  },
  'postgres.js': () => {
    const sql = postgres(url, { onnotice: () => undefined })
    return { pool: sql, run: (text) => sql.unsafe(text), end: () => sql.end() }
  },
  'postgres.js, changed': () => {
    const from = (value: unknown) => (value === null ? undefined : value)
    const transform = { ...postgres.camel, value: { from } }
    const sql = postgres(url, { onnotice: () => undefined, transform })
    return { pool: sql, run: (text) => sql.unsafe(text), end: () => sql.end() }
  },
}

interface Variant {
  readonly name: string
  readonly driver: keyof typeof DRIVERS
  readonly options: Omit<PostgresStoreOptions, 'pool' | 'clock'>
  readonly qualified: string
  /** The table of the store, if a case needs it. */
  readonly history?: string
}

const VARIANTS: readonly Variant[] = [
  { name: 'postgres, pg', driver: 'pg', options: {}, qualified: 'public.oncekey_record' },
  {
    name: 'postgres, postgres.js, with a history',
    driver: 'postgres.js',
    options: { table: 'by_postgres_js', history: true },
    qualified: 'public.by_postgres_js',
    history: 'public.by_postgres_js_history',
  },
  {
    name: 'postgres, another schema and table, without prepared statements',
    driver: 'pg',
    options: { schema: 'Other', table: 'Kept_keys', prepare: false },
    qualified: '"Other"."Kept_keys"',
  },
  {
    name: 'postgres, pg with custom parsers and settings',
    driver: 'pg, changed',
    options: { table: 'odd' },
    qualified: 'public.odd',
  },
  {
    name: 'postgres, postgres.js with transforms',
    driver: 'postgres.js, changed',
    options: { table: 'transformed', history: true },
    qualified: 'public.transformed',
    history: 'public.transformed_history',
  },
]

for (const { name, driver, options, qualified, history } of VARIANTS) {
  let opened: Opened | undefined
  let migrated = false

  runStoreCases({
    name,
    open: async (clock) => {
      opened ??= DRIVERS[driver]!()
      const store = postgresStore({ pool: opened.pool, clock, ...options })
      if (!migrated) await store.migrate()
      migrated = true
      await opened.run(`DELETE FROM ${qualified}`)
      if (history !== undefined) await opened.run(`DELETE FROM ${history}`)
      return { store }
    },
    without: {
      discard: 'it has durable, whose act discards with an audit',
      ...(history === undefined ? { history: 'the option is off' } : {}),
    },
  })

  afterAll(() => opened?.end())
}
