// Takes about 74 s.
import mysql, { type Connection, type Pool, type RowDataPacket } from 'mysql2/promise'
import { afterAll, beforeAll } from 'vitest'
import { mysqlStore, type MysqlStoreOptions } from '../../../../src/stores/mysql/index.ts'
import { startMariadb, type MariadbServer } from '../../../servers/mariadb.ts'
import { likeMysqlConnection, likeMysqlPool, transact } from './setup.ts'
import { runDurableCases, type DurableStoreUnderTest } from '../../run-durable-cases.ts'

let server: MariadbServer | undefined
let url: string
let otherDatabase: string

beforeAll(async () => {
  server = await startMariadb()
  url = await server.database()
  otherDatabase = new URL(await server.database()).pathname.slice(1)
}, 120_000)

afterAll(() => server?.close())

const TABLES = [
  ...['', '_history', '_operation', '_phase', '_message', '_partition', '_audit', '_discarded'],
]

type Options = Omit<MysqlStoreOptions, 'pool' | 'clock'>

/** Creates the tables once, and empties them for each case. */
function opener(
  options: () => Options,
  { isLikeMysql = false }: { readonly isLikeMysql?: boolean } = {},
): DurableStoreUnderTest['open'] {
  let pool: Pool | undefined
  afterAll(() => pool?.end())

  return async (clock) => {
    const isFirst = pool === undefined
    const app = (pool ??= mysql.createPool(url))
    const { database, table = 'oncekey_record' } = options()
    const lent = isLikeMysql ? likeMysqlPool(app) : app
    const store = mysqlStore({ pool: lent, clock, ...options() })
    if (isFirst) {
      await store.migrate()
      await app.query('CREATE TABLE IF NOT EXISTS note (text VARCHAR(255)) ENGINE = InnoDB')
    }
    const prefix = database === undefined ? '' : `\`${database}\`.`
    await transact(app, async (tx) => {
      const emptied = TABLES.map((suffix) => `${prefix}\`${table}${suffix}\``)
      for (const name of [...emptied, 'note']) {
        await tx.query(`DELETE FROM ${name}`)
      }
    })
    return {
      store,
      cleanUp: () => undefined,
      transact: (work) => transact(app, (tx) => work(isLikeMysql ? likeMysqlConnection(tx) : tx)),
      note: async (tx, text) => {
        await (tx as Connection).query('INSERT INTO note (text) VALUES (?)', [text])
      },
      notes: async () => {
        const [rows] = await app.query<RowDataPacket[]>('SELECT text FROM note')
        return rows.map((row) => String(row['text']))
      },
      commitInside: async (tx) => {
        await (tx as Connection).query('COMMIT')
      },
    }
  }
}

runDurableCases({
  name: 'mysql',
  open: opener(() => ({})),
  without: { history: 'the option is off' },
})

runDurableCases({
  name: 'mysql with a history, in another database and table',
  open: opener(() => ({ database: otherDatabase, table: 'Kept_keys', history: true })),
})

runDurableCases({
  name: 'mysql, without the statements for MariaDB',
  open: opener(() => ({ table: 'like_mysql' }), { isLikeMysql: true }),
  without: { history: 'the option is off' },
})
