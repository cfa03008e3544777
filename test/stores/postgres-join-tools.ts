/** The tools that people write their transactions with, each made to do the same. */
import knex from 'knex'
import { CamelCasePlugin, Kysely, PostgresDialect } from 'kysely'
import type pg from 'pg'
import type postgres from 'postgres'
import { onTestFinished } from 'vitest'
import { drizzleJs, drizzlePg, drizzleSql } from './drizzle.ts'

export interface Tool {
  /** Runs `body` in a transaction of the tool: committed if it resolves, rolled back if not. */
  transact<Result>(body: (open: OpenTransaction) => Promise<Result>): Promise<Result>
  /** What people hand in by mistake: each statement on it is a transaction of its own. */
  readonly mistake: unknown
}

export interface OpenTransaction {
  readonly tx: unknown
  readonly pay: (key: string) => Promise<unknown>
}

interface Connections {
  readonly url: string
  readonly connect: () => pg.Pool
  readonly connectJs: () => postgres.Sql
}

export type OpenTool = (connections: Connections) => Tool

const PAY = 'INSERT INTO payment VALUES ($1)'

/** A client of `pg` between BEGIN and COMMIT; `shown` is what completeIn is given for it. */
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

/** Of an interactive transaction: the whole client, without what belongs to the connection. */
const prismaLike = (client: pg.PoolClient) => ({
  $queryRawUnsafe: async (sql: string) => (await client.query(sql)).rows as unknown[],
  $executeRawUnsafe: async (sql: string) => (await client.query(sql)).rowCount,
  $transaction: () => undefined,
})

const typeormLike = (client: pg.PoolClient) => ({
  getRepository: () => undefined,
  query: async (sql: string) => (await client.query(sql)).rows as unknown[],
  queryRunner: { isTransactionActive: true },
})

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

  'Drizzle on pg': ({ connect }) => {
    const db = drizzlePg(connect())
    return {
      mistake: db,
      transact: (body) =>
        db.transaction((tx) =>
          body({
            tx,
            pay: async (key) => tx.execute(drizzleSql`INSERT INTO payment VALUES (${key})`),
          }),
        ),
    }
  },

  'Drizzle on postgres.js': ({ connectJs }) => {
    const db = drizzleJs(connectJs())
    return {
      mistake: db,
      transact: (body) =>
        db.transaction((tx) =>
          body({
            tx,
            pay: async (key) => tx.execute(drizzleSql`INSERT INTO payment VALUES (${key})`),
          }),
        ),
    }
  },

  // With a plugin that renames what it reads, as many have it.
  Kysely: ({ connect }) => {
    const db = new Kysely<{ payment: { key: string } }>({
      dialect: new PostgresDialect({ pool: connect() }),
      plugins: [new CamelCasePlugin()],
    })
    return {
      mistake: db,
      transact: (body) =>
        db
          .transaction()
          .execute((tx) =>
            body({ tx, pay: (key) => tx.insertInto('payment').values({ key }).execute() }),
          ),
    }
  },

  Knex: ({ url }) => {
    const db = knex({ client: 'pg', connection: url, pool: { min: 0, max: 4 } })
    onTestFinished(() => db.destroy())
    return {
      mistake: db,
      transact: (body) =>
        db.transaction((tx) => body({ tx, pay: async (key) => tx('payment').insert({ key }) })),
    }
  },

  // These two need generated code or decorators; objects of their documented shape stand in.
  'the shape of Prisma': ({ connect }) => {
    const pool = connect()
    const $queryRawUnsafe = async (sql: string) => (await pool.query(sql)).rows as unknown[]
    const mistake = { $queryRawUnsafe, $connect: () => undefined }
    return { ...withPg(pool, prismaLike), mistake }
  },
  'the shape of TypeORM': ({ connect }) => {
    const pool = connect()
    const query = async (sql: string) => (await pool.query(sql)).rows as unknown[]
    const mistake = { query, getRepository: () => undefined, queryRunner: undefined }
    return { ...withPg(pool, typeormLike), mistake }
  },

  runSql: ({ connect }) => {
    const pool = connect()
    const runSql = async (sql: string) => (await pool.query(sql)).rows as unknown[]
    const shown = (client: pg.PoolClient) => ({
      runSql: async (sql: string) => (await client.query(sql)).rows as unknown[],
    })
    return { ...withPg(pool, shown), mistake: { runSql } }
  },
}
