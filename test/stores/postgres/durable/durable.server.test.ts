import type pg from 'pg'
import postgres from 'postgres'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { Act } from '../../../../src/core/store/operator-store.ts'
import type { Lease } from '../../../../src/core/store/store.ts'
import {
  migrationSql,
  postgresStore,
  type PostgresStore,
} from '../../../../src/stores/postgres/index.ts'
import {
  BY,
  intentOf,
  messageOf,
  operationOf,
  resultOf,
  transactionOf,
} from '../../../../src/testing/durable-cases/durable-case.ts'
import { FakeClock } from '../../../../src/testing/fake-clock.ts'
import { newToken } from '../../../../src/core/record/identity.ts'
import {
  bytes,
  claim,
  completeOf,
  hold,
  LEASE_MS,
  ofKind,
  releaseOf,
  RETENTION_MS,
  settle,
  viewOf,
} from '../../../../src/testing/store-cases/store-case.ts'
import { startTcpProxy } from '../../../servers/tcp-proxy.ts'
import { countingPool } from '../counting.ts'
import { usePostgres } from '../setup.ts'

const setup = usePostgres()

const END = { kind: 'complete', result: bytes('paid'), retentionMs: RETENTION_MS } as const

const DRIVERS = ['pg', 'postgres.js'] as const

type Tx = pg.Client | postgres.TransactionSql

const pay = async (tx: unknown, key: string) => {
  const own = tx as Tx
  const sql = `INSERT INTO payment VALUES ('${key}')`
  await ('query' in own ? own.query(sql) : own.unsafe(sql))
}

async function begin(store: PostgresStore, key = 'key-1'): Promise<Lease> {
  const lease = await hold(store, { key, onLapse: 'resume' })
  const outcome = await store.durable.phases.record(lease, { operation: operationOf() })
  ofKind(outcome, 'advanced')
  return lease
}

async function phasesOf(store: PostgresStore, lease: Lease): Promise<string[]> {
  const { recordId } = await viewOf(store, lease)
  const operation = await store.durable.phases.load(recordId)
  return operation!.phases.map(({ name, state }) => `${name} ${state}`)
}

// The steps of an operation with three phases: began, intended, charged, booked and completed.
it('makes one round trip for a step, and three for a step with work', async () => {
  const { open, url } = await setup()
  const { pool, sent } = countingPool(url)
  const store = await open({ pool })
  const { phases } = store.durable
  const lease = await hold(store, { onLapse: 'resume' })
  const count = async (run: () => Promise<{ kind: string }>) => {
    const before = sent().length
    expect((await run()).kind).toBe('advanced')
    return sent().slice(before)
  }
  const intent = intentOf()
  const first = { operation: operationOf(), phase: intent }
  expect(await count(() => phases.record(lease, first))).toHaveLength(1)
  expect(await count(() => phases.record(lease, { phase: resultOf() }))).toHaveLength(1)
  const booked = await count(() =>
    phases.advance(lease, async (tx) => {
      await pay(tx, 'booked')
      await store.durable.outbox.add(tx, messageOf())
      return { phase: transactionOf({ number: 2 }), end: END }
    }),
  )
  const [opening, , added, step, commit] = booked
  expect(booked).toHaveLength(5)
  expect(opening).toMatch(/^BEGIN .*SAVEPOINT.*SELECT/s)
  expect(added).toContain('_message_add')
  expect(step).toContain('_step')
  expect(commit).toBe('COMMIT')
  expect(await phasesOf(store, lease)).toEqual(['charge done', 'book done'])
})

describe.each(DRIVERS)('a step with work, %s', (driver) => {
  async function setupProxy() {
    const fixture = await setup()
    await fixture.open()
    const { hostname: host, port } = new URL(fixture.url)
    const proxy = await startTcpProxy({ host, port: Number(port) })
    onTestFinished(() => proxy.close())
    const through = proxy.through(fixture.url)
    const pool =
      driver === 'pg' ? fixture.connect({ connectionString: through }) : connectJs(through)
    const store = postgresStore({ pool, prepare: false })
    return { ...fixture, proxy, store, straight: postgresStore({ pool: fixture.connect() }) }
  }

  const book = (store: PostgresStore, lease: Lease) =>
    store.durable.phases.advance(lease, async (tx) => {
      await pay(tx, 'booked')
      await store.durable.outbox.add(tx, messageOf())
      return { phase: transactionOf(), end: { kind: 'hand_over', afterMs: 0 } }
    })

  const messages = async (store: PostgresStore) =>
    (await store.durable.outbox.list({ state: 'ready', limit: 10 })).length

  it.each(['_step', 'commit\0'])('keeps nothing if %j never arrived', async (text) => {
    const { proxy, store, straight, paid } = await setupProxy()
    const lease = await begin(store)
    const cut = proxy.once('request lost', text)
    await expect(book(store, lease)).rejects.toMatchObject({ code: 'STORE_FAILED' })
    await cut
    expect(await paid()).toEqual([])
    expect(await messages(straight)).toBe(0)
    expect(await phasesOf(straight, lease)).toEqual([])
    expect((await viewOf(straight, lease)).state).toBe('in_progress')
    ofKind(await book(straight, lease), 'advanced')
    expect(await paid()).toEqual(['booked'])
  })

  it('reports a step as committed if the answer to COMMIT was lost', async () => {
    const { proxy, store, straight, paid } = await setupProxy()
    const lease = await begin(store)
    const cut = proxy.once('answer lost', 'commit\0')
    await expect(book(store, lease)).rejects.toMatchObject({ code: 'STORE_FAILED' })
    await cut
    // The step has handed over: its repetition is recognized, and its rows are rolled back.
    await expect.poll(() => phasesOf(straight, lease)).toEqual(['book done'])
    ofKind(await book(straight, lease), 'advanced')
    expect(await paid()).toEqual(['booked'])
    expect(await messages(straight)).toBe(1)
    expect((await viewOf(straight, lease)).state).toBe('pending')
  })

  it('keeps nothing if the connection was lost during the work', async () => {
    const { proxy, store, straight, paid } = await setupProxy()
    const lease = await begin(store)
    const outcome = store.durable.phases.advance(lease, async (tx) => {
      await pay(tx, 'booked')
      await store.durable.outbox.add(tx, messageOf())
      proxy.cut()
      return { phase: transactionOf() }
    })
    await expect(outcome).rejects.toMatchObject({ code: 'STORE_FAILED' })
    expect(await paid()).toEqual([])
    expect(await messages(straight)).toBe(0)
    expect(await phasesOf(straight, lease)).toEqual([])
  })
})

function connectJs(url: string): postgres.Sql {
  const options = { onnotice: () => undefined, backoff: () => 0.05 }
  const sql = postgres(url, { ...options, prepare: false })
  onTestFinished(() => sql.end({ timeout: 0 }))
  return sql
}

/** A pool that delays every COMMIT until `letGo` is called. */
function holdingCommits(pool: pg.Pool) {
  const asked = Promise.withResolvers<void>()
  const letGo = Promise.withResolvers<void>()
  const connect = async () => {
    const client = await pool.connect()
    return new Proxy(client, {
      get(target, name) {
        const value: unknown = Reflect.get(target, name)
        if (typeof value !== 'function') return value
        return async (...values: unknown[]) => {
          if (name === 'query' && values[0] === 'COMMIT') {
            asked.resolve()
            await letGo.promise
          }
          return Reflect.apply(value as () => unknown, target, values)
        }
      },
    })
  }
  const held = { options: pool.options, query: () => undefined, connect }
  return { pool: held as unknown as pg.Pool, asked: asked.promise, letGo: letGo.resolve }
}

it('fences the late step of an attempt that was taken over', async () => {
  const { open, paid } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  const lease = await begin(store)
  const outcome = await store.durable.phases.advance(lease, async (tx) => {
    await pay(tx, 'stale')
    await store.durable.outbox.add(tx, messageOf())
    clock.advance(LEASE_MS)
    const second = ofKind(await claim(store, { onLapse: 'resume' }), 'claimed')
    expect([second.from, second.recoveryPoint]).toEqual(['lapsed', 'started'])
    return { phase: transactionOf(), end: END }
  })
  expect(outcome).toEqual({ kind: 'fenced', own: false, state: 'in_progress' })
  expect(await paid()).toEqual([])
  expect(await store.durable.outbox.list({ state: 'ready', limit: 1 })).toEqual([])
  expect(await phasesOf(store, lease)).toEqual([])
  expect(await viewOf(store, lease)).toMatchObject({ attempt: 2, state: 'in_progress' })
})

// The step is written, and its COMMIT takes longer than the lease lasts.
it('allows no takeover between the last statement and the commit', async () => {
  const { open, connect, paid } = await setup()
  const clock = new FakeClock()
  const { pool, asked, letGo } = holdingCommits(connect())
  const store = await open({ clock })
  const lease = await begin(store)
  const late = postgresStore({ pool, clock })
  const outcome = late.durable.phases.advance(lease, async (tx) => {
    await pay(tx, 'booked')
    return { phase: transactionOf(), end: END }
  })
  await asked
  clock.advance(LEASE_MS)
  ofKind(await claim(store, { onLapse: 'resume' }), 'in_progress')
  expect(await store.sweep({ limit: 10 })).toEqual([])
  letGo()
  ofKind(await outcome, 'advanced')
  ofKind(await claim(store), 'completed')
  expect(await paid()).toEqual(['booked'])
})

it('deletes an operation and its phases with their record', async () => {
  const { open, column } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  for (const key of ['reaped', 'replaced']) {
    const lease = await begin(store, key)
    await store.durable.phases.record(lease, { phase: transactionOf(), end: END })
  }
  const rows = () =>
    column(`SELECT count(*)::int FROM oncekey_record_operation
      UNION ALL SELECT count(*)::int FROM oncekey_record_phase`)
  expect(await rows()).toEqual([2, 2])
  clock.advance(RETENTION_MS)
  expect(ofKind(await claim(store, { key: 'replaced' }), 'claimed').recoveryPoint).toBeUndefined()
  expect(await rows()).toEqual([1, 1])
  expect(await store.reap({ limit: 10 })).toMatchObject({ removed: 1 })
  expect(await rows()).toEqual([0, 0])
})

it('reaps expired records beside operations that never expire', async () => {
  const { open, app } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  const lease = await begin(store)
  ofKind(await settle(store, releaseOf(lease)), 'settled')
  ofKind(await settle(store, completeOf(await hold(store, { key: 'other' }))), 'settled')
  clock.advance(10 * RETENTION_MS)
  expect(await store.reap({ limit: 1 })).toMatchObject({ removed: 1 })
  expect(await viewOf(store, lease)).toMatchObject({ state: 'failed_retryable' })
  const inIndex = await app.query(`SELECT pg_get_expr(indpred, indrelid) AS predicate
    FROM pg_index WHERE indexrelid = 'oncekey_record_expiry'::regclass`)
  expect(inIndex.rows[0].predicate).toContain('recovery_point IS NULL')
})

it('allows inserts into the audit, and no update or delete', async () => {
  const { open, app } = await setup()
  const store = await open()
  const lease = await hold(store)
  const act: Act = { kind: 'release', ref: { identity: lease.identity } }
  ofKind(await store.durable.operator.act(act, BY), 'done')
  for (const sql of [
    `UPDATE oncekey_record_audit SET who = 'mallory'`,
    'DELETE FROM oncekey_record_audit',
    'TRUNCATE oncekey_record_audit',
  ]) {
    await expect(app.query(sql)).rejects.toThrow('append-only')
  }
  expect((await store.durable.operator.audit({ limit: 10 })).length).toBe(1)
})

it('wakes a waiting request on a result of a step, and on a release by an operator', async () => {
  const { open, column } = await setup()
  const store = await open()
  onTestFinished(() => store.close())
  const steps = {
    stepped: async (lease: Lease) => store.durable.phases.record(lease, { end: END }),
    released: async ({ identity }: Lease) =>
      store.durable.operator.act({ kind: 'release', ref: { identity } }, BY),
  }
  for (const [key, step] of Object.entries(steps)) {
    const lease = await begin(store, key)
    const moved = new Promise<void>((resolve) => store.watch!(lease.identity, resolve))
    const watched = 'SELECT watched FROM oncekey_record WHERE key = $1'
    await expect.poll(() => column(watched, [key])).toEqual([true])
    await step(lease)
    await moved
    expect(await column(watched, [key])).toEqual([false])
  }
})

it('repeats an act after a conflict', async () => {
  const { open, url } = await setup()
  await open()
  const failing = countingPool(url, { failOnce: '_act_write' })
  const store = postgresStore({ pool: failing.pool })
  const lease = await hold(store)
  const act: Act = { kind: 'release', ref: { identity: lease.identity } }
  ofKind(await store.durable.operator.act(act, BY), 'done')
  expect(failing.sent().filter((sql) => sql.includes('_act_write'))).toHaveLength(2)
  expect((await store.durable.operator.audit({ limit: 10 })).length).toBe(1)
})

it('works for a role with only the documented rights', async () => {
  const { url, app, connect } = await setup()
  const names = { schema: 'keys', table: 'record' }
  await app.query('CREATE SCHEMA keys')
  await app.query(migrationSql(names))
  const role = `durable_${new URL(url).pathname.slice(1)}`
  await app.query(`CREATE ROLE ${role} LOGIN;
    REVOKE CREATE ON SCHEMA public FROM public;
    GRANT USAGE ON SCHEMA keys TO ${role};
    GRANT SELECT ON keys.record_migration TO ${role};
    GRANT SELECT, INSERT, UPDATE, DELETE ON keys.record, keys.record_operation, keys.record_phase,
      keys.record_message, keys.record_partition TO ${role};
    GRANT SELECT, UPDATE ON keys.record_waiting TO ${role};
    GRANT SELECT, INSERT ON keys.record_audit, keys.record_discarded TO ${role}`)
  const pool = connect({ options: `-c role=${role}` })
  const store = postgresStore({ pool, ...names })
  await store.migrate()
  const { phases, outbox, operator } = store.durable
  const lease = await hold(store, { onLapse: 'resume' })
  ofKind(await phases.record(lease, { operation: operationOf(), phase: intentOf() }), 'advanced')
  const outcome = await phases.advance(lease, async (tx) => {
    await outbox.add(tx, messageOf({ partition: 'p' }))
    return { phase: transactionOf({ number: 2 }), end: END }
  })
  ofKind(outcome, 'advanced')
  const token = newToken()
  const [message] = await outbox.claim({ topics: ['receipts'], limit: 1, leaseMs: 1000, token })
  const dead = { id: message!.id, token, kind: 'dead', error: 'x', blocks: true } as const
  expect(await outbox.renew([dead], 1000)).toEqual([true])
  expect(await outbox.settle([dead])).toEqual([true])
  ofKind(await operator.act({ kind: 'drop_message', messageId: dead.id }, BY), 'done')
  expect(await outbox.prune({ limit: 10, olderThanMs: -1000 })).toBe(1)
  expect(await operator.takeUnknown({ limit: 1, againMs: 1000 })).toEqual([])
  const { recordId } = await viewOf(store, lease)
  const discard = { kind: 'discard_reply', ref: { recordId }, attempt: 1 } as const
  ofKind(await operator.act({ ...discard, despiteEffects: true }, BY), 'done')
  expect((await operator.discarded({ recordId, limit: 10 })).length).toBe(1)
  expect((await operator.audit({ limit: 10 })).length).toBe(2)
  await pool.end()
  await app.query(`DROP OWNED BY ${role}; DROP ROLE ${role}`)
})

it('supports everything but work in a transaction on a single Client', async () => {
  const { open, app } = await setup()
  const client = await app.connect()
  onTestFinished(() => client.release())
  const store = await open({ pool: client })
  const lease = await begin(store)
  const work = () => ({ phase: transactionOf() })
  await expect(store.durable.phases.advance(lease, work)).rejects.toThrow('at least 2')
  ofKind(await store.durable.phases.record(lease, { phase: intentOf() }), 'advanced')
  const act: Act = { kind: 'release', ref: { identity: lease.identity } }
  ofKind(await store.durable.operator.act(act, BY), 'done')
  expect(store.durable.outbox.watch).toBeUndefined()
})

it('works if the default isolation level is not READ COMMITTED', async () => {
  const { open, connect } = await setup()
  const options = String.raw`-c default_transaction_isolation=repeatable\ read`
  const store = await open({ pool: connect({ options }) })
  const lease = await begin(store)
  const outcome = await store.durable.phases.advance(lease, async (tx) => {
    await store.durable.outbox.add(tx, messageOf())
    return { phase: transactionOf() }
  })
  ofKind(outcome, 'advanced')
  const { outbox } = store.durable
  const claimed = await outbox.claim({
    topics: ['receipts'],
    limit: 1,
    leaseMs: 1000,
    token: newToken(),
  })
  expect(claimed.length).toBe(1)
})

it('rejects every call after close()', async () => {
  const { open } = await setup()
  const store = await open()
  const lease = await begin(store)
  await store.close()
  const { phases, outbox, operator } = store.durable
  for (const call of [
    () => phases.record(lease, { end: END }),
    () => phases.advance(lease, () => ({ end: END })),
    () => outbox.list({ state: 'ready', limit: 1 }),
    () => operator.act({ kind: 'release', ref: { identity: lease.identity } }, BY),
  ]) {
    await expect(call()).rejects.toMatchObject({ code: 'STORE_FAILED' })
  }
})
