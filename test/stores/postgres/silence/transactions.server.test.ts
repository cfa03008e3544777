// Takes about 28 s.
import type { Socket } from 'node:net'
import type pg from 'pg'
import type postgres from 'postgres'
import { expect, it, onTestFinished, vi } from 'vitest'
import { createEngine } from '../../../../src/core/engine/engine.ts'
import type { Engine } from '../../../../src/core/engine/engine-contract.ts'
import type { PostgresPool } from '../../../../src/stores/postgres/index.ts'
import { FakeClock } from '../../../../src/testing/fake-clock.ts'
import { completeOf, hold, settle } from '../../../../src/testing/store-cases/store-case.ts'
import { completion } from '../setup.ts'
import {
  ask,
  claimOnAll,
  countFailed,
  DRIVERS,
  failuresUntilSuccess,
  TIMEOUT_MS,
  useSilence,
  type DriverName,
} from './setup.ts'

const setupSilence = useSilence()

type Tx = pg.ClientBase | postgres.TransactionSql

async function setup(driver: DriverName) {
  const fixture = await setupSilence()
  const pool: PostgresPool = driver === 'pg' ? fixture.pgPool() : fixture.sqlPool()
  const startEngine = (transactionTimeoutMs?: number) => {
    const store = fixture.start(
      pool,
      transactionTimeoutMs === undefined ? {} : { transactionTimeoutMs },
    )
    const engine = createEngine({ store, storeTimeoutMs: TIMEOUT_MS, onLapse: 'rerun' })
    onTestFinished(async () => void (await engine.close({ graceMs: 0 })))
    return { store, engine }
  }
  return { ...fixture, startEngine }
}

const send = async (tx: Tx, sql: string): Promise<void> =>
  void (await ('query' in tx ? tx.query(sql) : tx.unsafe(sql)))

/** Pays in a transaction. `meanwhile` runs after the row was written. */
function pay(engine: Engine, key: string, meanwhile: (tx: Tx) => unknown = () => undefined) {
  const request = { scope: { tenant: 't', operation: 'pay' }, key, fingerprint: 'f' }
  return engine.run(request, (context) =>
    context.transaction<Tx>(async (tx) => {
      await send(tx, `INSERT INTO payment VALUES ('${key}')`)
      await meanwhile(tx)
      return completion(key).result
    }),
  )
}

it.each(DRIVERS)('destroys the connection of a BEGIN that timed out, %s', async (driver) => {
  const { startWith, proxy } = await setup(driver)
  const store = startWith(driver)
  for (let call = 0; call < 4; call++) await claimOnAll(store)
  const lease = await hold(store)
  const before = proxy.connections()
  proxy.silence()
  const begin = ask((signal) => store.transaction(lease, () => completion(), signal))
  await expect(begin).rejects.toThrow('no answer within')
  await vi.waitUntil(() => proxy.connections() === before - 1, { timeout: 20_000 })
})

it.each(DRIVERS)('destroys the connection of a COMMIT that timed out, %s', async (driver) => {
  const { startWith, proxy } = await setup(driver)
  const store = startWith(driver)
  for (let call = 0; call < 4; call++) await claimOnAll(store)
  const lease = await hold(store)
  const before = proxy.connections()
  const work = () => {
    proxy.silence()
    return completion()
  }
  // The work takes no time, so the limit of the call limits the COMMIT.
  const commit = ask((signal) => store.transaction(lease, work, signal))
  await expect(commit).rejects.toThrow('no answer within')
  await vi.waitUntil(() => proxy.connections() === before - 1, { timeout: 20_000 })
})

it('does not wait for the server when it destroys a connection that timed out', async () => {
  const { pgPool, start, proxy } = await setup('pg')
  const pool = pgPool()
  const streams: { readonly destroyed: boolean }[] = []
  pool.on('connect', (client) => {
    streams.push((client as unknown as { connection: { stream: Socket } }).connection.stream)
  })
  const store = start(pool, { transactionTimeoutMs: 300 })
  const lease = await hold(store)
  // No statement is running, so `pg` alone would wait for the server to close the connection.
  const run = store.transaction(lease, () => {
    proxy.silence()
    return new Promise<never>(() => undefined)
  })
  await expect(run).rejects.toThrow('its work took longer than 300 ms')
  expect(streams.map(({ destroyed }) => destroyed)).toEqual([true])
})

it.each(DRIVERS)('fails a transaction that cannot begin in time, %s', async (driver) => {
  const { startEngine, proxy, paid } = await setup(driver)
  const { store, engine } = startEngine()
  await claimOnAll(store)
  const request = { scope: { tenant: 't', operation: 'pay' }, key: 'k', fingerprint: 'f' }
  const run = engine.run(request, (context) => {
    proxy.silence()
    return context.transaction<Tx>(() => completion().result)
  })
  await expect(run).rejects.toMatchObject({ code: 'STORE_FAILED' })
  proxy.resume('dead')
  expect(await failuresUntilSuccess(store)).toBeLessThanOrEqual(1)
  await vi.waitUntil(async () => countFailed(await claimOnAll(store)) === 0, { timeout: 20_000 })
  expect(await paid()).toEqual([])
})

it.each(DRIVERS)(
  'fails a COMMIT without an answer, and finds out its outcome, %s',
  async (driver) => {
    const { startEngine, proxy, paid } = await setup(driver)
    const { store, engine } = startEngine()
    await claimOnAll(store)
    const run = pay(engine, 'k', () => {
      proxy.silence()
      setTimeout(() => proxy.resume('dead'), TIMEOUT_MS / 2)
    })
    // The COMMIT did not reach the server, so the retry of the same request runs the handler.
    await run.catch(() => undefined)
    await vi.waitUntil(
      async () => {
        const again = await pay(engine, 'k').catch(() => undefined)
        return again?.kind === 'ran' || again?.kind === 'replayed'
      },
      { timeout: 20_000 },
    )
    expect(await paid()).toEqual(['k'])
    await vi.waitUntil(async () => countFailed(await claimOnAll(store)) === 0, { timeout: 20_000 })
  },
)

it.each(DRIVERS)('rolls back a transaction whose work hangs in a statement, %s', async (driver) => {
  const { pgPool, sqlPool, start, proxy, paid } = await setup(driver)
  const store = start(driver === 'pg' ? pgPool() : sqlPool(), { transactionTimeoutMs: 300 })
  await claimOnAll(store)
  const lease = await hold(store, { key: 'k' })
  const run = store.transaction<Tx>(lease, async (tx) => {
    await send(tx, `INSERT INTO payment VALUES ('k')`)
    proxy.silence()
    await send(tx, 'SELECT 1')
    return completion()
  })
  await expect(run).rejects.toThrow('its work took longer than 300 ms')
  proxy.resume('dead')
  await vi.waitUntil(async () => countFailed(await claimOnAll(store)) === 0, { timeout: 20_000 })
  expect(await paid()).toEqual([])
})

it.each(DRIVERS)(
  'rolls back a transaction whose work hangs outside of the database, %s',
  async (driver) => {
    const { startEngine, paid, column } = await setup(driver)
    const { engine } = startEngine(300)
    const run = pay(engine, 'k', () => new Promise(() => undefined))
    await expect(run).rejects.toThrow('its work took longer than 300 ms')
    const OPEN = `SELECT count(*)::int FROM pg_stat_activity
    WHERE datname = current_database() AND state LIKE 'idle in transaction%'`
    await vi.waitUntil(async () => (await column(OPEN))[0] === 0, { timeout: 20_000 })
    expect(await paid()).toEqual([])
  },
)

it.each(DRIVERS)(
  'listens again after the connection that listens has become silent, %s',
  async (driver) => {
    const { pgPool, sqlPool, open, start, proxy, column } = await setup(driver)
    const clock = new FakeClock()
    const holder = await open({ clock })
    const store = start(driver === 'pg' ? pgPool() : sqlPool(), { clock })
    const LISTENERS = `SELECT count(*)::int FROM pg_stat_activity
    WHERE datname = current_database() AND query ILIKE 'listen%'`
    const MARKED = `SELECT count(*)::int FROM oncekey_record WHERE watched`
    const lease = await hold(holder)
    let isWoken = false
    const end = store.watch!(lease.identity, () => {
      isWoken = true
    })
    await vi.waitUntil(async () => (await column(MARKED))[0] === 1)
    expect(await column(LISTENERS)).toEqual([1])
    proxy.silence()
    proxy.resume('dead')
    // The check after 15 s gets no notification within 5 s; the store reconnects after a pause.
    await vi.waitUntil(
      async () => {
        clock.advance(5_000)
        await new Promise((resolve) => setTimeout(resolve, 50))
        return ((await column(LISTENERS))[0] as number) >= 2
      },
      { timeout: 20_000 },
    )
    await settle(holder, completeOf(lease))
    await vi.waitUntil(() => isWoken, { timeout: 20_000 })
    end()
  },
)
