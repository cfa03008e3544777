import pg from 'pg'
import { describe, expect, it, onTestFinished } from 'vitest'
import { buildIndex, type StepRunner } from '../../../../src/stores/postgres/schema/index-builds.ts'
import {
  migrationSql,
  postgresStore,
  type PostgresPool,
} from '../../../../src/stores/postgres/index.ts'
import { systemClock } from '../../../../src/core/time/clock.ts'
import { driverOf } from '../../../../src/stores/postgres/driver/connections.ts'
import { migrate } from '../../../../src/stores/postgres/migrations.ts'
import { FakeClock } from '../../../../src/testing/fake-clock.ts'
import { startPgbouncer } from '../../../servers/pgbouncer.ts'
import { usePostgres } from '../setup.ts'

const setupServer = usePostgres()

const INDEXES = ['due_turn', 'lane_turn', 'message_turn', 'tombstone', 'unknown_turn']
const VALID = `SELECT replace(c.relname, 'oncekey_record_', '') FROM pg_index i
  JOIN pg_class c ON c.oid = i.indexrelid
  WHERE i.indisvalid AND c.relname ~ 'oncekey_record_(.*turn|tombstone)$' ORDER BY 1`
const INVALID = `SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
  WHERE NOT i.indisvalid ORDER BY 1`
const BUILDING = `SELECT pid FROM pg_stat_activity WHERE datname = current_database()
  AND query LIKE 'CREATE INDEX CONCURRENTLY%' AND wait_event_type = 'Lock'`
const NUMBERS = 'SELECT number FROM oncekey_record_migration ORDER BY 1'
const LOCKS = `SELECT count(*)::int FROM pg_locks WHERE locktype = 'advisory'`

/** Tables in use of the version before migration 3. */
async function setup() {
  const fixture = await setupServer()
  const { app, url } = fixture
  const script = migrationSql()
  const end = 'VALUES (-2);'
  await app.query(`${script.slice(0, script.indexOf(end) + end.length)} COMMIT`)
  await app.query(`INSERT INTO oncekey_record_message (id, topic, payload, created_at, due_at)
    SELECT gen_random_uuid(), 'receipts', '', now(), now() FROM generate_series(1, 2000)`)
  /** Opens a transaction that is older than any build, until `end` is called. */
  const openOlder = async () => {
    const client = await singleClient(url)
    await client.query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM payment')
    return () => client.query('COMMIT')
  }
  return { ...fixture, openOlder }
}

async function bounced(url: string): Promise<string> {
  const bouncer = await startPgbouncer(url)
  onTestFinished(() => bouncer.close())
  return bouncer.url
}

async function singleClient(url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 3_000 })
  await client.connect()
  onTestFinished(() => client.end())
  return client
}

describe.each(['a pool of pg', 'postgres.js', 'a single Client', 'pgbouncer'])(
  'a migration with indexes, %s',
  (way) => {
    it('builds indexes on tables in use, and leaves no lock and no setting behind', async () => {
      const { url, connect, connectJs, column } = await setup()
      const pools: Record<string, () => Promise<PostgresPool>> = {
        'a pool of pg': async () => connect(),
        'postgres.js': async () => connectJs(),
        'a single Client': () => singleClient(url),
        pgbouncer: async () => connect({ connectionString: await bounced(url) }),
      }
      const store = postgresStore({ pool: await pools[way]!(), prepare: way !== 'pgbouncer' })
      await store.migrate()
      expect(await column(VALID)).toEqual(INDEXES)
      expect(await column(NUMBERS)).toEqual([-4, -3, -2, 1])
      expect(await column(LOCKS)).toEqual([0])
      const idle = `SELECT count(*)::int FROM pg_stat_activity WHERE state LIKE 'idle in%'`
      expect(await column(idle)).toEqual([0])
      await store.migrate()
    })
  },
)

it('does not block writes while a build waits for an older transaction', async () => {
  const { openOlder, connect, column, app } = await setup()
  const end = await openOlder()
  const migrated = postgresStore({ pool: connect() }).migrate()
  await expect.poll(() => column(BUILDING), { timeout: 20_000 }).toHaveLength(1)
  await app.query(`SELECT oncekey_record_claim_one(NULL, false, 'hold', decode(md5('a'), 'hex'),
    gen_random_uuid(), 't', 'o', 'a', 'f', 'token', 1000, 2000, 'unknown', 5, 'new')`)
  await app.query(`SELECT oncekey_record_message_add(NULL, gen_random_uuid(), 'receipts', NULL,
    NULL, '', 0)`)
  expect(await column(BUILDING)).toHaveLength(1)
  await end()
  await migrated
  expect(await column(VALID)).toEqual(INDEXES)
})

it('drops an index that a cancelled build has left, and builds it again', async () => {
  const { openOlder, connect, column } = await setup()
  const end = await openOlder()
  const store = postgresStore({ pool: connect() })
  const cancelled = store.migrate().catch((error: unknown) => String((error as Error).cause))
  await expect.poll(() => column(BUILDING), { timeout: 20_000 }).toHaveLength(1)
  const [pid] = await column(BUILDING)
  await column('SELECT pg_cancel_backend($1)', [pid])
  expect(await cancelled).toContain('"oncekey_record_due_turn" was cancelled')
  await end()
  expect(await column(INVALID)).toEqual(['oncekey_record_due_turn'])
  expect(await column(NUMBERS)).toEqual([-2, 1])
  await store.migrate()
  expect(await column(INVALID)).toEqual([])
  expect(await column(VALID)).toEqual(INDEXES)
})

it.each(['pg', 'pgbouncer'])(
  'builds each index once if many processes migrate at once, %s',
  async (way) => {
    const { connect, column, url } = await setup()
    const connectionString = way === 'pg' ? url : await bounced(url)
    const stores = Array.from({ length: 4 }, () =>
      postgresStore({ pool: connect({ max: 3, connectionString }), prepare: way === 'pg' }),
    )
    await Promise.all(stores.map((store) => store.migrate()))
    expect(await column(VALID)).toEqual(INDEXES)
    expect(await column(INVALID)).toEqual([])
    expect(await column(NUMBERS)).toEqual([-4, -3, -2, 1])
    expect(await column(LOCKS)).toEqual([0])
  },
)

it('restores the settings of a connection after a build', async () => {
  const { url } = await setup()
  const client = await singleClient(url)
  await client.query(`SET statement_timeout = '7s'; SET lock_timeout = '3s'`)
  await postgresStore({ pool: client }).migrate()
  const setting = async (name: string) => (await client.query(`SHOW ${name}`)).rows[0][name]
  expect([await setting('statement_timeout'), await setting('lock_timeout')]).toEqual(['7s', '3s'])
})

it('asks for a second connection behind a pooler', async () => {
  const { url } = await setup()
  const client = await singleClient(await bounced(url))
  const store = postgresStore({ pool: client, prepare: false })
  await expect(store.migrate()).rejects.toMatchObject({
    cause: { message: expect.stringContaining('a Pool of at least 2 connections') },
  })
})

it('fails a build behind a pooler after it has waited for a minute, and says why', async () => {
  const { openOlder, connect, column, url } = await setup()
  const end = await openOlder()
  const clock = new FakeClock()
  const pool = connect({ connectionString: await bounced(url), max: 4 })
  const name = { schema: 'public', table: 'oncekey_record' }
  let failure: unknown
  const migrating = migrate(driverOf(pool, false), name, clock).catch((error: unknown) => {
    failure = error
  })
  await expect.poll(() => column(BUILDING), { timeout: 20_000 }).toHaveLength(1)
  const look = async () => {
    clock.advance(5_000)
    await column('SELECT 1')
    return String(failure)
  }
  await expect
    .poll(look, { timeout: 20_000 })
    .toContain('the lowest xact_start, and in pg_prepared_xacts')
  await migrating
  const [pid] = await column(BUILDING)
  await column('SELECT pg_terminate_backend($1)', [pid])
  await end()
  await migrate(driverOf(pool, false), name, systemClock)
  expect(await column(VALID)).toEqual(INDEXES)
})

it('fails a build after three waits for older transactions, and says why', async () => {
  const index = { name: 'some', on: '"t"', columns: 'a', where: 'b' }
  const sent: string[] = []
  const runner: StepRunner = {
    query: async () => [],
    transact: async () => undefined,
    alone: async (sql) => {
      sent.push(sql)
      throw Object.assign(new Error('canceling statement'), { code: '55P03' })
    },
  }
  const clock = new FakeClock()
  const building = buildIndex(runner, { name: { schema: 's', table: 't' }, index, clock })
  const failure = building.catch(String)
  for (let pauses = 0; pauses < 2; pauses++) {
    await expect.poll(() => clock.pendingTimers).toBe(1)
    clock.advance(1_000)
  }
  expect(await failure).toContain('"t_some" could not be built, because an older transaction')
  expect(sent).toHaveLength(3)
})

it.each([false, true])(
  'creates the same indexes by script, concurrently: %s',
  async (concurrently) => {
    const { app, column, connect } = await setup()
    const script = migrationSql({ after: 2, concurrently })
    expect(script.includes('CONCURRENTLY')).toBe(concurrently)
    for (const part of statementsOf(script)) await app.query(part)
    expect(await column(VALID)).toEqual(INDEXES)
    const pool = connect()
    await postgresStore({ pool }).migrate()
    expect(await column(NUMBERS)).toEqual([-4, -3, -2, 1])
  },
)

const BREAK = `UPDATE pg_index SET indisvalid = false
  WHERE indexrelid = 'oncekey_record_due_turn'::regclass`

it.each([false, true])(
  'fails the script if an index is not valid, concurrently: %s',
  async (concurrently) => {
    const { app, column, connect } = await setup()
    const parts = statementsOf(migrationSql({ after: 2, concurrently }))
    await app.query('ALTER TABLE oncekey_record_message ADD COLUMN tenant text COLLATE "C"')
    await app.query(`CREATE INDEX oncekey_record_due_turn ON oncekey_record (tenant); ${BREAK}`)
    const run = async () => {
      for (const part of parts) await app.query(part)
    }
    await expect(run()).rejects.toMatchObject({
      message: 'not valid, because a build was given up: oncekey_record_due_turn',
      hint: 'Drop these indexes in schema public, and run the script again.',
    })
    await app.query('ROLLBACK')
    expect(await column(NUMBERS)).toEqual([-2, 1])
    await postgresStore({ pool: connect() }).migrate()
    expect(await column(VALID)).toEqual(INDEXES)
    expect(await column(NUMBERS)).toEqual([-4, -3, -2, 1])
  },
)

it.each(['a pool of pg', 'pgbouncer'])(
  'builds indexes again that are invalid or missing after the migration, %s',
  async (way) => {
    const { app, column, connect, url } = await setup()
    const connectionString = way === 'pgbouncer' ? await bounced(url) : url
    const store = postgresStore({ pool: connect({ connectionString }), prepare: false })
    await store.migrate()
    await app.query(`${BREAK}; DROP INDEX oncekey_record_lane_turn`)
    const stores = [store, postgresStore({ pool: connect() })]
    await Promise.all(stores.map((one) => one.migrate()))
    expect([await column(VALID), await column(INVALID)]).toEqual([INDEXES, []])
    expect(await column(LOCKS)).toEqual([0])
    // A newer version may have removed these indexes.
    await app.query(`${BREAK}; INSERT INTO oncekey_record_migration VALUES (-99)`)
    await store.migrate()
    expect(await column(INVALID)).toEqual(['oncekey_record_due_turn'])
  },
)

/** Splits a script into its transactions and the single statements between them. */
function statementsOf(script: string): string[] {
  return script.split(/(?<=^COMMIT;\n)/m).flatMap((part) => {
    const begin = part.indexOf('BEGIN;')
    if (begin <= 0) return [part]
    return [...part.slice(0, begin).split(/(?=CREATE INDEX)/), part.slice(begin)]
  })
}

it('generates a script for new tables without a statement outside of its transaction', () => {
  expect(migrationSql({ concurrently: true })).not.toContain('CONCURRENTLY')
  expect(() => migrationSql({ concurrently: 1 as never })).toThrow('concurrently')
})
