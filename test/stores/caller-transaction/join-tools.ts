/** Query builders and ORMs in whose transactions the stores join, for all databases. */
import knex, { type Knex } from 'knex'
import type { Kysely } from 'kysely'
import { onTestFinished } from 'vitest'
import { drizzleSql, type DrizzleDatabase } from './drizzle.ts'

export interface Tool {
  /** Runs `body` in a transaction of the tool. Commits if it resolves, and rolls back if not. */
  transact<Result>(body: (open: OpenTransaction) => Promise<Result>): Promise<Result>
  /** A client that callers may pass by mistake: it commits each statement separately. */
  readonly mistake: unknown
}

export interface OpenTransaction {
  readonly tx: unknown
  readonly pay: (key: string) => Promise<unknown>
}

export const withDrizzle = (db: DrizzleDatabase): Tool => ({
  mistake: db,
  transact: (body) =>
    db.transaction((tx) =>
      body({
        tx,
        pay: async (key) => tx.execute(drizzleSql`INSERT INTO payment VALUES (${key})`),
      }),
    ),
})

export const withKysely = (db: Kysely<{ payment: { key: string } }>): Tool => ({
  mistake: db,
  transact: (body) =>
    db
      .transaction()
      .execute((tx) =>
        body({ tx, pay: (key) => tx.insertInto('payment').values({ key }).execute() }),
      ),
})

export function withKnex(config: Knex.Config): Tool {
  const db = knex({ ...config, pool: { min: 0, max: 4 } })
  onTestFinished(() => db.destroy())
  return {
    mistake: db,
    transact: (body) =>
      db.transaction((tx) => body({ tx, pay: async (key) => tx('payment').insert({ key }) })),
  }
}

/** Sends a statement and returns what the driver returns: rows, or a summary of the write. */
export type Send = (sql: string) => Promise<unknown>

interface Shape {
  readonly transaction: (send: Send) => object
  readonly mistake: (send: Send) => object
}

/**
 * Objects with the documented methods of tools that need generated code or decorators, and of
 * `runSql`, for tools that the package does not recognise.
 */
export const SHAPES: Readonly<Record<string, Shape>> = {
  // An interactive transaction has all methods of the client, except those of the connection.
  'the shape of Prisma': {
    transaction: (send) => ({ $queryRawUnsafe: rowsOf(send), $transaction: () => undefined }),
    mistake: (send) => ({ $queryRawUnsafe: rowsOf(send), $connect: () => undefined }),
  },
  'the shape of TypeORM': {
    transaction: (send) => ({
      query: send,
      getRepository: () => undefined,
      queryRunner: { isTransactionActive: true },
    }),
    mistake: (send) => ({
      query: send,
      getRepository: () => undefined,
      queryRunner: undefined,
    }),
  },
  runSql: {
    transaction: (send) => ({ runSql: send }),
    mistake: (send) => ({ runSql: send }),
  },
}

/** Prisma always returns rows, also for a write. */
const rowsOf = (send: Send) => async (sql: string) => {
  const answer = await send(sql)
  return Array.isArray(answer) ? answer : []
}
