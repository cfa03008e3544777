// Takes about 33 s.
import pg from 'pg'
import { expect, it, onTestFinished, vi } from 'vitest'
import { createEngine } from '../../../../src/core/engine/engine.ts'
import { claimRequest, hold } from '../../../../src/testing/store-cases/store-case.ts'
import { completion } from '../setup.ts'
import {
  ask,
  claimOnAll,
  claimOnce,
  countFailed,
  DRIVERS,
  failuresUntilSuccess,
  MAX,
  useSilence,
} from './setup.ts'

const setup = useSilence()

/** A call that runs when the network returns may still fail; the next one succeeds. */
const FAILURES_MAX = 1

it.each(DRIVERS)(
  'serves the next call after a silence that broke every connection, %s',
  async (driver) => {
    const { startWith, proxy } = await setup()
    const store = startWith(driver)
    expect(countFailed(await claimOnAll(store))).toBe(0)
    proxy.silence()
    expect(countFailed(await claimOnAll(store))).toBe(MAX)
    proxy.resume('dead')
    expect(await failuresUntilSuccess(store)).toBeLessThanOrEqual(FAILURES_MAX)
  },
)

it.each(DRIVERS)(
  'fails one call after a silence, not one for each idle connection, %s',
  async (driver) => {
    const { startWith, proxy } = await setup()
    const store = startWith(driver)
    // The store knows the socket of a postgres.js connection after a separate answer on it.
    for (let call = 0; call < 4; call++) await claimOnAll(store)
    // Nothing is sent during the silence, so every connection is broken before it is used.
    proxy.silence()
    proxy.resume('dead')
    expect(await failuresUntilSuccess(store)).toBe(1)
    expect(countFailed(await claimOnAll(store))).toBe(0)
  },
)

it.each(DRIVERS)(
  'keeps all places of the pool usable after six silent losses in a row, %s',
  async (driver) => {
    const { pgPool, sqlPool, start, proxy } = await setup()
    const pool = pgPool()
    const store = start(driver === 'pg' ? pool : sqlPool())
    for (let loss = 1; loss <= 6; loss++) {
      await claimOnAll(store)
      proxy.silence()
      expect(countFailed(await claimOnAll(store))).toBe(MAX)
      proxy.resume('dead')
      expect(await failuresUntilSuccess(store)).toBeLessThanOrEqual(FAILURES_MAX)
    }
    // No hanging connection occupies a place: all connections serve calls at once.
    await vi.waitUntil(async () => countFailed(await claimOnAll(store)) === 0, { timeout: 20_000 })
    if (driver === 'pg') {
      expect(pool.waitingCount).toBe(0)
      expect(pool.idleCount).toBe(pool.totalCount)
      expect(pool.totalCount).toBeLessThanOrEqual(MAX)
    } else expect(proxy.connections()).toBeLessThanOrEqual(MAX)
  },
)

it.each(DRIVERS)('keeps using connections that a silence did not break, %s', async (driver) => {
  const { startWith, proxy } = await setup()
  const store = startWith(driver)
  await claimOnAll(store)
  proxy.silence()
  expect(countFailed(await claimOnAll(store))).toBe(MAX)
  proxy.resume('alive')
  expect(await failuresUntilSuccess(store)).toBeLessThanOrEqual(FAILURES_MAX)
  await vi.waitUntil(async () => countFailed(await claimOnAll(store)) === 0, { timeout: 20_000 })
})

it('releases a connection at once if it arrives after its call has timed out', async () => {
  const { pgPool, start, proxy } = await setup()
  const pool = pgPool({ connectionTimeoutMillis: 60_000 })
  const store = start(pool)
  proxy.silence()
  await expect(claimOnce(store)).rejects.toThrow('no answer within')
  expect(pool.totalCount).toBe(1)
  proxy.resume('alive')
  await vi.waitUntil(() => pool.idleCount === 1)
  expect(pool.totalCount).toBe(1)
})

it.each(DRIVERS)('serves a thousand clients again after a silence, %s', async (driver) => {
  const { pgPool, sqlPool, start, proxy } = await setup()
  const pool = pgPool()
  const store = start(driver === 'pg' ? pool : sqlPool())
  const engine = createEngine({ store, storeTimeoutMs: 300 })
  onTestFinished(async () => void (await engine.close({ graceMs: 0 })))
  let isOver = false
  let waitingMax = 0
  let failures = 0
  const client = async (number: number) => {
    for (;;) {
      const request = {
        scope: { tenant: `tenant-${number % 50}`, operation: 'pay' },
        key: crypto.randomUUID(),
        fingerprint: 'f',
      }
      const outcome = await engine.run(request, () => completion().result).catch(() => undefined)
      waitingMax = Math.max(waitingMax, pool.waitingCount)
      if (outcome?.kind === 'ran' && isOver) return
      if (outcome === undefined) failures++
      // A client waits before it retries.
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
  }
  const clients = Array.from({ length: 1000 }, (_, number) => client(number))
  await new Promise<void>((resolve) => setTimeout(resolve, 200))
  proxy.silence()
  await vi.waitUntil(() => failures >= 3000, { timeout: 30_000 })
  proxy.resume('dead')
  isOver = true
  await Promise.all(clients)
  // The engine limits how many calls it sends at once, for any number of clients.
  expect(waitingMax).toBeLessThanOrEqual(20)
  expect(proxy.connections()).toBeLessThanOrEqual(2 * MAX + 1)
})

it('closes a single Client that does not answer, and says so', async () => {
  const { url, start, proxy } = await setup()
  const client = new pg.Client({ connectionString: proxy.through(url) })
  await client.connect()
  const ended = new Promise<void>((resolve) => client.on('end', resolve))
  const store = start(client)
  await claimOnce(store)
  proxy.silence()
  expect(countFailed(await Promise.allSettled([claimOnce(store), claimOnce(store)]))).toBe(2)
  await ended
  proxy.resume('dead')
  await expect(claimOnce(store)).rejects.toMatchObject({
    cause: { message: expect.stringContaining('connect a new Client') },
  })
})

it('does not end a long statement of the application, with postgres.js', async () => {
  const { sqlPool, start, app } = await setup()
  const sql = sqlPool()
  const store = start(sql)
  for (let call = 0; call < 4; call++) await claimOnAll(store)
  const lease = await hold(store, { key: 'locked' })
  const locker = await app.connect()
  await locker.query('BEGIN')
  await locker.query('LOCK TABLE oncekey_record IN ACCESS EXCLUSIVE MODE')
  const report = sql.unsafe("SELECT pg_sleep(3), 'done' AS answer").execute()
  await expect(ask((signal) => store.read({ identity: lease.identity }, signal))).rejects.toThrow(
    'no answer within',
  )
  await locker.query('ROLLBACK')
  locker.release()
  expect((await report)[0]).toMatchObject({ answer: 'done' })
  expect(await failuresUntilSuccess(store)).toBe(0)
})

it.each(DRIVERS)(
  'applies the time limit to claims of the relay and acts of operators, %s',
  async (driver) => {
    const { startWith, proxy } = await setup()
    const store = startWith(driver)
    await claimOnAll(store)
    const { outbox, operator, phases } = store.durable
    const message = { topics: ['t'], limit: 1, leaseMs: 1000, token: crypto.randomUUID() }
    const by = { who: 'operator', why: 'test' }
    proxy.silence()
    const calls = [
      ask((signal) => outbox.claim(message, signal)),
      ask((signal) => outbox.list({ state: 'dead', limit: 1 }, signal)),
      ask((signal) => operator.takeUnknown({ limit: 1, againMs: 1000 }, signal)),
      ask((signal) =>
        operator.act({ kind: 'release', ref: { identity: claimRequest().identity } }, by, signal),
      ),
      ask((signal) => operator.discarded({ recordId: crypto.randomUUID(), limit: 1 }, signal)),
      ask((signal) => store.claim([claimRequest({ mode: 'find' })], signal)),
      ask((signal) => phases.due({ operations: [], limit: 1 }, signal)),
      ask((signal) => store.sweep({ limit: 1 }, signal)),
      ask((signal) => store.reap({ limit: 1 }, signal)),
      ask((signal) => store.now!(signal)),
    ]
    expect(countFailed(await Promise.allSettled(calls))).toBe(calls.length)
    proxy.resume('dead')
    expect(await failuresUntilSuccess(store)).toBeLessThanOrEqual(FAILURES_MAX)
    await vi.waitUntil(async () => countFailed(await claimOnAll(store)) === 0, { timeout: 20_000 })
  },
)
