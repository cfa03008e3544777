import mysql from 'mysql2'
import mysqlPromise from 'mysql2/promise'
import { afterAll, beforeAll } from 'vitest'
import {
  mysqlStore,
  type MysqlPool,
  type MysqlStoreOptions,
} from '../../../src/stores/mysql/index.ts'
import { startMariadb, type MariadbServer } from '../../servers/mariadb.ts'
import { runStoreCases } from '../run-store-cases.ts'

let server: MariadbServer | undefined
let url: string
let otherDatabase: string

beforeAll(async () => {
  server = await startMariadb()
  url = await server.database()
  otherDatabase = new URL(await server.database()).pathname.slice(1)
}, 120_000)

afterAll(() => server?.close())

interface Variant {
  readonly name: string
  readonly connect: () => { readonly pool: MysqlPool; readonly app: mysqlPromise.Pool }
  readonly options: () => Omit<MysqlStoreOptions, 'pool' | 'clock'>
}

const promisePool = () => {
  const app = mysqlPromise.createPool(url)
  return { pool: app, app }
}

/** All settings of a pool that change how values are sent and read. */
const SETTINGS: mysql.PoolOptions = {
  bigNumberStrings: true,
  charset: 'latin1_swedish_ci',
  dateStrings: true,
  namedPlaceholders: true,
  nestTables: true,
  supportBigNumbers: true,
  timezone: '+09:30',
  typeCast: (field, next) => (field.type === 'VAR_STRING' ? 'cast' : next()),
}

const VARIANTS: readonly Variant[] = [
  { name: 'mysql', connect: promisePool, options: () => ({}) },
  {
    name: 'mysql, another database and table, with a history',
    connect: promisePool,
    options: () => ({ database: otherDatabase, table: 'Kept_keys', history: true }),
  },
  {
    name: 'mysql, a callback pool with other settings',
    connect: () => {
      const pool = mysql.createPool({ uri: url, ...SETTINGS })
      return { pool, app: pool.promise() }
    },
    options: () => ({ table: 'by_callback', history: true }),
  },
]

for (const { name, connect, options } of VARIANTS) {
  let opened: ReturnType<Variant['connect']> | undefined
  let migrated = false

  runStoreCases({
    name,
    open: async (clock) => {
      opened ??= connect()
      const store = mysqlStore({ pool: opened.pool, clock, ...options() })
      if (!migrated) await store.migrate()
      migrated = true
      const { database, table = 'oncekey_record' } = options()
      const prefix = database === undefined ? '' : `\`${database}\`.`
      await opened.app.query(`DELETE FROM ${prefix}\`${table}\``)
      await opened.app.query(`DELETE FROM ${prefix}\`${table}_history\``)
      return { store }
    },
    without: {
      discard: 'it is an act of `durable`',
      ...(options().history === true ? {} : { history: 'it is an option' }),
    },
  })

  afterAll(() => opened?.app.end())
}
