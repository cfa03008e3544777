import { inspect } from 'node:util'
import mysql, { type Pool, type RowDataPacket } from 'mysql2/promise'
import { expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { migrationSql, mysqlStore } from '../../../src/stores/mysql/index.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import {
  bytes,
  claim,
  claimRequest,
  claimRequests,
  completeOf,
  finish,
  hold,
  LEASE_MS,
  ofKind,
  releaseOf,
  RETENTION_MS,
  settle,
  tally,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { likeMysqlPool } from './durable/setup.ts'
import { completion, pay, telling, useMariadb } from './setup.ts'

const setup = useMariadb()

const OTHER = { key: 'other' }

it('applies each migration once when many pools migrate at the same time', async () => {
  const { connect, column } = await setup()
  const stores = Array.from({ length: 8 }, () =>
    mysqlStore({ pool: connect({ connectionLimit: 2 }) }),
  )
  await Promise.all(stores.map((store) => store.migrate()))
  const numbers = await column('SELECT number FROM oncekey_record_migration ORDER BY 1')
  expect(numbers).toEqual([-4, -3, -2, 1])
  ofKind(await claim(stores[7]!), 'claimed')
})

it('creates the database of its tables if it does not exist', async () => {
  const { open, url, app } = await setup()
  const database = `${new URL(url).pathname.slice(1)}_made`
  const store = await open({ database, table: 'record' })
  await finish(store)
  await app.query(`DROP DATABASE ${database}`)
})

it('creates a missing database once when stores of several tables migrate at once', async () => {
  const { connect, url, app } = await setup()
  const database = `${new URL(url).pathname.slice(1)}_made`
  const pools = Array.from({ length: 4 }, () => connect({ connectionLimit: 1 }))
  for (let round = 0; round < 5; round++) {
    const tables = pools.map((pool, n) => mysqlStore({ pool, database, table: `t${n}` }))
    await Promise.all(tables.map((store) => store.migrate()))
    await app.query(`DROP DATABASE ${database}`)
  }
})

// A statement that creates a table commits alone, and the process may crash after each of them.
it.each([
  ['by IF NOT EXISTS', (pool: Pool) => pool],
  ['by the errors of a server without it', likeMysqlPool],
])('continues a migration that was interrupted, %s', async (_, toPool) => {
  const { open, app, connect } = await setup()
  await open()
  await app.query('DELETE FROM oncekey_record_migration')
  await mysqlStore({ pool: toPool(connect()) }).migrate()
  await app.query('DELETE FROM oncekey_record_migration')
  await app.query('DROP TABLE oncekey_record_history')
  const store = await open({ history: true })
  await finish(store)
  const { identity } = claimRequest()
  expect(await store.history!({ ref: { identity }, limit: 1 })).toEqual([])
})

it('advises to call migrate() when the tables do not exist', async () => {
  const { connect } = await setup()
  const store = mysqlStore({ pool: connect() })
  await expect(claim(store)).rejects.toThrow('call store.migrate() once')
})

it('rejects tables that only a newer version can use', async () => {
  const { open, app } = await setup()
  const store = await open()
  await app.query('INSERT INTO oncekey_record_migration (number) VALUES (99)')
  await expect(store.migrate()).rejects.toThrow(
    /needs one that knows migration 99\. This version knows \d+/,
  )
})

it('works for a user without the right to create tables, after a migration by hand', async () => {
  const { url, app, connect } = await setup()
  const script = await mysql.createConnection({ uri: url, multipleStatements: true })
  await script.query(migrationSql({ table: 'record' }))
  await script.end()
  const user = `plain_${new URL(url).pathname.slice(-8)}`
  await app.query(`CREATE USER ${user}`)
  const grant = (rights: string, table: string) =>
    app.query(`GRANT ${rights} ON ${new URL(url).pathname.slice(1)}.${table} TO ${user}`)
  await grant('SELECT, INSERT, UPDATE, DELETE', 'record')
  await grant('SELECT, INSERT', 'record_history')
  await grant('SELECT', 'record_migration')
  const pool = connect({ user })
  await expect(pool.query('CREATE TABLE other (id INT)')).rejects.toThrow('denied')

  const clock = new FakeClock()
  const store = mysqlStore({ pool, table: 'record', history: true, clock })
  await store.migrate()
  await finish(store)
  ofKind(await claim(store), 'completed')
  ofKind(await store.transaction(await hold(store, { key: 'tx' }), () => completion()), 'settled')
  expect(await store.sweep({ limit: 10 })).toEqual([])
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 10 })).removed).toBe(2)
  await pool.end()
  await app.query(`DROP USER ${user}`)
})

it('rejects a single connection, unknown options and invalid names', async () => {
  const { connect, url } = await setup()
  const pool = connect()
  const connection = await mysql.createConnection(url)
  expect(() => mysqlStore({ pool: connection as never })).toThrow('not a single connection')
  await connection.end()
  expect(() => mysqlStore({ pool: {} as never })).toThrow('pool must be')
  expect(() => mysqlStore({ pool, tabel: 'x' } as never)).toThrow('no option "tabel"')
  expect(() => mysqlStore({ pool, table: 'a`b' })).toThrow('table must be a name')
  expect(() => mysqlStore({ pool, database: '1a' })).toThrow('database must be a name')
  expect(() => mysqlStore({ pool, history: 1 as never })).toThrow('history')
  expect(() => mysqlStore({ pool, transactionTimeoutMs: 0 })).toThrow('transactionTimeoutMs')
  expect(() => migrationSql({ after: 9 })).toThrow('after')
})

it.each([
  `SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ`,
  `SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE`,
  `SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED`,
  `SET SESSION sql_mode = ''`,
  `SET SESSION sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,EMPTY_STRING_IS_NULL'`,
  `SET SESSION sql_mode = 'ORACLE,SIMULTANEOUS_ASSIGNMENT'`,
  `SET SESSION time_zone = '-11:30'`,
  `SET SESSION autocommit = 0`,
  `SET NAMES gbk`,
])('works the same in a session with %s', async (settings) => {
  const { open, connect, column } = await setup()
  const store = await open({ pool: connect({}, settings), history: true })
  const batches = await Promise.all(
    Array.from({ length: 6 }, () => store.claim(claimRequests(25, { onLapse: 'rerun' }))),
  )
  expect(tally(batches.flat())).toEqual({ claimed: 25, in_progress: 125 })
  const [a, b, c, d] = batches
    .flat()
    .flatMap((outcome) => (outcome.kind === 'claimed' ? [outcome.lease] : []))
  ofKind(await settle(store, completeOf(a!, bytes(''))), 'settled')
  ofKind(await settle(store, releaseOf(b!)), 'settled')
  ofKind(await store.transaction(c!, () => completion('租 ')), 'settled')
  expect(await store.renew([{ ...d!, leaseMs: 1 }])).toEqual([true])

  // Another session sees the rows, so they are committed.
  const state = `SELECT CONCAT(state, ' ', COUNT(*)) FROM oncekey_record GROUP BY state ORDER BY 1`
  const states = ['completed 2', 'failed_retryable 1', 'in_progress 22']
  expect(await column(state)).toEqual(states)
  const leaseMs = 'SELECT MAX(lease_until_ms) - UNIX_TIMESTAMP(NOW(3)) * 1000 FROM oncekey_record'
  const [leftMs] = await column(leaseMs)
  expect(Math.abs(Number(leftMs) - LEASE_MS)).toBeLessThan(10_000)
  expect((await viewOf(store, a!)).result?.byteLength).toBe(0)
  const { key } = await viewOf(store, b!)
  expect(ofKind(await claim(store, { key }), 'claimed').from).toBe('retry')
  const now = (await store.now!()).getTime()
  expect(Math.abs(now - Date.now())).toBeLessThan(10_000)
})

it('rejects values that a column cannot hold exactly, even in a lax session', async () => {
  const { open, connect } = await setup()
  const store = await open({ pool: connect({}, `SET SESSION sql_mode = ''`) })
  const [good] = claimRequests(1)
  for (const bad of [
    { key: 'half \ud800' },
    { key: 'k'.repeat(1025) },
    { tenant: 't'.repeat(256) },
    { fingerprint: 'f'.repeat(256) },
    { token: 't'.repeat(33) },
    { leaseMs: Number.NaN },
    { leaseMs: 2 ** 60 },
    { maxLapses: Number.NaN },
    { identity: 'zz' },
    { identity: 'abcd' },
    { identity: `'"\\` },
    { onLapse: 'never' as never },
    { afterExpiry: 'never' as never },
    { recordId: 'no uuid' },
  ]) {
    const batch = [good!, claimRequest(bad)]
    const error = await store.claim(batch).catch((thrown: unknown) => thrown)
    expect({ bad, error }).toMatchObject({ bad, error: { failure: 'rejected' } })
    expect(await store.read({ identity: good!.identity })).toBeUndefined()
  }
  const lease = await hold(store)
  const batch = [completeOf(lease), completeOf(lease, {} as never)]
  await expect(store.settle(batch.toReversed())).rejects.toMatchObject({ failure: 'rejected' })
  expect((await viewOf(store, lease)).state).toBe('in_progress')
})

// A CHECK constraint, in a session whose sql_mode accepts most values.
it('has tables that reject values which they cannot hold', async () => {
  const { open, connect, app } = await setup()
  const store = await open({ pool: connect({}, `SET SESSION sql_mode = ''`) })
  await app.query('ALTER TABLE oncekey_record MODIFY tenant VARCHAR(4) NOT NULL')
  await expect(claim(store)).rejects.toMatchObject({ failure: 'rejected' })
  const lease = await hold(store, { tenant: 'abcd' })
  const wrong = `UPDATE oncekey_record SET state = 'done'`
  await expect(app.query(wrong)).rejects.toThrow('failed')
  expect((await viewOf(store, lease)).state).toBe('in_progress')
})

it('leaves the value of a constraint violation out of its message', async () => {
  const { open, app } = await setup()
  const store = await open()
  await app.query('ALTER TABLE oncekey_record ADD UNIQUE (`key`)')
  await hold(store, { key: 'secret' })
  await app.query(`UPDATE oncekey_record SET \`key\` = 'secret', identity = REVERSE(identity)`)
  const error = await claim(store, { key: 'secret' }).catch((thrown: unknown) => thrown)
  expect(error).toMatchObject({ code: 'STORE_FAILED' })
  expect((error as Error).message).not.toContain('secret')
})

it('shows neither the key nor the reply in an error that is printed completely', async () => {
  const { open, app } = await setup()
  const store = await open()
  const lease = await hold(store, { key: 'secret key' })
  await app.query(`CREATE TRIGGER stop BEFORE UPDATE ON oncekey_record FOR EACH ROW
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'stopped here'`)
  const errors = [
    await settle(store, completeOf(lease, bytes('secret reply'))).catch((error: unknown) => error),
  ]
  await app.query('DROP TABLE oncekey_record')
  errors.push(await claim(store, { key: 'secret key' }).catch((error: unknown) => error))
  const printed = inspect(errors, { depth: 9 })
  expect(printed).toContain('stopped here')
  expect(printed).toContain('call store.migrate() once')
  for (const secret of ['secret key', 'secret reply']) {
    expect(printed).not.toContain(secret)
    expect(printed).not.toContain(Buffer.from(secret).toString('hex'))
  }
})

it('keeps every character of a key, including trailing spaces and NUL', async () => {
  const { open } = await setup()
  const store = await open()
  const keys = ['k', 'k ', 'k  ', 'k\0', 'K', '👍', '👍🏽', '\u00e9', 'e\u0301', '租\t', '\u{10ffff}']
  for (const key of keys) {
    const lease = await hold(store, { key, fingerprint: key })
    expect((await viewOf(store, lease)).key).toBe(key)
    ofKind(await claim(store, { key, fingerprint: `${key} ` }), 'mismatch')
    ofKind(await settle(store, completeOf({ ...lease, token: `${lease.token} ` })), 'fenced')
    ofKind(await settle(store, completeOf(lease)), 'settled')
  }
})

it('settles results of many megabytes in one batch', async () => {
  const { open } = await setup()
  const store = await open()
  const leases = (await store.claim(claimRequests(5))).map((one) => ofKind(one, 'claimed').lease)
  const result = (n: number) => new Uint8Array(3_000_000).fill(n)
  const outcomes = await store.settle(leases.map((lease, n) => completeOf(lease, result(n))))
  expect(tally(outcomes)).toEqual({ settled: 5 })
  expect((await viewOf(store, leases[4]!)).result?.byteLength).toBe(3_000_000)
})

// The engine collects the three claims into one batch. One has a number that no column can hold.
it('runs the other claims of a batch in which one claim is rejected', async () => {
  const { open } = await setup()
  const store = await open()
  const engine = createEngine({ store })
  const run = (key: string, maxLapses = 5) =>
    engine.run(
      {
        scope: { tenant: 't', operation: 'o' },
        key,
        fingerprint: 'f',
        policy: { ...engine.policy({}), maxLapses },
      },
      () => new Uint8Array(),
    )
  const runs = await Promise.allSettled([run('new'), run('bad', Number.NaN), run('newer')])
  expect(runs.map((one) => one.status)).toEqual(['fulfilled', 'rejected', 'fulfilled'])
  await engine.close()
})

it('uses the clock of the database, even if the clock of the node differs', async () => {
  const { open } = await setup()
  const store = await open()
  const lease = await hold(store)
  // The clock of this node is an hour ahead, and must have no effect.
  const engine = createEngine({ store, clock: new FakeClock(Date.now() + 3_600_000) })
  const outcome = await engine.run(
    {
      scope: { tenant: 'tenant-1', operation: 'POST /payments' },
      key: 'key-1',
      fingerprint: 'fingerprint-1',
    },
    () => new Uint8Array(),
  )
  expect(outcome.kind).toBe('in_progress')
  ofKind(await settle(store, completeOf(lease)), 'settled')
  const { expiresAt } = await viewOf(store, lease)
  expect(Math.abs(expiresAt.getTime() - Date.now() - RETENTION_MS)).toBeLessThan(30_000)
})

// Other code has returned the connection to the pool without ending its transaction.
it('commits its writes on a connection that was returned with an open transaction', async () => {
  const { open, connect, app, column, paid } = await setup()
  const pool = connect({ connectionLimit: 1 })
  const store = await open({ pool })
  const leaveOpen = async () => {
    const connection = await pool.getConnection()
    await connection.beginTransaction()
    await pay(connection, 'left open')
    await connection.query('SELECT * FROM oncekey_record')
    connection.release()
  }
  await leaveOpen()
  const lease = await hold(store)
  expect(await column('SELECT state FROM oncekey_record')).toEqual(['in_progress'])
  await leaveOpen()
  ofKind(await settle(store, completeOf(lease)), 'settled')
  expect(await column('SELECT state FROM oncekey_record')).toEqual(['completed'])
  await leaveOpen()
  const other = await hold(store, { key: 'other', onLapse: 'rerun', leaseMs: 0 })
  await leaveOpen()
  ofKind(await claim(store, { key: 'other' }), 'claimed')
  ofKind(await settle(store, completeOf(other)), 'fenced')
  // A duplicate reads the rows that are committed now, and not the old snapshot.
  await leaveOpen()
  await app.query(`UPDATE oncekey_record SET state = 'unknown' WHERE state = 'in_progress'`)
  ofKind(await claim(store, { key: 'other' }), 'unknown')
  await leaveOpen()
  expect(await store.renew([{ ...other, leaseMs: 1 }])).toEqual([false])
  expect(await paid()).toEqual([])
})

// The decision uses the earlier read, and the fence in the statement rejects it.
it('writes nothing when a key was taken over between the read and the write', async () => {
  const { open, connect } = await setup()
  const store = await open()
  const lease = await hold(store, { leaseMs: 0, onLapse: 'rerun' })
  const next = { token: '' }
  const slow = mysqlStore({
    pool: telling(connect(), async (sql) => {
      if (sql.includes('UPDATE') && next.token === '') next.token = (await hold(store)).token
    }),
  })
  const fenced = { kind: 'fenced', own: false, state: 'in_progress' }
  const outcomes = await slow.settle([completeOf(lease), completeOf(await hold(store, OTHER))])
  expect(outcomes).toEqual([fenced, { kind: 'settled', expiresAt: expect.any(Date) }])
  const held = { ...lease, token: next.token, attempt: 2 }
  ofKind(await settle(store, completeOf(held)), 'settled')
})

it('claims no key that another claim took between the read and the write', async () => {
  const { open, connect } = await setup()
  const store = await open()
  let isTaken = false
  const slow = mysqlStore({
    pool: telling(connect(), async (sql) => {
      if (sql.includes('INSERT') && !isTaken) isTaken = (await claim(store)).kind === 'claimed'
    }),
  })
  const outcomes = await slow.claim([claimRequest(), claimRequest(OTHER)])
  expect(outcomes.map(({ kind }) => kind)).toEqual(['in_progress', 'claimed'])

  // The same with a released key, between the read and the lock.
  await settle(store, releaseOf(ofKind(outcomes[1]!, 'claimed').lease))
  let isReleased = true
  const late = mysqlStore({
    pool: telling(connect(), async (sql) => {
      if (sql.includes('FOR UPDATE') && isReleased) isReleased = !(await hold(store, OTHER))
    }),
  })
  ofKind(await claim(late, OTHER), 'in_progress')
})

it('applies ON DELETE SET NULL to referring rows when a record is reaped or replaced', async () => {
  const { open, app, column, connect } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  await app.query(`CREATE TABLE invoice (
    record_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin UNIQUE,
    FOREIGN KEY (record_id) REFERENCES oncekey_record (record_id) ON DELETE SET NULL)`)
  for (const key of ['reaped', 'replaced', 'referred', 'claimed']) {
    const lease = await hold(store, { key })
    const { recordId } = await viewOf(store, lease)
    const outcome = await store.transaction<mysql.Connection>(lease, async (tx) => {
      if (key.startsWith('re')) await tx.query('INSERT INTO invoice VALUES (?)', [recordId])
      // The reference locks the record id, but the lease can be renewed.
      expect(await store.renew([{ ...lease, leaseMs: LEASE_MS + 1 }])).toEqual([true])
      return completion()
    })
    ofKind(outcome, 'settled')
  }
  const references = () => column('SELECT COUNT(record_id) FROM invoice')
  expect(await references()).toEqual([3])
  clock.advance(RETENTION_MS)

  // While an open transaction refers to a record, reap and claim skip it without waiting.
  const other = await connect().getConnection()
  await other.beginTransaction()
  const referred = (await viewOf(store, claimRequest({ key: 'claimed' }))).recordId
  await other.query('INSERT INTO invoice VALUES (?)', [referred])
  ofKind(await claim(store, { key: 'claimed' }), 'in_progress')
  expect(ofKind(await claim(store, { key: 'replaced' }), 'claimed').from).toBe('expired')
  expect(await references()).toEqual([2])
  expect((await store.reap({ limit: 10 })).removed).toBe(2)
  expect(await references()).toEqual([0])
  await other.commit()
  expect(await references()).toEqual([1])
  expect((await store.reap({ limit: 10 })).removed).toBe(1)
  expect(await references()).toEqual([0])
  other.release()
})

it('sweeps and reaps several pieces in one call, each record once', async () => {
  const { open } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  const leases = (await store.claim(claimRequests(450))).map((one) => ofKind(one, 'claimed').lease)
  clock.advance(LEASE_MS)
  const swept = await Promise.all([1, 2, 3].map(() => store.sweep({ limit: 1000 })))
  const left = await store.sweep({ limit: 1000 })
  expect(new Set([...swept.flat(), ...left].map(({ identity }) => identity)).size).toBe(450)
  expect([...swept.flat(), ...left].length).toBe(450)
  const verdict = { kind: 'failed_retryable' } as const
  const resolved = await store.resolve(
    leases.map((ref) => ({ ref: { identity: ref.identity }, verdict, retentionMs: 1 })),
  )
  expect(tally(resolved)).toEqual({ resolved: 450 })
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 430 })).removed).toBe(430)
  expect((await store.reap({ limit: 430 })).removed).toBe(20)
})

it('applies one of two verdicts on the same record and finds no record for a third', async () => {
  const { open, app } = await setup()
  const store = await open()
  const lease = await hold(store, { leaseMs: 0 })
  await store.sweep({ limit: 1 })
  const [[row]] = await app.query<RowDataPacket[]>('SELECT record_id FROM oncekey_record')
  const recordId = row!['record_id'] as string
  const outcomes = await store.resolve(
    [{ identity: lease.identity }, { recordId }, { identity: 'no such record' }].map((ref) => ({
      ref,
      verdict: { kind: 'completed', result: bytes('by hand') },
      retentionMs: RETENTION_MS,
    })),
  )
  expect(outcomes.map(({ kind }) => kind)).toEqual(['resolved', 'not_unknown', 'not_found'])
})
