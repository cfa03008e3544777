import knex from 'knex'
import { Kysely, MysqlDialect, PostgresDialect } from 'kysely'
import mysql from 'mysql2'
import mysqlPromise from 'mysql2/promise'
import pg from 'pg'
import postgres from 'postgres'
import { describe, expect, it } from 'vitest'
import {
  answerOf,
  causesOf,
  driverErrorOf,
  foreignTransaction,
} from '../../../src/stores/kit/foreign-transaction.ts'
import { drizzleJs, drizzleMysql, drizzlePg } from '../caller-transaction/drizzle.ts'

const ROW = { answer: 'yes' }
const SQL = `SELECT 'yes' AS answer`

/** Records the values that a tool gets, and answers them. */
const recorder = () => {
  const sent: unknown[] = []
  const answering =
    (answer: unknown) =>
    (...values: unknown[]) => {
      sent.push(values)
      return Promise.resolve(answer)
    }
  return { sent, answering }
}

// None of these clients connects: they are refused by their shape.
describe('clients that are no transaction', () => {
  const pool = () => new pg.Pool()
  const pools: Record<string, () => unknown> = {
    'a pool of pg': pool,
    'the sql of postgres.js': () => postgres(),
    'a pool of mysql2': () => mysql.createPool({}),
    'a pool of mysql2 with promises': () => mysqlPromise.createPool({}),
    'a cluster of mysql2': () => Object.assign(mysql.createPoolCluster(), { query: () => {} }),
    'the db of Drizzle on pg': () => drizzlePg(pool()),
    'the db of Drizzle on postgres.js': () => drizzleJs(postgres()),
    'the db of Drizzle on mysql2': () => drizzleMysql(mysql.createPool({})),
    'the db of Kysely': () => new Kysely({ dialect: new PostgresDialect({ pool: pool() }) }),
    'the db of Kysely on mysql2': () =>
      new Kysely({ dialect: new MysqlDialect({ pool: mysql.createPool({}) }) }),
    Knex: () => knex({ client: 'pg' }),
    'Knex on mysql2': () => knex({ client: 'mysql2' }),
    'a client of Prisma': () => ({ $queryRawUnsafe: () => {}, $connect: () => {} }),
    'a manager of TypeORM': () => ({ query: () => {}, getRepository: () => {} }),
    'a runner of TypeORM': () => ({ query: () => {}, isTransactionActive: false }),
    'a transaction of Knex that has ended': () =>
      Object.assign(() => {}, {
        raw: () => {},
        queryBuilder: () => {},
        isTransaction: true,
        isCompleted: () => true,
      }),
  }
  it.each(Object.entries(pools))('refuses %s, with advice', (_name, make) => {
    const refused = () => foreignTransaction(make())
    expect(refused).toThrow(expect.objectContaining({ code: 'INVALID_OPTIONS' }))
    expect(refused).toThrow(/: pass |take one connection/)
  })

  it.each([undefined, null, 'tx', 7, {}, [], () => {}, new Map(), { execute: () => {} }])(
    'refuses %s as an unknown transaction',
    (tx) => {
      expect(() => foreignTransaction(tx)).toThrow('takes an open transaction')
    },
  )
})

describe('open transactions', () => {
  const { sent, answering } = recorder()
  const tagged = (methods: object) => Object.assign(() => {}, methods)
  const kinds: Record<string, unknown> = {
    pg: { query: answering({ rows: [ROW] }), release: () => {} },
    'postgres.js': tagged({ unsafe: answering([ROW]), savepoint: () => {} }),
    'mysql2 with promises': { query: answering([[ROW], []]), beginTransaction: () => {} },
    'mysql2 with callbacks': {
      query: () => undefined,
      promise: () => ({ query: answering([[ROW], []]) }),
    },
    'Drizzle on pg': {
      execute: answering({ rows: [ROW] }),
      dialect: {},
      session: {},
      rollback() {},
    },
    'Drizzle on mysql2': {
      execute: answering([[ROW], []]),
      dialect: {},
      session: {},
      rollback() {},
    },
    Knex: tagged({
      raw: answering({ rows: [ROW] }),
      queryBuilder: () => {},
      isTransaction: true,
      isCompleted: () => false,
    }),
    'Knex on mysql2': tagged({
      raw: answering([[ROW], []]),
      queryBuilder: () => {},
      isTransaction: true,
    }),
    Prisma: { $queryRawUnsafe: answering([ROW]), $transaction: () => {} },
    TypeORM: {
      query: answering([ROW]),
      getRepository: () => {},
      queryRunner: { isTransactionActive: true },
    },
    runSql: { runSql: answering([ROW]) },
  }

  it.each(Object.entries(kinds))(
    'sends only the statement to a transaction of %s',
    async (_name, tx) => {
      sent.length = 0
      expect(await foreignTransaction(tx)(SQL)).toEqual([ROW])
      expect(sent).toEqual([[SQL]])
    },
  )

  it('sends a query without parameters to a transaction of Kysely', async () => {
    sent.length = 0
    const executeQuery = answering({ rows: [ROW] })
    const tx = { executeQuery, getExecutor: () => {}, isTransaction: true }
    expect(await foreignTransaction(tx)(SQL)).toEqual([ROW])
    const query = { kind: 'RawNode', sqlFragments: [SQL], parameters: [] }
    expect(sent).toEqual([[expect.objectContaining({ sql: SQL, parameters: [], query })]])
  })

  it('returns no rows for a statement without rows, and answerOf then throws', async () => {
    for (const answer of [{ affectedRows: 1 }, { rows: [] }, [], [[], []]]) {
      const rows = await foreignTransaction({ runSql: async () => answer as never })(SQL)
      expect(rows).toEqual([])
      expect(() => answerOf(rows)).toThrow('no readable answer')
    }
  })

  it('rejects when the transaction returns no promise or no rows', async () => {
    const silent = foreignTransaction({ query: () => undefined })
    await expect(silent(SQL)).rejects.toMatchObject({ code: 'INVALID_OPTIONS' })
    const empty = foreignTransaction({ runSql: async () => undefined })
    await expect(empty(SQL)).rejects.toThrow('returned no rows')
  })
})

it('reads the only value of the only row under any column name', () => {
  for (const row of [ROW, { ANSWER: 'yes' }, ['yes'], { answer: Buffer.from('yes') }]) {
    expect(answerOf([row as Record<string, unknown>])).toBe('yes')
  }
  for (const rows of [[], [ROW, ROW], [{ a: 'yes', b: 'no' }], [{ answer: 7 }], [null]]) {
    expect(() => answerOf(rows as Record<string, unknown>[])).toThrow('no readable answer')
  }
})

describe('driver errors', () => {
  const answer = (code: string) => Object.assign(new Error(`failed: ${SQL}`), { code, errno: 7 })

  it('finds the error of the driver in that of a tool, and removes the statement', () => {
    const own = answer('23505')
    for (const error of [own, new Error(`query ${SQL}`, { cause: own })]) {
      const found = driverErrorOf(error, SQL)
      expect(found).toMatchObject({ message: 'failed: …', code: '23505', errno: 7 })
    }
    const plain = new Error('connection lost')
    expect(driverErrorOf(plain, SQL)).toBe(plain)
    expect(driverErrorOf('thrown', SQL)).toBe('thrown')
  })

  it('finds the error of the driver in the meta data of Prisma', () => {
    const cause = { originalCode: '1213', originalMessage: 'deadlock', kind: 'mysql' }
    const meta = { driverAdapterError: { cause } }
    const error = Object.assign(new Error('raw query failed'), { code: 'P2010', meta })
    expect(causesOf(error).map(({ message }) => message)).toEqual(['raw query failed', 'deadlock'])
    const found = { code: '1213', errno: 1213, message: 'deadlock' }
    expect(driverErrorOf(error, SQL)).toMatchObject(found)
    for (const other of [{}, { driverAdapterError: {} }, undefined, 'text']) {
      expect(causesOf(Object.assign(new Error('other'), { meta: other })).length).toBe(1)
    }
  })

  it('follows at most eight causes of an error', () => {
    const error = new Error('its own cause')
    error.cause = error
    expect(causesOf(error).length).toBe(8)
  })
})
