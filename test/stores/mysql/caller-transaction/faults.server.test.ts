import { inspect } from 'node:util'
import fc from 'fast-check'
import type { Pool, PoolConnection } from 'mysql2/promise'
import { describe, expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../../../src/core/engine/engine.ts'
import type { Lease } from '../../../../src/core/store/store.ts'
import { LEASE } from '../../../../src/stores/mysql/columns.ts'
import { settleIn } from '../../../../src/stores/mysql/settlements.ts'
import { SERVER_NOW, tablesOf } from '../../../../src/stores/mysql/sql.ts'
import {
  bytes,
  claim,
  hold,
  LEASE_MS,
  ofKind,
  viewOf,
} from '../../../../src/testing/store-cases/store-case.ts'
import { send, sendPrepared, TOOLS, withMysql } from './tools.ts'
import { completion, pay, useMariadb } from '../setup.ts'
import { textOf } from '../../run-join-cases.ts'

const setup = useMariadb()

/** A connection that is destroyed when the test ends, with or without an open transaction. */
async function connectionOf(pool: Pool): Promise<PoolConnection> {
  const connection = await pool.getConnection()
  onTestFinished(() => connection.destroy())
  return connection
}

/** Removes the comments that only MariaDB executes, so that the server behaves like MySQL. */
const likeMysql = (run: (sql: string) => Promise<unknown>) => (sql: string) =>
  run(sql.replaceAll(/\/\*M!.*?\*\//gs, ''))

const WAYS: Readonly<Record<string, (connection: PoolConnection) => unknown>> = {
  'mysql2 with promises': (connection) => connection,
  'mysql2 with callbacks': ({ connection }) => connection,
  'prepared statements': (connection) => ({ runSql: sendPrepared(connection) }),
  'statements as MySQL reads them': (connection) => ({ runSql: likeMysql(send(connection)) }),
}

describe.each(Object.entries(WAYS))('settleIn with %s', (_name, way) => {
  it('rejects a connection without an open transaction, and writes nothing', async () => {
    const { open, connect } = await setup()
    const store = await open()
    const lease = await hold(store)
    const connection = await connectionOf(connect())
    const tx = way(connection)
    const absent = { ...lease, identity: '0'.repeat(32) }
    for (const statements of [[], ['BEGIN', 'COMMIT'], ['BEGIN', 'ROLLBACK'], ['SET @a = 1']]) {
      for (const sql of statements) await connection.query(sql)
      for (const one of [lease, absent]) {
        const refused = store.settleIn(tx, one, completion())
        await expect(refused).rejects.toThrow('no transaction is open')
        await expect(refused).rejects.toMatchObject({ code: 'INVALID_OPTIONS' })
      }
    }
    expect((await viewOf(store, lease)).state).toBe('in_progress')

    // Accepted as the first statement of a transaction, and with autocommit off.
    for (const begin of ['BEGIN', 'SET autocommit = 0']) {
      await connection.query(begin)
      ofKind(await store.settleIn(tx, lease, completion('undone')), 'settled')
      expect(await store.settleIn(tx, absent, completion())).toEqual({
        kind: 'fenced',
        own: false,
        state: 'absent',
      })
      await connection.query('ROLLBACK')
      expect((await viewOf(store, lease)).state).toBe('in_progress')
    }
    await pay(connection, 'kept')
    ofKind(await store.settleIn(tx, lease, completion('kept')), 'settled')
    await connection.query('COMMIT')
    expect(textOf((await viewOf(store, lease)).result)).toBe('kept')

    // The rows of the first transaction are kept, and must not be kept twice.
    const own = { kind: 'fenced', own: true, state: 'completed' }
    expect(await store.settleIn(tx, lease, completion())).toEqual(own)
  })
})

describe('statements that do not reach one transaction', () => {
  // The first statement finds an open transaction.
  it.each([
    ['after a commit', 'here'],
    ['on another connection', 'there'],
  ] as const)(
    'rejects statements that continue %s, and writes nothing',
    async (_how, continuesOn) => {
      const { open, connect } = await setup()
      const store = await open()
      const lease = await hold(store)
      const pool = connect()
      const [here, there] = [await connectionOf(pool), await connectionOf(pool)]
      for (const connection of [here, there]) await connection.beginTransaction()
      let sent = 0
      const runSql = async (sql: string) => {
        if (++sent === 1) return (await send(here)(sql)) as object[]
        if (sent === 2) await here.commit()
        return (await send(continuesOn === 'here' ? here : there)(sql)) as object[]
      }
      const refused = store.settleIn({ runSql }, lease, completion())
      await expect(refused).rejects.toMatchObject({ code: 'INVALID_OPTIONS' })
      expect(sent).toBe(3)
      await there.commit()
      expect((await viewOf(store, lease)).state).toBe('in_progress')
    },
  )
})

describe('transactions of one lease', () => {
  it('settles the lease in one of two transactions, and fences the other', async () => {
    const { open, connect } = await setup()
    const store = await open()
    const lease = await hold(store)
    const pool = connect()
    const [a, b] = [await connectionOf(pool), await connectionOf(pool)]
    for (const connection of [a, b]) await connection.beginTransaction()
    ofKind(await store.settleIn(a, lease, completion('a')), 'settled')
    // The second call waits for the first transaction, and finds that it has committed.
    const second = store.settleIn(b, lease, completion('b'))
    await a.commit()
    expect(await second).toEqual({ kind: 'fenced', own: true, state: 'completed' })
    await b.rollback()
    expect(textOf((await viewOf(store, lease)).result)).toBe('a')
  })

  it('rolls back the completion together with a savepoint', async () => {
    const { open, connect, paid } = await setup()
    const store = await open()
    const lease = await hold(store)
    const connection = await connectionOf(connect())
    await connection.beginTransaction()
    await pay(connection, 'kept')
    await connection.query('SAVEPOINT s')
    ofKind(await store.settleIn(connection, lease, completion('undone')), 'settled')
    await connection.query('ROLLBACK TO SAVEPOINT s')
    ofKind(await store.settleIn(connection, lease, completion('kept')), 'settled')
    await connection.commit()
    expect(textOf((await viewOf(store, lease)).result)).toBe('kept')
    expect(await paid()).toEqual(['kept'])
  })
})

describe('isolation levels other than READ COMMITTED', () => {
  const LEVELS = ['READ UNCOMMITTED', 'REPEATABLE READ', 'SERIALIZABLE']

  /** A transaction with a snapshot of everything that was committed before. */
  async function begun(pool: Pool, level: string, settings = 'SELECT 1') {
    const connection = await connectionOf(pool)
    await connection.query(settings)
    await connection.query(`SET TRANSACTION ISOLATION LEVEL ${level}`)
    await connection.query('START TRANSACTION')
    await connection.query('SELECT COUNT(*) FROM oncekey_record')
    await pay(connection, level)
    return connection
  }

  it.each(LEVELS)('settles the current lease and fences an old one under %s', async (level) => {
    const { open, connect, app, paid } = await setup()
    const store = await open()
    const pool = connect()
    const lease = await hold(store, { onLapse: 'rerun' })
    const stale = await begun(pool, level)
    // A SERIALIZABLE transaction locks the rows that it reads.
    if (level === 'SERIALIZABLE') await stale.query('ROLLBACK')
    await app.query('UPDATE oncekey_record SET lease_until_ms = 0')
    const { lease: next } = ofKind(await claim(store), 'claimed')
    if (level === 'SERIALIZABLE') await stale.query('BEGIN')
    const fenced = { kind: 'fenced', own: false, state: 'in_progress' }
    expect(await store.settleIn(stale, lease, completion())).toEqual(fenced)
    await stale.rollback()

    const holder = await begun(pool, level)
    ofKind(await store.settleIn(holder, next, completion('kept')), 'settled')
    await holder.commit()
    expect(textOf((await viewOf(store, next)).result)).toBe('kept')
    expect(await paid()).toEqual([level])
  })

  // Snapshot isolation is the default from MariaDB 11.6.
  it('throws a conflict under snapshot isolation when the record has changed', async () => {
    const { open, connect, paid } = await setup()
    const store = await open()
    const lease = await hold(store)
    const settings = 'SET SESSION innodb_snapshot_isolation = ON'
    const connection = await begun(connect(), 'REPEATABLE READ', settings)
    expect(await store.renew([{ ...lease, leaseMs: 2 * LEASE_MS }])).toEqual([true])
    const conflict = store.settleIn(connection, lease, completion())
    await expect(conflict).rejects.toMatchObject({ errno: 1020 })
    await connection.rollback()
    expect(await paid()).toEqual([])
    expect((await viewOf(store, lease)).state).toBe('in_progress')
  })
})

const SENDING = ['mysql2 with promises', 'Drizzle', 'Kysely', 'Knex', 'runSql']

/** The error number of the database, from an error that a tool may have wrapped. */
function numberOf(error: unknown): unknown {
  const { errno, cause } = error as { errno?: unknown; cause?: unknown }
  return errno ?? (cause === undefined ? undefined : numberOf(cause))
}

describe('a conflict', () => {
  it('throws the error of the tool when a row stays locked', async () => {
    const { open, connect, ...connections } = await setup()
    const store = await open()
    const lease = await hold(store)
    const rival = await connectionOf(connect())
    await rival.beginTransaction()
    await rival.query('SELECT * FROM oncekey_record FOR UPDATE')
    const waiting = SENDING.map(async (name) => {
      const tool = TOOLS[name]!({ connect, ...connections })
      const failed = tool.transact(({ tx }) => store.settleIn(tx, lease, completion()))
      return failed.catch((error: unknown) => error)
    })
    for (const error of await Promise.all(waiting)) {
      expect(error).not.toMatchObject({ code: 'STORE_FAILED' })
      expect(numberOf(error)).toBe(1205)
    }
  })

  it.each(SENDING)('throws the error of %s after a deadlock', async (name) => {
    const { open, app, connect, ...connections } = await setup()
    const store = await open()
    const lease = await hold(store)
    await app.query('CREATE TABLE account (id INT PRIMARY KEY) ENGINE = InnoDB')
    const rival = await connectionOf(connect())
    await rival.beginTransaction()
    // The database chooses the transaction that has written less as the victim.
    for (let n = 0; n < 30; n++) await rival.query(`INSERT INTO account VALUES (${n})`)
    await rival.query('SELECT * FROM oncekey_record FOR UPDATE')
    const tool = TOOLS[name]!({ connect, ...connections })
    let waiting: Promise<unknown> | undefined
    const failed = tool.transact(async ({ tx, pay: insert }) => {
      await insert('victim')
      waiting = rival.query('SELECT * FROM payment FOR UPDATE')
      return store.settleIn(tx, lease, completion())
    })
    const error = await failed.catch((reason: unknown) => reason)
    await waiting
    expect(error).not.toMatchObject({ code: 'STORE_FAILED' })
    expect(numberOf(error)).toBe(1213)
    expect((await viewOf(store, lease)).state).toBe('in_progress')
  })
})

describe('a statement that fails', () => {
  it.each(SENDING)('shows nothing of the result in an error with %s', async (name) => {
    const { open, app, ...connections } = await setup()
    const store = await open()
    const lease = await hold(store)
    await app.query(`CREATE TRIGGER stop BEFORE UPDATE ON oncekey_record FOR EACH ROW
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'stopped here'`)
    const tool = TOOLS[name]!(connections)
    const failed = tool.transact(({ tx }) => store.settleIn(tx, lease, completion('secret')))
    const error = await failed.catch((reason: unknown) => reason)
    expect(error).toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
    expect((error as Error).message).toContain('stopped here')
    expect(inspect(error, { depth: 9 })).not.toContain(Buffer.from('secret').toString('hex'))
    expect((await viewOf(store, lease)).state).toBe('in_progress')
  })

  it('fails in a read-only transaction, and completes nothing', async () => {
    const { open, connect } = await setup()
    const store = await open()
    const lease = await hold(store)
    const connection = await connectionOf(connect())
    await connection.query('START TRANSACTION READ ONLY')
    const failed = store.settleIn(connection, lease, completion())
    await expect(failed).rejects.toMatchObject({ code: 'STORE_FAILED' })
    await connection.query('COMMIT')
    expect((await viewOf(store, lease)).state).toBe('in_progress')
  })

  it('advises to call migrate() when the table does not exist', async () => {
    const { open, app, connect } = await setup()
    const store = await open()
    const lease = await hold(store)
    await app.query('DROP TABLE oncekey_record')
    const failed = withMysql(connect()).transact(({ tx }) =>
      store.settleIn(tx, lease, completion()),
    )
    await expect(failed).rejects.toThrow('call store.migrate() once')
  })
})

describe('completeIn of the engine', () => {
  const request = { scope: { tenant: 'acme', operation: 'pay' }, key: 'k', fingerprint: 'f' }

  it('makes the record unknown when no transaction is open', async () => {
    const { open, connect, paid } = await setup()
    const store = await open()
    const engine = createEngine({ store, sweepEveryMs: 0, reapEveryMs: 0 })
    const connection = await connectionOf(connect())
    const running = engine.run(request, async (context) => {
      await pay(connection, 'at once')
      await context.completeIn(connection, bytes('receipt'))
      return bytes('receipt')
    })
    await expect(running).rejects.toThrow('no transaction is open')
    // The row is committed, so a second run would pay twice.
    expect(await paid()).toEqual(['at once'])
    expect(await engine.read(request)).toMatchObject({ state: 'unknown' })
  })

  it('detects a commit whose answer was lost, and fences the second attempt', async () => {
    const { open, connect, paid } = await setup()
    const engine = createEngine({ store: await open(), sweepEveryMs: 0, reapEveryMs: 0 })
    const tool = withMysql(connect())
    const outcome = await engine.run(request, async (context) => {
      const work = () =>
        tool.transact(async ({ tx, pay: insert }) => {
          await insert('row')
          await context.completeIn(tx, bytes('receipt'))
          return bytes('receipt')
        })
      const lost = work().then(() => Promise.reject(new Error('connection lost')))
      return lost.catch(work)
    })
    expect(outcome.kind).toBe('ran')
    expect(await paid()).toEqual(['row'])
  })
})

describe('the statements of settleIn', () => {
  const context = { tables: tablesOf({ database: 'd', table: 't' }), now: SERVER_NOW }

  /** Statements for a held lease in a transaction on MySQL, which needs the most of them. */
  const sent = async ({ identity, token, attempt }: Lease, result: Uint8Array) => {
    const statements: string[] = []
    const known: Readonly<Record<string, string>> = {
      identity: 'ab'.repeat(16),
      token: Buffer.from(token).toString('hex'),
      attempt: String(attempt),
      leaseUntilMs: '1',
      lastRunAtMs: '1',
      expiresAtMs: '1',
    }
    const runSql = async (sql: string) => {
      statements.push(sql)
      const state = sql.includes('FOR UPDATE') ? 'in_progress' : 'completed'
      const columns = LEASE.map((field) => known[field] ?? (field === 'state' ? state : '-'))
      return [{ answer: ['unknown', '7', '1000', ...columns].join(' ') }]
    }
    const lease = { identity, token, attempt }
    const settlement = { kind: 'complete', lease, result, retentionMs: 1000 } as const
    expect((await settleIn({ runSql }, context, settlement)).kind).toBe('settled')
    return statements
  }

  it('contain no character that a tool could interpret as a placeholder', async () => {
    const token = fc.string({ unit: 'grapheme', minLength: 1, maxLength: 8 })
    const property = fc.asyncProperty(token, fc.uint8Array(), async (text, result) => {
      const lease = { identity: 'ab'.repeat(16), token: text, attempt: 1 }
      const statements = await sent(lease, result)
      expect(statements.length).toBe(5)
      for (const sql of statements) {
        expect(sql).not.toMatch(/[?:$]/)
        // Every text is a fixed word or hexadecimal.
        const literals = sql.match(/'[^']*'/g) ?? []
        for (const one of literals) expect(one).toMatch(/^'([A-Za-z_ 0-9-]*|([0-9a-f]{2})*)'$/)
      }
    })
    await fc.assert(property)
  })
})
