/** The tools that people write their transactions with, whatever the database. */
import knex, { type Knex } from 'knex'
import type { Kysely } from 'kysely'
import { onTestFinished } from 'vitest'
import { drizzleSql, type DrizzleDatabase } from './drizzle.ts'

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

/** Sends a statement and gives what the driver would: rows, or what was done. */
export type Send = (sql: string) => Promise<unknown>

interface Shape {
  readonly transaction: (send: Send) => object
  readonly mistake: (send: Send) => object
}

/**
 * Those that need generated code or decorators, and those that nobody knows: objects of the
 * documented shape stand in.
 */
export const SHAPES: Readonly<Record<string, Shape>> = {
  // Of an interactive transaction: the whole client, without what belongs to the connection.
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

/** Prisma gives rows in any case. */
const rowsOf = (send: Send) => async (sql: string) => {
  const answer = await send(sql)
  return Array.isArray(answer) ? answer : []
}
