// Records that are kept only to refuse their keys: how many rows upkeep reads beside them.
import type { Pool, RowDataPacket } from 'mysql2/promise'
import { expect, it } from 'vitest'
import { mysqlStore } from '../../../src/stores/mysql/index.ts'
import { OPERATION } from '../../../src/testing/durable-cases/durable-case.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import {
  claim,
  doubtOf,
  finish,
  hold,
  LEASE_MS,
  ofKind,
  releaseOf,
  RETENTION_MS,
  settle,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { begun } from './durable/setup.ts'
import { telling, useMariadb } from './setup.ts'

const setup = useMariadb()

const REFUSE_MS = 5000
const refuse = { afterExpiry: 'refuse', refuseForMs: REFUSE_MS } as const

/** Expired records as the store writes them. `toRun` and the times are SQL. */
const FILL = `
  INSERT INTO oncekey_record (identity, record_id, tenant, operation, \`key\`, fingerprint, state,
    attempt, lapses, token, lease_until_ms, on_lapse, after_expiry, reconcile_at_ms, created_at_ms,
    last_run_at_ms, expires_at_ms, to_run, due_at_ms)
  SELECT UNHEX(MD5(CONCAT('{name}', seq))), UUID(), 't', 'o', '', '', 'expired',
    1, 0, '', 0, 'unknown', 'refuse', {reconcile}, 0, seq, 0, {toRun}, {due}
  FROM seq_1_to_{rows}`

async function fill(app: Pool, of: Readonly<Record<string, string | number>>): Promise<void> {
  const sql = Object.entries(of).reduce(
    (text, [name, value]) => text.replaceAll(`{${name}}`, `${value}`),
    FILL,
  )
  await app.query(sql)
}

const FOR_EVER = { name: 'ever', reconcile: 'NULL', toRun: 0, due: 'seq' }
const LATER = { name: 'later', reconcile: '9e12', toRun: 1, due: '9e12' }

/** Counts the rows that the server reads on the only connection of a pool. */
async function rowsReadBy(pool: Pool, run: () => Promise<unknown>): Promise<number> {
  await pool.query('FLUSH STATUS')
  await run()
  const [rows] = await pool.query<RowDataPacket[]>(`SHOW SESSION STATUS LIKE 'Handler_read%'`)
  return rows.reduce((sum, row) => sum + Number(row['Value']), 0)
}

it.each([
  { what: 'was never analysed', isAnalysed: false },
  { what: 'was analysed', isAnalysed: true },
])(
  'finds refused keys whose time is over by an index, beside 60,000 others, if the table $what',
  { timeout: 120_000 },
  async ({ isAnalysed }) => {
    const { open, connect, app } = await setup()
    const clock = new FakeClock(1_000_000)
    const store = await open({ clock })
    await app.query('ALTER TABLE oncekey_record STATS_PERSISTENT = 1, STATS_AUTO_RECALC = 0')
    await app.query('ANALYZE TABLE oncekey_record')
    for (const key of ['a', 'b', 'c']) await finish(store, { ...refuse, key })
    clock.advance(RETENTION_MS)
    expect((await store.reap({ limit: 10 })).expired).toBe(3)
    await fill(app, { ...FOR_EVER, rows: 40_000 })
    await fill(app, { ...LATER, rows: 20_000 })
    if (isAnalysed) await app.query('ANALYZE TABLE oncekey_record')

    await hold(store, { key: 'lapsed' })
    await settle(store, doubtOf(await hold(store, { key: 'unknown' })))
    const { lease } = await begun(store, { key: 'due' })
    await settle(store, releaseOf(lease))
    clock.advance(REFUSE_MS + LEASE_MS)
    const pool = connect({ connectionLimit: 1 })
    const sent = new Set<string>()
    const counted = mysqlStore({ pool: telling(pool, (sql) => sent.add(sql)), clock })
    const { phases, operator } = counted.durable
    const abandoned = { result: new Uint8Array(), retentionMs: 1 }
    const reaped = await rowsReadBy(pool, async () => {
      expect(await counted.reap({ limit: 10, abandoned })).toMatchObject({ removed: 3, expired: 0 })
    })
    expect(reaped).toBeLessThan(100)
    const rest = await rowsReadBy(pool, async () => {
      expect(await counted.reap({ limit: 10, abandoned })).toMatchObject({ removed: 0, expired: 0 })
      expect((await counted.sweep({ limit: 10 })).length).toBe(1)
      expect((await phases.due({ operations: [OPERATION], limit: 10 })).length).toBe(1)
      expect((await phases.orphans({ operations: [], limit: 10 })).length).toBe(1)
      const taken = await operator.takeUnknown({ limit: 10, againMs: 5 })
      expect(taken.map(({ record }) => record.key).toSorted()).toEqual(['lapsed', 'unknown'])
    })
    expect(rest).toBeLessThan(200)

    const searches = [...sent].filter((sql) => sql.includes(`r.state = 'expired'`))
    expect(searches.length).toBeGreaterThan(0)
    for (const sql of searches) {
      const [steps] = await app.query<RowDataPacket[]>(`EXPLAIN ${sql}`)
      expect(steps).toMatchObject([{ key: 'due', type: 'range' }])
      expect(steps[0]?.['Extra']).not.toContain('filesort')
    }
  },
)

// A node of an older version has neither removed the key nor set a time.
it('keeps refusing a key that an older node has made expired, and leaves its record', async () => {
  const { open, app } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  const { identity } = await finish(store, refuse)
  clock.advance(RETENTION_MS)
  await app.query(`UPDATE oncekey_record SET state = 'expired', token = '', result = NULL,
    due_at_ms = last_run_at_ms`)
  ofKind(await claim(store, refuse), 'expired')
  clock.advance(REFUSE_MS)
  expect(await store.reap({ limit: 10 })).toEqual({ removed: 0, expired: 0, abandoned: 0 })
  expect(await viewOf(store, { identity })).toMatchObject({ key: 'key-1', state: 'expired' })
  // The policy of the request decides, and its time is over.
  expect(ofKind(await claim(store, refuse), 'claimed').from).toBe('expired')
})

it('clears every column that a refused key does not need, and its operation', async () => {
  const { open, app } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock, history: true })
  const { lease } = await begun(store, { ...refuse, key: 'a name' })
  const end = { kind: 'complete', result: new Uint8Array(9), retentionMs: RETENTION_MS } as const
  ofKind(await store.durable.phases.record(lease, { end }), 'advanced')
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 10 })).expired).toBe(1)
  const dueAtMs = clock.nowMs() + REFUSE_MS
  const [[row]] = await app.query<RowDataPacket[]>(`SELECT \`key\`, fingerprint, token, result,
    recovery_point, error_code, proof, run_as, to_run, due_at_ms FROM oncekey_record`)
  const values = Object.values(row!).map((one: unknown) =>
    Buffer.isBuffer(one) ? String(one) : one,
  )
  expect(values).toEqual(['', '', '', null, null, null, null, 0, 1, dueAtMs])
  const [[counts]] = await app.query<RowDataPacket[]>(`SELECT
    (SELECT COUNT(*) FROM oncekey_record_operation) AS operations,
    (SELECT COUNT(*) FROM oncekey_record_phase) AS phases`)
  expect(counts).toEqual({ operations: 0, phases: 0 })
  const [kept] = await store.history!({ ref: { identity: lease.identity }, limit: 1 })
  expect(kept).toMatchObject({ key: 'a name', recoveryPoint: 'started', refuseForMs: REFUSE_MS })
  expect(kept?.result?.byteLength).toBe(9)
})
