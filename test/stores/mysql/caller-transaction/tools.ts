/** Database tools for MySQL behind one interface, for tests of a caller's transactions. */
import { CamelCasePlugin, Kysely, MysqlDialect, ParseJSONResultsPlugin } from 'kysely'
import callbacks from 'mysql2'
import type { Connection, Pool, PoolConnection } from 'mysql2/promise'
import { onTestFinished } from 'vitest'
import { drizzleMysql } from '../../caller-transaction/drizzle.ts'
import {
  SHAPES,
  withDrizzle,
  withKnex,
  withKysely,
  type Tool,
} from '../../caller-transaction/join-tools.ts'
import { pay } from '../setup.ts'

interface Connections {
  readonly url: string
  readonly connect: () => Pool
}

export type OpenTool = (connections: Connections) => Tool

/** Transactions of `mysql2`. `shown` returns the object that is passed to the store. */
export function withMysql(
  pool: Pool,
  shown: (connection: PoolConnection) => unknown = (connection) => connection,
): Tool {
  return {
    mistake: pool,
    async transact(body) {
      const connection = await pool.getConnection()
      try {
        await connection.beginTransaction()
        const result = await body({
          tx: shown(connection),
          pay: (key) => pay(connection, key),
        })
        await connection.commit()
        return result
      } catch (error) {
        await connection.rollback()
        throw error
      } finally {
        connection.release()
      }
    },
  }
}

export const send =
  (client: Pick<Connection, 'query'>) =>
  async (sql: string): Promise<unknown> =>
    (await client.query(sql))[0]

/** Uses the binary protocol, in which the server prepares each statement first. */
export const sendPrepared =
  (client: Pick<Connection, 'execute'>) =>
  async (sql: string): Promise<unknown> =>
    (await client.execute(sql))[0]

const shaped = Object.fromEntries(
  Object.entries(SHAPES).map(([name, shape]): [string, OpenTool] => [
    name,
    ({ connect }) => {
      const pool = connect()
      const tool = withMysql(pool, (connection) => shape.transaction(send(connection)))
      return { ...tool, mistake: shape.mistake(send(pool)) }
    },
  ]),
)

/** A callback pool, for tools that accept nothing else. */
function callbackPool(url: string): callbacks.Pool {
  const pool = callbacks.createPool(url)
  onTestFinished(() => pool.promise().end())
  return pool
}

export const TOOLS: Readonly<Record<string, OpenTool>> = {
  'mysql2 with promises': ({ connect }) => withMysql(connect()),

  'mysql2 with callbacks': ({ url }) => {
    const pool = callbackPool(url)
    // The promise pool lends a wrapper of the callback connection.
    const tool = withMysql(pool.promise(), ({ connection }) => connection)
    return { ...tool, mistake: pool }
  },

  'prepared statements': ({ connect }) => {
    const pool = connect()
    const tool = withMysql(pool, (connection) => ({ runSql: sendPrepared(connection) }))
    return { ...tool, mistake: { runSql: sendPrepared(pool) } }
  },

  // The options that change rows the most.
  'mysql2 with rows as arrays of bytes': ({ url }) => {
    const pool = callbacks.createPool({ uri: url, rowsAsArray: true, typeCast: false }).promise()
    onTestFinished(() => pool.end())
    return withMysql(pool)
  },

  Drizzle: ({ connect }) => withDrizzle(drizzleMysql(connect())),

  // With common plugins that rename columns and parse values.
  Kysely: ({ url }) =>
    withKysely(
      new Kysely({
        dialect: new MysqlDialect({ pool: callbackPool(url) }),
        plugins: [new CamelCasePlugin(), new ParseJSONResultsPlugin()],
      }),
    ),

  Knex: ({ url }) => withKnex({ client: 'mysql2', connection: url }),

  ...shaped,
}
