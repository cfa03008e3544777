import { expect, it, vi } from 'vitest'
import { driverOf } from '../../../../src/stores/postgres/driver/connections.ts'
import { migrate } from '../../../../src/stores/postgres/migrations.ts'
import { FakeClock } from '../../../../src/testing/fake-clock.ts'
import { DRIVERS, useSilence, type DriverName } from './setup.ts'

const setupSilence = useSilence()

const NAME = { schema: 'public', table: 'later' }
const LOCK = 'SELECT pg_advisory_lock(1869505355, hashtext($1))'
const UNLOCK = 'SELECT pg_advisory_unlock(1869505355, hashtext($1))'
const WAITING = `SELECT count(*)::int FROM pg_stat_activity
  WHERE datname = current_database() AND wait_event = 'advisory'`
const LEFT_OPEN = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
  WHERE datname = current_database() AND state = 'idle in transaction'`

/** A migration that waits for a lock, as a statement that takes long. */
async function setup(driver: DriverName) {
  const fixture = await setupSilence()
  const { app, column, pgPool, sqlPool } = fixture
  const other = await app.connect()
  await other.query(LOCK, [NAME.schema])
  const pool = driver === 'pg' ? pgPool() : sqlPool()
  const clock = new FakeClock()
  let end: string | undefined
  const migrating = migrate(driverOf(pool, true), NAME, clock).then(
    () => (end = 'migrated'),
    (error: unknown) => (end = String(error)),
  )
  await vi.waitUntil(async () => (await column(WAITING))[0] === 1)
  const finishOther = async () => {
    await other.query(UNLOCK, [NAME.schema])
    other.release()
  }
  /** Advances the clock to the next check of the migration, and waits for its answer. */
  const look = async () => {
    clock.advance(5_000)
    await column('SELECT 1')
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  return { ...fixture, pool, clock, migrating, end: () => end, finishOther, look }
}

it.each(DRIVERS)('lets a migration take as long as the database runs it, %s', async (driver) => {
  const { migrating, end, finishOther, look, clock } = await setup(driver)
  for (let looks = 1; looks <= 30; looks++) await look()
  expect(end()).toBeUndefined()
  await finishOther()
  expect(await migrating).toBe('migrated')
  expect(clock.pendingTimers).toBe(0)
})

it.each(DRIVERS)(
  'fails a migration if the answer to its statement was lost, %s',
  async (driver) => {
    const { migrating, end, finishOther, look, proxy, pool, column } = await setup(driver)
    proxy.silence()
    proxy.resume('dead')
    await finishOther()
    await vi.waitUntil(
      async () => {
        await look()
        return end() !== undefined
      },
      { timeout: 20_000 },
    )
    expect(await migrating).not.toBe('migrated')
    // Replaces the minute after which the database ends the idle transaction.
    await column(LEFT_OPEN)
    await migrate(driverOf(pool, true), NAME, new FakeClock())
  },
)
