/** The database tools with which applications write transactions, behind one interface. */
import { CamelCasePlugin, Kysely, PostgresDialect } from 'kysely'
import type pg from 'pg'
import type postgres from 'postgres'
import { drizzleJs, drizzlePg } from '../../caller-transaction/drizzle.ts'
import { prismaClient } from '../../caller-transaction/prisma.ts'
import {
  SHAPES,
  withDrizzle,
  withKnex,
  withKysely,
  type Tool,
} from '../../caller-transaction/join-tools.ts'

interface Connections {
  readonly url: string
  readonly connect: () => pg.Pool
  readonly connectJs: () => postgres.Sql
}

export type OpenTool = (connections: Connections) => Tool

const PAY = 'INSERT INTO payment VALUES ($1)'

/** A client of `pg` between BEGIN and COMMIT; `shown` is the object that completeIn gets. */
export function withPg(
  pool: pg.Pool,
  shown: (client: pg.PoolClient) => unknown = (client) => client,
): Tool {
  return {
    mistake: pool,
    async transact(body) {
      const client = await pool.connect()
      try {
        await client.query('BEGIN')
        const pay = (key: string) => client.query(PAY, [key])
        const result = await body({ tx: shown(client), pay })
        await client.query('COMMIT')
        return result
      } catch (error) {
        await client.query('ROLLBACK')
        throw error
      } finally {
        client.release()
      }
    },
  }
}

const send = (client: pg.Pool | pg.PoolClient) => async (sql: string) =>
  (await client.query<object>(sql)).rows

const shaped = Object.fromEntries(
  Object.entries(SHAPES).map(([name, shape]): [string, OpenTool] => [
    name,
    ({ connect }) => {
      const pool = connect()
      const tool = withPg(pool, (client) => shape.transaction(send(client)))
      return { ...tool, mistake: shape.mistake(send(pool)) }
    },
  ]),
)

export const TOOLS: Readonly<Record<string, OpenTool>> = {
  pg: ({ connect }) => withPg(connect()),

  'postgres.js': ({ connectJs }) => {
    const sql = connectJs()
    return {
      mistake: sql,
      transact: (body) =>
        sql.begin((tx) =>
          body({ tx, pay: (key) => tx`INSERT INTO payment VALUES (${key})` }),
        ) as Promise<never>,
    }
  },

  'Drizzle on pg': ({ connect }) => withDrizzle(drizzlePg(connect())),

  'Drizzle on postgres.js': ({ connectJs }) => withDrizzle(drizzleJs(connectJs())),

  // With the common plugin that renames the columns it reads.
  Kysely: ({ connect }) =>
    withKysely(
      new Kysely({
        dialect: new PostgresDialect({ pool: connect() }),
        plugins: [new CamelCasePlugin()],
      }),
    ),

  Knex: ({ url }) => withKnex({ client: 'pg', connection: url }),

  Prisma: ({ url }) => {
    const prisma = prismaClient(url)
    return {
      mistake: prisma,
      transact: (body) =>
        prisma.$transaction((tx) => body({ tx, pay: (key) => tx.$executeRawUnsafe(PAY, key) })),
    }
  },

  ...shaped,
}
