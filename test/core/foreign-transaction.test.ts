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
} from '../../src/core/foreign-transaction.ts'
import { drizzleJs, drizzleMysql, drizzlePg } from '../stores/drizzle.ts'

const ROW = { answer: 'yes' }
const SQL = `SELECT 'yes' AS answer`

/** What a tool was sent. */
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

// None of these ever connects: they are refused for what they are.
describe('what is no transaction', () => {
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
  it.each(Object.entries(pools))('%s is refused, with a word about what to do', (_name, make) => {
    const refused = () => foreignTransaction(make())
    expect(refused).toThrow(expect.objectContaining({ code: 'INVALID_OPTIONS' }))
    expect(refused).toThrow(/give it|has ended/)
  })

  it.each([undefined, null, 'tx', 7, {}, [], () => {}, new Map(), { execute: () => {} }])(
    'as little as %s is refused',
    (tx) => {
      expect(() => foreignTransaction(tx)).toThrow('takes an open transaction')
    },
  )
})

describe('a transaction', () => {
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

  it.each(Object.entries(kinds))('of %s is sent the statement alone', async (_name, tx) => {
    sent.length = 0
    expect(await foreignTransaction(tx)(SQL)).toEqual([ROW])
    expect(sent).toEqual([[SQL]])
  })

  it('of Kysely is sent a query without parameters', async () => {
    sent.length = 0
    const executeQuery = answering({ rows: [ROW] })
    const tx = { executeQuery, getExecutor: () => {}, isTransaction: true }
    expect(await foreignTransaction(tx)(SQL)).toEqual([ROW])
    const query = { kind: 'RawNode', sqlFragments: [SQL], parameters: [] }
    expect(sent).toEqual([[expect.objectContaining({ sql: SQL, parameters: [], query })]])
  })

  it('may have no rows to give, and an answer must be read from one', async () => {
    for (const answer of [{ affectedRows: 1 }, { rows: [] }, [], [[], []]]) {
      const rows = await foreignTransaction({ runSql: async () => answer as never })(SQL)
      expect(rows).toEqual([])
      expect(() => answerOf(rows)).toThrow('no answer')
    }
  })

  it('that gives no promise, or no rows, is an error', async () => {
    const silent = foreignTransaction({ query: () => undefined })
    await expect(silent(SQL)).rejects.toMatchObject({ code: 'INVALID_OPTIONS' })
    const empty = foreignTransaction({ runSql: async () => undefined })
    await expect(empty(SQL)).rejects.toThrow('gave no rows')
  })
})

it('reads the only value of the only row, whatever its name', () => {
  for (const row of [ROW, { ANSWER: 'yes' }, ['yes'], { answer: Buffer.from('yes') }]) {
    expect(answerOf([row as Record<string, unknown>])).toBe('yes')
  }
  for (const rows of [[], [ROW, ROW], [{ a: 'yes', b: 'no' }], [{ answer: 7 }], [null]]) {
    expect(() => answerOf(rows as Record<string, unknown>[])).toThrow('no answer')
  }
})

describe('the error of a driver', () => {
  const answer = (code: string) => Object.assign(new Error(`failed: ${SQL}`), { code, errno: 7 })

  it('is found in that of a tool, without the statement', () => {
    const own = answer('23505')
    for (const error of [own, new Error(`query ${SQL}`, { cause: own })]) {
      const found = driverErrorOf(error, SQL)
      expect(found).toMatchObject({ message: 'failed: …', code: '23505', errno: 7 })
    }
    const plain = new Error('connection lost')
    expect(driverErrorOf(plain, SQL)).toBe(plain)
    expect(driverErrorOf('thrown', SQL)).toBe('thrown')
  })

  it('is found in what Prisma says of it', () => {
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

  it('is not looked for for ever', () => {
    const error = new Error('its own cause')
    error.cause = error
    expect(causesOf(error).length).toBe(8)
  })
})
