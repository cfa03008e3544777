import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, expect, it, onTestFinished, vi } from 'vitest'
import { postgresStore, type PostgresPool } from '../../../src/stores/postgres/index.ts'
import { bytes, completeOf, hold } from '../../../src/testing/store-cases/store-case.ts'
import { startPostgres, type PostgresServer } from '../../servers/postgres.ts'
import { startSynchronousStandby, type PostgresStandby } from '../../servers/postgres-standby.ts'
import { completion } from './setup.ts'
import { ask, DRIVERS, type DriverName } from './silence/setup.ts'

let server: PostgresServer
let url: string
let standby: PostgresStandby
beforeAll(async () => {
  server = await startPostgres({ private: true })
  url = await server.database()
  standby = await startSynchronousStandby(url)
}, 120_000)
afterAll(async () => {
  await standby.close()
  await server.close()
})

type Tx = pg.ClientBase | postgres.TransactionSql

/** Shorter than the waits below: statement_timeout must not end the wait of a COMMIT. */
const STATEMENT_TIMEOUT_MS = 500

function connect(driver: DriverName): PostgresPool {
  if (driver === 'pg') {
    const pool = new pg.Pool({
      connectionString: url,
      connectionTimeoutMillis: 3_000,
      statement_timeout: STATEMENT_TIMEOUT_MS,
    })
    pool.on('error', () => undefined)
    onTestFinished(() => pool.end())
    return pool
  }
  const sql = postgres(url, {
    connect_timeout: 3,
    fetch_types: false,
    onnotice: () => undefined,
    connection: { statement_timeout: STATEMENT_TIMEOUT_MS },
  })
  onTestFinished(() => sql.end({ timeout: 0 }))
  return sql
}

/** The first column of every row, read on one of the two servers. */
function reader(at: string) {
  const pool = new pg.Pool({ connectionString: at, max: 2 })
  pool.on('error', () => undefined)
  onTestFinished(() => pool.end())
  return async (sql: string) =>
    (await pool.query({ text: sql, rowMode: 'array' })).rows.map((row) => row[0] as unknown)
}

async function setup(driver: DriverName) {
  const onPrimary = reader(url)
  await onPrimary('DROP SCHEMA public CASCADE')
  await onPrimary('CREATE SCHEMA public')
  await onPrimary('CREATE TABLE payment (key text)')
  const store = postgresStore({ pool: connect(driver) })
  await store.migrate()
  const pause = () => {
    standby.pause()
    onTestFinished(() => standby.resume())
  }
  const waiting = () =>
    onPrimary(`SELECT count(*)::int FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)
  return { store, onPrimary, onStandby: reader(standby.of(url)), pause, waiting }
}

it.each(DRIVERS)('acknowledges no settlement before the standby has it, %s', async (driver) => {
  const { store, onPrimary, onStandby, pause, waiting } = await setup(driver)
  const lease = await hold(store)
  pause()
  const settle = () => ask((signal) => store.settle([completeOf(lease, bytes('paid'))], signal))
  await expect(settle()).rejects.toThrow('no answer within')
  // The call has timed out, but its commit still waits: it is not cancelled and not visible.
  expect(await waiting()).toEqual([1])
  for (let tries = 1; tries <= 3; tries++) {
    await expect(settle()).rejects.toMatchObject({ code: 'STORE_FAILED' })
    expect(await onPrimary('SELECT state::text FROM oncekey_record')).toEqual(['in_progress'])
  }
  expect(await waiting()).toEqual([1])
  standby.resume()
  await vi.waitUntil(
    async () => {
      const [outcome] = await settle().catch(() => [])
      return outcome !== undefined
    },
    { timeout: 20_000 },
  )
  await vi.waitUntil(
    async () => (await onStandby('SELECT state::text FROM oncekey_record'))[0] === 'completed',
    { timeout: 20_000 },
  )
})

it.each(DRIVERS)('shows no transaction before the standby has it, %s', async (driver) => {
  const { store, onPrimary, onStandby, pause, waiting } = await setup(driver)
  const lease = await hold(store)
  const work = async (tx: Tx) => {
    const sql = `INSERT INTO payment VALUES ('paid')`
    await ('query' in tx ? tx.query(sql) : tx.unsafe(sql))
    return completion('paid')
  }
  pause()
  await expect(ask((signal) => store.transaction<Tx>(lease, work, signal))).rejects.toThrow(
    'no answer within',
  )
  expect(await waiting()).toEqual([1])
  expect(await onPrimary('SELECT key FROM payment')).toEqual([])
  standby.resume()
  await vi.waitUntil(async () => (await onStandby('SELECT key FROM payment'))[0] === 'paid', {
    timeout: 20_000,
  })
  expect(await onPrimary('SELECT state::text FROM oncekey_record')).toEqual(['completed'])
})
