/** The tools that people write their transactions on MySQL with, each made to do the same. */
import { CamelCasePlugin, Kysely, MysqlDialect, ParseJSONResultsPlugin } from 'kysely'
import callbacks from 'mysql2'
import type { Connection, Pool, PoolConnection } from 'mysql2/promise'
import { onTestFinished } from 'vitest'
import { drizzleMysql } from './drizzle.ts'
import { SHAPES, withDrizzle, withKnex, withKysely, type Tool } from './join-tools.ts'
import { pay } from './mysql-setup.ts'

interface Connections {
  readonly url: string
  readonly connect: () => Pool
}

export type OpenTool = (connections: Connections) => Tool

/** A connection between BEGIN and COMMIT; `shown` is what completeIn is given for it. */
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

/** In the binary protocol, where the server prepares each statement first. */
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

/** A pool with callbacks, for those who take nothing else. */
function callbackPool(url: string): callbacks.Pool {
  const pool = callbacks.createPool(url)
  onTestFinished(() => pool.promise().end())
  return pool
}

export const TOOLS: Readonly<Record<string, OpenTool>> = {
  'mysql2 with promises': ({ connect }) => withMysql(connect()),

  'mysql2 with callbacks': ({ url }) => {
    const pool = callbackPool(url)
    // What its pool of promises lends is a shell around the connection with callbacks.
    const tool = withMysql(pool.promise(), ({ connection }) => connection)
    return { ...tool, mistake: pool }
  },

  'prepared statements': ({ connect }) => {
    const pool = connect()
    const tool = withMysql(pool, (connection) => ({ runSql: sendPrepared(connection) }))
    return { ...tool, mistake: { runSql: sendPrepared(pool) } }
  },

  // As strange as its options allow.
  'mysql2 with rows as arrays of bytes': ({ url }) => {
    const pool = callbacks.createPool({ uri: url, rowsAsArray: true, typeCast: false }).promise()
    onTestFinished(() => pool.end())
    return withMysql(pool)
  },

  Drizzle: ({ connect }) => withDrizzle(drizzleMysql(connect())),

  // With plugins that rename and parse what it reads, as many have them.
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
