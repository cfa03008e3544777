// Takes about 20 s.
import type { Socket } from 'node:net'
import type { Pool, PoolConnection } from 'mysql2/promise'
import { describe, expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { DurableStore } from '../../../src/core/store/durable-store.ts'
import { ABSENT_LEASE } from '../../../src/core/health/store-probe.ts'
import type { Store } from '../../../src/core/store/store.ts'
import { mysqlStore, type MysqlStore } from '../../../src/stores/mysql/index.ts'
import {
  bytes,
  claimRequest,
  completeOf,
  hold,
  RETENTION_MS,
} from '../../../src/testing/store-cases/store-case.ts'
import { startTcpProxy } from '../../servers/tcp-proxy.ts'
import { pay, useMariadb } from './setup.ts'

const setup = useMariadb()

const TIMEOUT_MS = 800
const CONNECTIONS = 5

/** Private fields of a `mysql2` pool: it has no public counters. */
interface CorePool {
  readonly _allConnections: { readonly length: number }
  readonly _freeConnections: { readonly length: number }
  readonly _connectionQueue: { readonly length: number }
}

function countsOf(pool: Pool) {
  const core = pool.pool as unknown as CorePool
  const open = core._allConnections.length
  return { open, busy: open - core._freeConnections.length, waiting: core._connectionQueue.length }
}

/** A store behind a network that can go silent, with the guide's settings but shorter times. */
async function setupSilence() {
  const base = await setup()
  const { hostname, port } = new URL(base.url)
  const proxy = await startTcpProxy({ host: hostname, port: Number(port) })
  onTestFinished(() => proxy.close())
  const pool = base.connect({
    uri: proxy.through(base.url),
    connectionLimit: CONNECTIONS,
    connectTimeout: TIMEOUT_MS / 2,
  })
  // Closing the pool sends a message on each connection, and would wait on dead ones.
  onTestFinished(() => proxy.cut())
  const store = mysqlStore({ pool })
  await store.migrate()
  // Without the breaker every request reaches the pool, even while the network is silent.
  const options = { storeTimeoutMs: TIMEOUT_MS, breaker: false, onEvent: () => {} } as const
  const engine = createEngine({ store, ...options })
  onTestFinished(() => void engine.close())
  let number = 0
  const run = (key = `key-${number++}`) =>
    engine.run({ scope: { tenant: 't', operation: 'pay' }, key, fingerprint: 'f' }, () =>
      bytes('paid'),
    )
  const fails = (running: Promise<unknown>) =>
    expect(running).rejects.toMatchObject({ code: 'STORE_FAILED' })
  return { ...base, proxy, pool, store, engine, run, fails }
}

const REQUEST = { scope: { tenant: 't', operation: 'pay' }, key: 'k', fingerprint: 'f' }
const PAID = { kind: 'ran' }

it('serves the first request after each of six outages, and leaks no connection', async () => {
  const { proxy, pool, run, fails } = await setupSilence()
  await run()
  for (let loss = 1; loss <= 6; loss++) {
    proxy.silence()
    await fails(run())
    proxy.resume('dead')
    // Connection attempts of the outage fail after their connectTimeout.
    expect(await run()).toMatchObject(PAID)
  }
  await expect.poll(() => countsOf(pool)).toMatchObject({ busy: 0, waiting: 0 })
  const all = await Promise.all(Array.from({ length: CONNECTIONS }, () => run()))
  expect(all).toEqual(all.map(() => expect.objectContaining(PAID)))
  expect(countsOf(pool).open).toBeLessThanOrEqual(CONNECTIONS)
})

it('fails one call after all idle connections died, not one for each of them', async () => {
  const { proxy, pool, run, fails } = await setupSilence()
  const held = await Promise.all(Array.from({ length: CONNECTIONS }, () => pool.getConnection()))
  await run().catch(() => undefined)
  for (const connection of held) connection.release()
  await run()
  proxy.silence()
  proxy.resume('dead')
  await fails(run())
  expect(await run()).toMatchObject(PAID)
})

it('queues few pool requests for 1,000 clients, and serves them afterwards', async () => {
  const { proxy, pool, store, run } = await setupSilence()
  await run()
  proxy.silence()
  for (let round = 1; round <= 3; round++) {
    const failed = await Promise.allSettled(Array.from({ length: 1_000 }, () => run()))
    expect(failed.filter(({ status }) => status === 'fulfilled')).toEqual([])
    // Requests for a connection are reused, so they do not accumulate.
    expect(countsOf(pool).waiting).toBeLessThanOrEqual(2 * CONNECTIONS)
  }
  proxy.resume('dead')
  expect(await run()).toMatchObject(PAID)
  // A long timeout for all of them: the test shows that none gets a dead connection.
  const patient = createEngine({ store, storeTimeoutMs: 30_000 })
  onTestFinished(() => void patient.close())
  const served = await Promise.all(
    Array.from({ length: 1_000 }, (_, n) =>
      patient.run({ ...REQUEST, key: `served-${n}` }, () => bytes('paid')),
    ),
  )
  expect(served).toEqual(served.map(() => expect.objectContaining(PAID)))
})

describe('a transaction', () => {
  it('frees the connection of a transaction that cannot begin', async () => {
    const { proxy, pool, engine, fails } = await setupSilence()
    const begun = engine.run(REQUEST, (context) => {
      proxy.silence()
      const transaction = context.transaction<PoolConnection>(() => bytes('never'))
      return transaction.finally(() => proxy.resume('dead'))
    })
    await fails(begun)
    await expect.poll(() => countsOf(pool)).toMatchObject({ busy: 0 })
  })

  it('frees the connection of a transaction that cannot commit', async () => {
    const { proxy, pool, engine, paid } = await setupSilence()
    const committed = engine.run(REQUEST, (context) => {
      const transaction = context.transaction<PoolConnection>(async (tx) => {
        await pay(tx, 'lost')
        proxy.silence()
        return bytes('lost')
      })
      return transaction.finally(() => proxy.resume('dead'))
    })
    await expect(committed).rejects.toMatchObject({ code: expect.any(String) as string })
    await expect.poll(() => countsOf(pool)).toMatchObject({ busy: 0 })
    expect(await paid()).toEqual([])
  })

  it('rejects a statement of the work after its connection was dropped', async () => {
    const { connect, url } = await setup()
    const { hostname, port } = new URL(url)
    const proxy = await startTcpProxy({ host: hostname, port: Number(port) })
    onTestFinished(() => proxy.close())
    const pool = connect({ uri: proxy.through(url), connectTimeout: TIMEOUT_MS })
    onTestFinished(() => proxy.cut())
    const store = mysqlStore({ pool, transactionTimeoutMs: TIMEOUT_MS })
    await store.migrate()
    const lease = await hold(store)
    const seen = Promise.withResolvers<unknown>()
    const transaction = store.transaction<PoolConnection>(lease, async (tx) => {
      proxy.silence()
      await pay(tx, 'lost').catch(seen.resolve)
      return { result: bytes('x'), retentionMs: RETENTION_MS }
    })
    await expect(transaction).rejects.toMatchObject({ code: 'STORE_FAILED' })
    expect(await seen.promise).toMatchObject({ message: 'the connection was dropped' })
  })
})

type Call = (store: MysqlStore, signal: AbortSignal) => Promise<unknown>

const LEASE = { identity: '0'.repeat(32), token: 'token', attempt: 1 }
const ID = '00000000-0000-7000-8000-000000000000'
const MESSAGE = { id: ID, token: 'token' }

const operatorOf = (store: MysqlStore): DurableStore['operator'] => store.durable.operator
const outbox = (store: MysqlStore): DurableStore['outbox'] => store.durable.outbox
const phases = (store: MysqlStore): DurableStore['phases'] => store.durable.phases
const of = { limit: 1, olderThanMs: 0, againMs: 0, leaseMs: 1, topics: ['t'], token: 'token' }
const verdict = { kind: 'failed_retryable' } as const

/** Every method of the store that takes a connection from the pool. */
const CALLS: Readonly<Record<string, Call>> = {
  claim: (store, signal) => store.claim([claimRequest()], signal),
  settle: (store, signal) => store.settle([completeOf(LEASE)], signal),
  renew: (store, signal) => store.renew([{ ...LEASE, leaseMs: 1 }], signal),
  probe: (store: Store, signal) => store.probe!(ABSENT_LEASE.identity, signal),
  resolve: (store, signal) =>
    store.resolve([{ ref: LEASE, verdict, retentionMs: RETENTION_MS }], signal),
  'resolve by id': (store, signal) =>
    store.resolve([{ ref: { recordId: ID }, verdict, retentionMs: RETENTION_MS }], signal),
  sweep: (store, signal) => store.sweep(of, signal),
  reap: (store, signal) => store.reap(of, signal),
  read: (store, signal) => store.read(LEASE, signal),
  list: (store, signal) => store.list({ state: 'unknown', limit: 1 }, signal),
  now: (store: Store, signal) => store.now!(signal),
  history: (store: Store, signal) => store.history!({ ref: LEASE, limit: 1 }, signal),
  transaction: (store, signal) => store.transaction(LEASE, () => never(), signal),
  advance: (store, signal) => phases(store).advance(LEASE, () => never(), signal),
  record: (store, signal) => phases(store).record(LEASE, {}, signal),
  load: (store, signal) => phases(store).load(ID, signal),
  due: (store, signal) =>
    phases(store).due({ operations: [{ name: 'o', version: 1 }], limit: 1 }, signal),
  orphans: (store, signal) => phases(store).orphans({ operations: [], limit: 1 }, signal),
  'claim messages': (store, signal) => outbox(store).claim(of, signal),
  'settle messages': (store, signal) =>
    outbox(store).settle([{ kind: 'return', ...MESSAGE }], signal),
  'renew messages': (store, signal) => outbox(store).renew([MESSAGE], 1, signal),
  'read a message': (store, signal) => outbox(store).read(ID, signal),
  'list messages': (store, signal) => outbox(store).list({ state: 'dead', limit: 1 }, signal),
  'prune messages': (store, signal) => outbox(store).prune(of, signal),
  'take unknown': (store, signal) => operatorOf(store).takeUnknown(of, signal),
  postpone: (store, signal) =>
    operatorOf(store).postpone({ recordId: ID, attempt: 1, inMs: undefined }, signal),
  act: (store, signal) =>
    operatorOf(store).act({ kind: 'retry_message', messageId: ID }, { who: 'w', why: 'y' }, signal),
  audit: (store, signal) => operatorOf(store).audit({ limit: 1 }, signal),
}

function never(): Promise<never> {
  return new Promise(() => undefined)
}

describe('an aborted call', () => {
  it.each(Object.keys(CALLS))(
    'destroys the connection of %s when the call is aborted',
    async (name) => {
      const { pool, proxy } = await setupSilence()
      const store = mysqlStore({ pool, history: true })
      proxy.silence()
      const aborter = new AbortController()
      const acquired = new Promise<unknown>((resolve) => pool.once('acquire', resolve))
      const call = CALLS[name]!(store, aborter.signal).catch((error: unknown) => error)
      const connection = (await acquired) as { readonly stream: Socket }
      // The pool lends the connection, and the statement is sent.
      await new Promise((resolve) => setImmediate(resolve))
      expect(countsOf(pool)).toMatchObject({ open: 1, busy: 1 })
      const reason = new Error('no answer')
      aborter.abort(reason)
      expect(await call).toMatchObject({ code: 'STORE_FAILED', cause: reason })
      expect(countsOf(pool)).toMatchObject({ open: 0 })
      // An orderly close would wait for the server, which does not answer.
      expect(connection.stream.destroyed).toBe(true)
    },
  )

  it('stops waiting for a connection, and leaves its pool request to the next call', async () => {
    const { connect } = await setup()
    const pool = connect({ connectionLimit: 1, connectTimeout: TIMEOUT_MS })
    const store = mysqlStore({ pool })
    await store.migrate()
    const held = await pool.getConnection()
    const reason = new Error('no answer')
    for (let n = 0; n < 10; n++) {
      const aborter = new AbortController()
      const call = store.read(LEASE, aborter.signal).catch((error: unknown) => error)
      aborter.abort(reason)
      expect(await call).toMatchObject({ cause: reason })
    }
    expect(countsOf(pool).waiting).toBe(1)
    const served = store.read(LEASE)
    expect(countsOf(pool).waiting).toBe(1)
    held.release()
    expect(await served).toBeUndefined()
    await expect.poll(() => countsOf(pool)).toEqual({ open: 1, busy: 0, waiting: 0 })
  })
})
