import type pg from 'pg'
import { expect, it } from 'vitest'
import type { PostgresStore } from '../../../src/stores/postgres/index.ts'
import { operationOf, transactionOf } from '../../../src/testing/durable-cases/durable-case.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import {
  claim,
  claimRequest,
  completeOf,
  finish,
  hold,
  ofKind,
  RETENTION_MS,
  settle,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { planner } from './planner.ts'
import { usePostgres } from './setup.ts'

const setup = usePostgres()

const FEW = 200
const MANY = 20_000
const LIMIT = 20

/**
 * Records of which each call finds more than it may take, beside `count` tombstones that are kept
 * for ever, as many that are kept for a time, and 40 whose time is over. Only 10 records have
 * expired, so a call of reap gets to the tombstones; 20 others become tombstones before.
 */
const fill = (count: number) => `
  ALTER TABLE oncekey_record_phase SET UNLOGGED;
  ALTER TABLE oncekey_record_operation SET UNLOGGED;
  ALTER TABLE oncekey_record SET UNLOGGED;
  ALTER TABLE oncekey_record SET (autovacuum_enabled = false);
  CREATE TABLE work (state oncekey_record_state, count int, at timestamptz, key text);
  INSERT INTO work VALUES
    ('expired', ${count}, NULL, ''), ('expired', ${count}, now() + interval '1 hour', ''),
    ('expired', 40, now() - interval '1 hour', ''), ('completed', 10, NULL, 'done'),
    ('completed', ${LIMIT}, now() - interval '9 hours', 'kept'),
    ('in_progress', 40, NULL, 'held'), ('unknown', 40, now() - interval '1 hour', 'unknown'),
    ('pending', 40, now() - interval '1 hour', 'due');
  INSERT INTO oncekey_record (identity, record_id, tenant, operation, key, fingerprint, state,
      attempt, lapses, token, lease_until, on_lapse, after_expiry, created_at, last_run_at,
      expires_at, reconcile_at, recovery_point, run_name, run_version)
    SELECT decode(md5(state || n::text || coalesce(at::text, '')), 'hex'),
      md5(state || n::text || coalesce(at::text, ''))::uuid, 't', 'o', key, '', state, 1, 0, '',
      now() - interval '2 hours', 'resume',
      CASE WHEN key IN ('', 'kept') THEN 'refuse' ELSE 'new' END::oncekey_record_after_expiry,
      now(), now(), now() - CASE key WHEN 'kept' THEN interval '3 h' ELSE interval '2 h' END,
      at + n * interval '1 ms', CASE WHEN key IN ('due', 'kept') THEN 'started' END,
      CASE WHEN key IN ('due', 'kept') THEN 'pay' END, CASE WHEN key IN ('due', 'kept') THEN 1 END
    FROM work, generate_series(1, count) AS n;
  INSERT INTO oncekey_record_operation
    SELECT record_id, 'pay', 1, '' FROM oncekey_record WHERE run_name IS NOT NULL;
  INSERT INTO oncekey_record_phase (record_id, name, number, attempt, first_sent_at, sent_at, kind,
      state)
    SELECT record_id, 'book', 1, 1, now(), now(), 'transaction', 'done'
    FROM oncekey_record_operation`

type Call = (store: PostgresStore, client: pg.Client) => Promise<unknown>

const rowsOf = (sql: string): Call => {
  return async (_, client) => (await client.query({ text: sql, rowMode: 'array' })).rows
}

const CALLS: Readonly<Record<string, Call>> = {
  'make tombstones, with operations': async (store) => {
    const report = { removed: 0, expired: LIMIT, abandoned: 0 }
    expect(await store.reap({ limit: LIMIT })).toEqual(report)
  },
  'reap, of expired records and tombstones': async (store) => {
    const report = { removed: LIMIT, expired: 0, abandoned: 0 }
    expect(await store.reap({ limit: LIMIT })).toEqual(report)
  },
  'reap, of tombstones': async (store) =>
    expect(await store.reap({ limit: LIMIT })).toMatchObject({ removed: LIMIT }),
  'reap, of the last tombstones': async (store) =>
    expect(await store.reap({ limit: LIMIT })).toMatchObject({ removed: 10 }),
  'reap, of nothing': async (store) =>
    expect(await store.reap({ limit: LIMIT })).toMatchObject({ removed: 0 }),
  sweep: async (store) => expect((await store.sweep({ limit: LIMIT })).length).toBe(LIMIT),
  due: async (store) => {
    const query = { operations: [{ name: 'pay', version: 1 }], limit: LIMIT }
    expect((await store.durable.phases.due(query)).length).toBe(LIMIT)
  },
  'take unknown records': async (store) => {
    const taken = await store.durable.operator.takeUnknown({ limit: LIMIT, againMs: 1000 })
    expect(new Set(taken.map(({ record }) => record.key))).toEqual(new Set(['unknown']))
    expect(taken.length).toBe(LIMIT)
  },
  'list unknown records': async (store) =>
    expect((await store.list({ state: 'unknown', limit: LIMIT })).length).toBe(LIMIT),
  'list tombstones': async (store) =>
    expect((await store.list({ state: 'expired', limit: LIMIT })).length).toBe(LIMIT),
}

/** The calls of a node of the previous version. */
const OLD_CALLS: Readonly<Record<string, Call>> = {
  'reap of an older node': rowsOf('SELECT * FROM oncekey_record_reap(NULL, 20, false, NULL, NULL)'),
  'list of an older node': rowsOf(`SELECT * FROM oncekey_record_list('expired', 20)`),
  'sweep of an older node': rowsOf('SELECT * FROM oncekey_record_sweep_2(NULL, 20)'),
  'due of an older node': rowsOf(
    `SELECT * FROM oncekey_record_due_3(NULL, '{pay}', '{1}', '{""}', true, 20, '{}')`,
  ),
  'unknown records of an older node': rowsOf(`SELECT * FROM oncekey_record_take_unknown_3(
    NULL, 20, 1000, NULL, NULL, '{}', '{}', '{}', '{}', '{}', '{}')`),
}

/** Counts the rows that each call reads, and checks that it reads them by an index. */
async function readBeside(count: number, isAnalyzed: boolean) {
  const { open, url, app } = await setup()
  await open()
  await app.query(fill(count))
  if (isAnalyzed) await app.query('ANALYZE')
  const planOf = await planner(url, { onlyRun: true })
  const read: Record<string, number> = {}
  for (const [name, call] of Object.entries({ ...CALLS, ...OLD_CALLS })) {
    const { indexes, kinds, rows } = await planOf(call)
    const byTombstone = indexes.has('oncekey_record_tombstone')
    expect({ name, byTombstone }).toEqual({ name, byTombstone: name.startsWith('reap, ') })
    const scans = [...kinds].filter((kind) => /Seq Scan|Hash Join|Merge Join|Bitmap/.test(kind))
    expect({ name, scans }).toEqual({ name, scans: [] })
    read[name] = rows
  }
  return read
}

it.each([false, true])(
  `reads no more rows beside ${MANY} tombstones than beside ${FEW}, analyzed: %s`,
  { timeout: 120_000 },
  async (isAnalyzed) => {
    const few = await readBeside(FEW, isAnalyzed)
    expect(await readBeside(MANY, isAnalyzed)).toEqual(few)
    for (const [name, rows] of Object.entries(few)) {
      expect({ name, rows }).toSatisfy((one) => one.rows <= 10 * LIMIT)
    }
  },
)

it('keeps nothing of a refused key that a claim does not need, in any column', async () => {
  const { open, app, column } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  const refuse = { afterExpiry: 'refuse', refuseForMs: 1_000 } as const
  const lease = await hold(store, { ...refuse, key: 'a name', onLapse: 'resume' })
  const step = { operation: operationOf(), phase: transactionOf() }
  ofKind(await store.durable.phases.record(lease, step), 'advanced')
  ofKind(await settle(store, completeOf(lease)), 'settled')
  clock.advance(RETENTION_MS)
  expect(await store.reap({ limit: 10 })).toMatchObject({ expired: 1 })
  const { rows } = await app.query('SELECT * FROM oncekey_record')
  const isKept = ([, value]: [string, unknown]) => ![null, '', false].includes(value as null)
  expect(
    Object.entries(rows[0])
      .filter(isKept)
      .map(([name]) => name)
      .toSorted(),
  ).toEqual([
    ...['after_expiry', 'attempt', 'completed_at', 'created_at', 'expires_at', 'identity'],
    ...['lapses', 'last_run_at', 'lease_until', 'on_lapse', 'operation', 'reconcile_at'],
    ...['record_id', 'refuse_for_ms', 'state', 'tenant', 'tries'],
  ])
  expect(
    await column(`SELECT count(*)::int FROM oncekey_record_operation
      UNION ALL SELECT count(*)::int FROM oncekey_record_phase`),
  ).toEqual([0, 0])
})

it('keeps the whole record in the history once, when it becomes a tombstone', async () => {
  const { open } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock, history: true })
  const refuse = { afterExpiry: 'refuse', refuseForMs: 1_000 } as const
  const { identity } = await finish(store, { ...refuse, key: 'a name' })
  clock.advance(RETENTION_MS)
  const history = () => store.history!({ ref: { identity }, limit: 10 })
  await store.reap({ limit: 10 })
  const kept = await history()
  expect(kept).toMatchObject([{ key: 'a name', fingerprint: 'fingerprint-1', refuseForMs: 1_000 }])
  expect(Buffer.from(kept[0]!.result!).toString()).toBe('done')
  clock.advance(1_000)
  expect(await store.reap({ limit: 10 })).toMatchObject({ removed: 1 })
  expect(await history()).toEqual(kept)
})

// The clock of the database is set back behind the expiry of a record that is a tombstone already.
it('refuses a key until the expiry of its tombstone, under every policy', async () => {
  const { open } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  const { identity } = await finish(store, { afterExpiry: 'refuse', refuseForMs: 1 })
  const { recordId } = await viewOf(store, { identity })
  clock.advance(RETENTION_MS)
  expect(await store.reap({ limit: 10 })).toMatchObject({ expired: 1 })
  clock.jumpWallTime(-1)
  for (const mode of ['hold', 'accept', 'take', 'find'] as const) {
    expect(await claim(store, { mode })).toEqual({ kind: 'expired', recordId })
  }
  clock.jumpWallTime(1)
  expect(ofKind(await claim(store), 'claimed').from).toBe('expired')
})

// An application refers to a record while reap removes its tombstone.
it('leaves a locked tombstone for the next call, and removes the others', async () => {
  const { open, app } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  const refuse = { afterExpiry: 'refuse', refuseForMs: 1_000 } as const
  for (const key of ['locked', 'free']) await finish(store, { ...refuse, key })
  clock.advance(RETENTION_MS)
  expect(await store.reap({ limit: 10 })).toMatchObject({ expired: 2 })
  clock.advance(1_000)
  const other = await app.connect()
  const { identity } = claimRequest({ key: 'locked' })
  await other.query('BEGIN')
  const lock = `SELECT FROM oncekey_record WHERE identity = decode($1, 'hex') FOR KEY SHARE`
  await other.query(lock, [identity])
  expect(await store.reap({ limit: 10 })).toMatchObject({ removed: 1 })
  await other.query('COMMIT')
  other.release()
  expect(await store.reap({ limit: 10 })).toMatchObject({ removed: 1 })
  expect(ofKind(await claim(store, { ...refuse, key: 'locked' }), 'claimed').from).toBe('new')
})
