import type pg from 'pg'
import { expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { newRecordId, newToken } from '../../../src/core/record/identity.ts'
import { migrationSql, postgresStore } from '../../../src/stores/postgres/index.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import {
  claim,
  claimRequest,
  claimRequests,
  completeOf,
  finish,
  hold,
  LEASE_MS,
  ofKind,
  RETENTION_MS,
  settle,
  tally,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { completion, usePostgres } from './setup.ts'

const setup = usePostgres()

it('applies each migration once if many processes migrate at once', async () => {
  const { connect, column } = await setup()
  const stores = Array.from({ length: 8 }, () => postgresStore({ pool: connect({ max: 2 }) }))
  await Promise.all(stores.map((store) => store.migrate()))
  expect(await column('SELECT number FROM oncekey_record_migration ORDER BY 1')).toEqual([
    -4, -3, -2, 1,
  ])
  ofKind(await claim(stores[7]!), 'claimed')
})

it('creates the schema once if many tables migrate into it at once', async () => {
  const { connect, app, column } = await setup()
  const pools = Array.from({ length: 4 }, () => connect({ max: 2 }))
  for (let round = 0; round < 5; round++) {
    await app.query('DROP SCHEMA IF EXISTS keys CASCADE')
    const tables = pools.map((pool, n) => postgresStore({ pool, schema: 'keys', table: `t${n}` }))
    await Promise.all(tables.map((store) => store.migrate()))
  }
  const made = `SELECT count(*)::int FROM pg_class WHERE relname ~ '^t[0-9]_migration$'`
  expect(await column(made)).toEqual([4])
})

it('says to call migrate() if the tables are missing', async () => {
  const { connect } = await setup()
  const store = postgresStore({ pool: connect() })
  await expect(claim(store)).rejects.toThrow('call store.migrate() once')
})

it('rejects tables of a newer version that this version cannot use', async () => {
  const { open, app } = await setup()
  const store = await open()
  await app.query('INSERT INTO oncekey_record_migration VALUES (99)')
  await expect(store.migrate()).rejects.toThrow(
    /needs one that knows migration 99\. This version knows \d+/,
  )
})

it('works for a role without the right to create, after a migration by script', async () => {
  const { url, app, connect } = await setup()
  const names = { schema: 'keys', table: 'record' }
  await app.query('CREATE SCHEMA keys')
  await app.query(migrationSql(names))
  const role = `plain_${new URL(url).pathname.slice(1)}`
  await app.query(`CREATE ROLE ${role} LOGIN;
    REVOKE CREATE ON SCHEMA public FROM public;
    GRANT USAGE ON SCHEMA keys TO ${role};
    GRANT SELECT, INSERT, UPDATE, DELETE ON keys.record TO ${role};
    GRANT SELECT ON keys.record_migration TO ${role}`)
  const pool = connect({ options: `-c role=${role}` })
  await expect(pool.query('CREATE TABLE keys.other (id int)')).rejects.toThrow('permission denied')

  const store = postgresStore({ pool, ...names })
  await store.migrate()
  await finish(store)
  ofKind(await claim(store), 'completed')
  expect(await store.sweep({ limit: 10 })).toEqual([])
  // Without the history option, the role needs no right to the history table.
  await app.query(`UPDATE keys.record SET expires_at = now() - interval '1 s'`)
  ofKind(await claim(store), 'claimed')
  await app.query(`UPDATE keys.record SET expires_at = now() - interval '1 s', state = 'completed'`)
  expect(await store.reap({ limit: 10 })).toMatchObject({ removed: 1 })
  await pool.end()
  await app.query(`DROP OWNED BY ${role}; DROP ROLE ${role}`)
})

it('rejects objects that are no pool, unknown options and invalid names', async () => {
  const { connect, connectJs } = await setup()
  const pool = connect()
  const sql = connectJs()
  expect(() => postgresStore({ pool: {} as never })).toThrow('pool must be')
  const old = { query: () => undefined, connect: () => undefined }
  expect(() => postgresStore({ pool: old as never })).toThrow('8.21')
  const reserved = await sql.reserve()
  expect(() => postgresStore({ pool: reserved as never })).toThrow('reserved')
  reserved.release()
  await sql.begin((tx) => {
    expect(() => postgresStore({ pool: tx as never })).toThrow('of a transaction')
  })
  expect(() => postgresStore({ pool, tabel: 'x' } as never)).toThrow('no option "tabel"')
  expect(() => postgresStore({ pool, table: 'a"b' })).toThrow('table must be a name')
  expect(() => postgresStore({ pool, schema: '1a' })).toThrow('schema must be a name')
  expect(() => postgresStore({ pool, prepare: 1 as never })).toThrow('prepare')
  expect(() => postgresStore({ pool, history: 1 as never })).toThrow('history')
  expect(() => migrationSql({ after: 9 })).toThrow('after')
})

it('works if the default isolation level is not READ COMMITTED', async () => {
  const { open, connect } = await setup()
  for (const level of ['repeatable read', 'serializable']) {
    const options = `-c default_transaction_isolation=${level.replace(' ', '\\ ')}`
    const store = await open({ pool: connect({ options }) })
    const batches = await Promise.all(
      Array.from({ length: 8 }, () => store.claim(claimRequests(25, { tenant: level }))),
    )
    expect(tally(batches.flat())).toEqual({ claimed: 25, in_progress: 175 })
    const lease = await hold(store, { tenant: level, key: 'own' })
    ofKind(await store.transaction(lease, () => completion()), 'settled')
  }
})

it('rejects a batch with a value that no column can hold, and writes none of it', async () => {
  const { open } = await setup()
  const store = await open()
  const [good] = claimRequests(1)
  for (const bad of [
    { key: 'nul\0' },
    { key: 'half \ud800' },
    { leaseMs: Number.NaN },
    { maxLapses: Number.NaN },
    { identity: 'zz' },
    { identity: 'abcd' },
    { identity: '"\\' },
    { onLapse: 'never' as never },
    { afterExpiry: 'never' as never },
    { mode: 'never' as never },
    { idSeed: 'zz' },
    { refuseForMs: Number.NaN },
    { refuseForMs: 1e18 },
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

it('has column types that reject unknown words in any statement', async () => {
  const { open, app } = await setup()
  const lease = await hold(await open())
  for (const column of ['state', 'on_lapse', 'after_expiry', 'proof']) {
    const wrong = app.query(`UPDATE oncekey_record SET ${column} = 'done'`)
    await expect(wrong).rejects.toThrow(`oncekey_record_${column}: "done"`)
  }
  const short = app.query(`UPDATE oncekey_record SET identity = 'ab'`)
  await expect(short).rejects.toThrow('identity')
  expect((await viewOf(await open(), lease)).state).toBe('in_progress')
})

// One claim of a batch of the engine has a number that the table cannot hold.
it('runs the other requests of a batch if one claim is rejected', async () => {
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
  const runs = await Promise.allSettled([run('new'), run('bad', 2 ** 40), run('newer')])
  expect(runs.map((one) => one.status)).toEqual(['fulfilled', 'rejected', 'fulfilled'])
  await engine.close()
})

it('uses the clock of the database instead of the clock of the node', async () => {
  const { open, column } = await setup()
  const store = await open()
  const lease = await hold(store)
  const [leftMs] = await column(
    'SELECT extract(epoch FROM lease_until - now())::float8 * 1000 FROM oncekey_record',
  )
  expect(leftMs).toBeGreaterThan(LEASE_MS - 5000)
  expect(leftMs).toBeLessThanOrEqual(LEASE_MS)
  // A node whose clock is an hour ahead gets the same times.
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
})

it('returns the time of the database', async () => {
  const { open, column } = await setup()
  const store = await open()
  const at = async () => Number((await column('SELECT extract(epoch FROM now()) * 1000'))[0])
  const beforeMs = Math.floor(await at())
  const nowMs = (await store.now!()).getTime()
  expect(nowMs).toBeGreaterThanOrEqual(beforeMs)
  expect(nowMs).toBeLessThanOrEqual(Math.ceil(await at()))
  const clock = new FakeClock()
  expect(await (await open({ clock })).now!()).toEqual(new Date(clock.nowMs()))
})

// An application that uses one record id twice loses a history entry, but can claim its key.
it('claims an expired key if its record id is in the history already', async () => {
  const { open } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock, history: true })
  const { recordId } = claimRequest()
  for (let n = 0; n < 3; n++) {
    await finish(store, { recordId })
    clock.advance(RETENTION_MS)
  }
  expect(ofKind(await claim(store), 'claimed').from).toBe('expired')
  expect((await store.history!({ ref: { recordId }, limit: 10 })).length).toBe(1)
})

it('applies ON DELETE to rows that refer to a record when it is reaped or replaced', async () => {
  const { open, app, column } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  await app.query(`CREATE TABLE invoice (record_id uuid
    REFERENCES oncekey_record (record_id) ON DELETE SET NULL)`)
  for (const key of ['reaped', 'replaced']) {
    const lease = await hold(store, { key })
    const { recordId } = await viewOf(store, lease)
    const outcome = await store.transaction<pg.Client>(lease, async (tx) => {
      await tx.query('INSERT INTO invoice VALUES ($1)', [recordId])
      // The reference locks the record, but its lease can still be renewed.
      expect(await store.renew([{ ...lease, leaseMs: LEASE_MS }])).toEqual([true])
      return completion()
    })
    ofKind(outcome, 'settled')
  }
  const references = () => column('SELECT count(record_id)::int FROM invoice')
  expect(await references()).toEqual([2])
  clock.advance(RETENTION_MS)
  expect(ofKind(await claim(store, { key: 'replaced' }), 'claimed').from).toBe('expired')
  expect(await references()).toEqual([1])
  await store.reap({ limit: 10 })
  expect(await references()).toEqual([0])
})

// A has inserted a key and not committed. B sees this key and another one as free, and waits.
it.each([
  ['COMMIT', 'in_progress'],
  ['ROLLBACK', 'claimed'],
] as const)(
  'claims the free keys of a batch after the %s of another insert',
  async (ending, kind) => {
    const { open, app, column } = await setup()
    const store = await open()
    const [contested, neighbour] = claimRequests(2)
    await hold(store, contested)
    await app.query('CREATE TABLE kept AS SELECT * FROM oncekey_record; DELETE FROM oncekey_record')
    const other = await app.connect()
    await other.query('BEGIN; INSERT INTO oncekey_record SELECT * FROM kept')

    const again = { ...contested!, token: newToken(), recordId: newRecordId(0) }
    const claiming = store.claim([again, neighbour!])
    const waits = `SELECT count(*)::int FROM pg_stat_activity WHERE wait_event_type = 'Lock'`
    await expect.poll(() => column(waits)).toEqual([1])
    await other.query(ending)
    other.release()

    const [first, second] = await claiming
    ofKind(first!, kind)
    ofKind(second!, 'claimed')
    expect(await column('SELECT count(*)::int FROM oncekey_record')).toEqual([2])
  },
)

it('gives a key to a claim that is sent several times at once', async () => {
  const { open } = await setup()
  const store = await open()
  for (let round = 0; round < 200; round++) {
    const request = claimRequest({ key: `key-${round}`, recordId: newRecordId(round) })
    const echoes = await Promise.all(Array.from({ length: 4 }, () => store.claim([request])))
    for (const [outcome] of echoes) ofKind(outcome!, 'claimed')
  }
})

it('fails with an explanation if a parser has changed an answer', async () => {
  const { open, app } = await setup()
  const store = await open()
  await app.query(`DROP FUNCTION oncekey_record_claim_one_4;
    CREATE FUNCTION oncekey_record_claim_one_4 (
      float8, bool, text, bytea, uuid, text, text, text, text, text, float8, float8, text, int,
      text, bytea, float8
    ) RETURNS text LANGUAGE sql AS $$ SELECT 'all new' $$`)
  await expect(claim(store)).rejects.toThrow('not JSON as the functions of the store return it')
})
