import pg from 'pg'
import { expect, it, onTestFinished, vi } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { RunOutcome } from '../../../src/core/attempt/run-outcome.ts'
import type { Lease } from '../../../src/core/store/store.ts'
import { postgresStore, type PostgresStore } from '../../../src/stores/postgres/index.ts'
import { channelOf } from '../../../src/stores/postgres/sql.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import {
  bytes,
  claim,
  claimRequest,
  completeOf,
  doubtOf,
  finish,
  hold,
  LEASE_MS,
  ofKind,
  releaseOf,
  RETENTION_MS,
  settle,
} from '../../../src/testing/store-cases/store-case.ts'
import { openTransaction, usePostgres } from './setup.ts'

const setupPools = usePostgres()

const CHANNEL = channelOf({ schema: 'public', table: 'oncekey_record' })
const ABANDONED = { result: bytes('too late'), retentionMs: RETENTION_MS }
const LISTENERS = `SELECT pid FROM pg_stat_activity
  WHERE datname = current_database() AND query ILIKE 'listen%'`

async function setup() {
  const fixture = await setupPools()
  const { open, column } = fixture
  const openClosed = async (options: Parameters<typeof open>[0] = {}) => {
    const store = await open(options)
    onTestFinished(() => store.close())
    return store
  }
  return {
    ...fixture,
    open: openClosed,
    marked: (key = 'key-1') =>
      vi.waitUntil(
        async () =>
          (await column('SELECT watched FROM oncekey_record WHERE key = $1', [key]))[0] === true,
        { timeout: 20_000 },
      ),
    listeners: () => column(LISTENERS),
  }
}

/** Resolves when the store reports that the record has changed. */
function moved(store: PostgresStore, { identity }: { readonly identity: string }): Promise<void> {
  return new Promise((resolve) => store.watch!(identity, resolve))
}

/** An engine with a stopped clock, so that it never polls. */
function sleepyEngine(store: PostgresStore) {
  const engine = createEngine({
    store,
    clock: new FakeClock(),
    sweepEveryMs: 0,
    reapEveryMs: 0,
    whileInProgress: { waitMs: 10_000 },
  })
  return (key = 'key-1') =>
    engine.run(
      {
        scope: { tenant: 'tenant-1', operation: 'POST /payments' },
        key,
        fingerprint: 'fingerprint-1',
      },
      () => bytes('never'),
    )
}

/** The replayed result: the bytes of the driver, or a copy if several callers share them. */
function textOf(outcome: RunOutcome): string | undefined {
  return outcome.kind === 'replayed' ? Buffer.from(outcome.result).toString() : undefined
}

it.each(['pg', 'postgres.js'] as const)(
  'wakes a request that waits in another process without polling, with %s',
  async (driver) => {
    const { open, connect, connectJs, marked } = await setup()
    const holder = await open()
    const store = await open({ pool: driver === 'pg' ? connect() : connectJs() })
    const claims = vi.spyOn(store, 'claim')
    const run = sleepyEngine(store)
    const leases = [await hold(holder), await hold(holder, { key: 'key-2' })]
    // The two requests that wait for the same key share a claim.
    const waiting = [run(), run(), run('key-2')]
    await Promise.all([marked(), marked('key-2')])
    expect(claims.mock.calls.flatMap(([requests]) => requests).length).toBe(2)

    ofKind(await settle(holder, completeOf(leases[0]!, bytes('first'))), 'settled')
    for (const one of waiting.slice(0, 2)) {
      expect(textOf(await one)).toBe('first')
    }
    expect(claims.mock.calls.flatMap(([requests]) => requests).length).toBe(3)

    // A transaction of the store wakes with its commit.
    const { outcome, finish: commit } = await openTransaction(holder, leases[1]!, 'second')
    commit()
    ofKind(await outcome, 'settled')
    expect(textOf(await waiting[2]!)).toBe('second')
  },
)

/** The changes that end a wait, made by a store that does not know of the waiting request. */
const ENDS: Readonly<Record<string, End>> = {
  'a result': { move: (store, lease) => settle(store, completeOf(lease)) },
  'a release': { move: (store, lease) => settle(store, releaseOf(lease)) },
  doubt: { move: (store, lease) => settle(store, doubtOf(lease)) },
  'a sweep': {
    move: (store, _lease, clock) => {
      clock.advance(LEASE_MS)
      return store.sweep({ limit: 10 })
    },
  },
  'a claim that finds the lease lapsed': {
    move: (store, _lease, clock) => {
      clock.advance(LEASE_MS)
      return claim(store)
    },
  },
  abandonment: {
    begin: async (store) => {
      ofKind(await claim(store, { mode: 'accept' }), 'pending')
      return { identity: claimRequest().identity, token: '', attempt: 0 }
    },
    move: (store, _lease, clock) => {
      clock.advance(RETENTION_MS)
      return store.reap({ limit: 10, abandoned: ABANDONED })
    },
  },
  'the result of what a worker took': {
    begin: async (store) => {
      await claim(store, { mode: 'accept' })
      return { identity: claimRequest().identity, token: '', attempt: 0 }
    },
    move: async (store) => {
      const { lease } = ofKind(await claim(store, { mode: 'take' }), 'claimed')
      return settle(store, completeOf(lease))
    },
  },
}

interface End {
  readonly begin?: (store: PostgresStore) => Promise<Lease>
  readonly move: (store: PostgresStore, lease: Lease, clock: FakeClock) => Promise<unknown>
}

it.each(Object.keys(ENDS))('wakes a waiting request on %s', async (name) => {
  const { open, marked } = await setup()
  const { begin = hold, move } = ENDS[name]!
  const clock = new FakeClock()
  const store = await open({ clock })
  const lease = await begin(store)
  const woken = moved(await open(), lease)
  await marked()
  await move(store, lease, clock)
  await woken
})

it('sends no NOTIFY for a record without a waiting request', async () => {
  const { open, url, app } = await setup()
  const client = new pg.Client({ connectionString: url })
  onTestFinished(() => client.end())
  const heard: (string | undefined)[] = []
  client.on('notification', ({ payload }) => void heard.push(payload))
  await client.connect()
  await client.query(`LISTEN "${CHANNEL}"`)
  const clock = new FakeClock()
  const store = await open({ clock, history: true })
  for (const { begin = hold, move } of Object.values(ENDS)) {
    await move(store, await begin(store), clock)
    await app.query('DELETE FROM oncekey_record')
  }
  const doubtful = await hold(store, { key: 'doubtful' })
  await settle(store, doubtOf(doubtful))
  const verdict = { kind: 'completed', result: bytes('found') } as const
  await store.resolve([{ ref: doubtful, verdict, retentionMs: RETENTION_MS }])
  await client.query(`SELECT pg_notify('${CHANNEL}', 'the last')`)
  await vi.waitUntil(() => heard.includes('the last'))
  expect(heard).toEqual(['the last'])
})

it('wakes at once if the record was settled already or does not exist', async () => {
  const { open, marked } = await setup()
  const store = await open()
  await moved(store, await finish(store))
  await moved(store, claimRequest({ key: 'never seen' }))
  // The same for a record that was watched before and has been taken over since.
  const first = await hold(store, { key: 'again', onLapse: 'rerun' })
  const woken = moved(store, first)
  await marked('again')
  await settle(store, releaseOf(first))
  await woken
  const second = await hold(store, { key: 'again' })
  const wokenAgain = moved(store, second)
  await marked('again')
  await settle(store, completeOf(second))
  await wokenAgain
})

// The settlement is written and not committed when the watch begins, so no mark can be set.
it('wakes on a settlement that was uncommitted when the watch began', async () => {
  const { open, connect, column } = await setup()
  const store = await open()
  const lease = await hold(store)
  const blocker = await connect().connect()
  await blocker.query('BEGIN')
  await blocker.query(`UPDATE oncekey_record SET state = 'completed'`)
  const woken = moved(store, lease)
  await vi.waitUntil(
    async () =>
      (
        await column(`SELECT 1 FROM pg_stat_activity WHERE query LIKE '%"oncekey_record_watch"%'
        AND state = 'idle' AND pid <> pg_backend_pid()`)
      ).length > 0,
  )
  await blocker.query('COMMIT')
  blocker.release()
  await woken
})

it.each(['pg', 'postgres.js'] as const)(
  'listens again after the loss of its connection, and wakes for changes it missed, with %s',
  async (driver) => {
    const { open, connect, connectJs, app, marked, listeners } = await setup()
    const store = await open({ pool: driver === 'pg' ? connect() : connectJs() })
    const leases = [await hold(store), await hold(store, { key: 'key-2' })]
    const [missed, later] = leases.map((lease) => moved(store, lease))
    await Promise.all([marked(), marked('key-2')])
    const before = await listeners()
    expect(before.length).toBe(1)
    // A plain UPDATE sends no notification.
    await app.query(`UPDATE oncekey_record SET state = 'completed' WHERE key = 'key-1'`)
    await app.query(LISTENERS.replace('pid', 'pg_terminate_backend(pid)'))
    await missed
    const [again] = await listeners()
    expect(before).not.toContain(again)
    await settle(store, completeOf(leases[1]!))
    await later
  },
)

it('answers a waiting request by polling if no connection can listen', async () => {
  const { open, connect } = await setup()
  let tries = 0
  class Deaf extends pg.Client {
    override connect(): Promise<never> {
      tries++
      return Promise.reject(new Error('too many connections'))
    }
  }
  const holder = await open()
  const lease = await hold(holder)
  const pool = connect()
  const store = postgresStore({ pool: Object.assign(pool, { Client: Deaf }) })
  onTestFinished(() => store.close())
  // The connections of the pool still work.
  Object.assign(pool, { Client: pg.Client })
  const engine = createEngine({ store, whileInProgress: { waitMs: 20_000 } })
  const request = {
    scope: { tenant: 'tenant-1', operation: 'POST /payments' },
    key: 'key-1',
    fingerprint: 'fingerprint-1',
  }
  const waiting = engine.run(request, () => bytes('never'))
  await vi.waitUntil(() => tries >= 2)
  await settle(holder, completeOf(lease))
  expect(await waiting).toMatchObject({ kind: 'replayed' })
  await engine.close()
})

it('keeps no connection and no timer after the last waiting request', async () => {
  const { open, marked, listeners } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  const lease = await hold(store)
  const end = store.watch!(lease.identity, () => undefined)
  await marked()
  expect((await listeners()).length).toBe(1)
  end()
  expect(clock.pendingTimers).toBe(1)
  clock.advance(29_000)
  // A new watch uses the same connection.
  store.watch!(lease.identity, () => undefined)()
  clock.advance(29_000)
  expect((await listeners()).length).toBe(1)
  clock.advance(1_000)
  await vi.waitUntil(async () => (await listeners()).length === 0)
  expect(clock.pendingTimers).toBe(0)

  store.watch!(lease.identity, () => undefined)
  await vi.waitUntil(async () => (await listeners()).length === 1)
  await store.close()
  await vi.waitUntil(async () => (await listeners()).length === 0)
  expect(clock.pendingTimers).toBe(0)
  await expect(claim(store)).rejects.toThrow('the store is closed')
  expect(store.watch!(lease.identity, () => undefined)()).toBeUndefined()
})

it('does not listen with listen: false or without a suitable pool', async () => {
  const { connect, url } = await setup()
  const pool = connect()
  expect(postgresStore({ pool }).watch).toBeTypeOf('function')
  expect(postgresStore({ pool, listen: false }).watch).toBeUndefined()
  expect(postgresStore({ pool, prepare: false }).watch).toBeUndefined()
  expect(postgresStore({ pool, prepare: false, listen: true }).watch).toBeTypeOf('function')
  const client = new pg.Client({ connectionString: url })
  expect(postgresStore({ pool: client }).watch).toBeUndefined()
  expect(() => postgresStore({ pool: client, listen: true })).toThrow('listen: true needs a Pool')
  expect(() => postgresStore({ pool, listen: 1 as never })).toThrow('listen')
})
