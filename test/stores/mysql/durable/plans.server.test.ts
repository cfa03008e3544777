import type { Pool, RowDataPacket } from 'mysql2/promise'
import { expect, it } from 'vitest'
import type { Lease } from '../../../../src/core/store/store.ts'
import { mysqlStore, type MysqlStore } from '../../../../src/stores/mysql/index.ts'
import { runAs } from '../../../../src/stores/mysql/durable/phase-sql.ts'
import {
  BY,
  intentOf,
  OPERATION,
  resultOf,
  transactionOf,
} from '../../../../src/testing/durable-cases/durable-case.ts'
import { FakeClock } from '../../../../src/testing/fake-clock.ts'
import {
  claimRequests,
  completeOf,
  doubtOf,
  hold,
  ofKind,
  releaseOf,
  RETENTION_MS,
  settle,
  viewOf,
} from '../../../../src/testing/store-cases/store-case.ts'
import { addAll, begun } from './setup.ts'
import { completion, telling, useMariadb } from '../setup.ts'

const setup = useMariadb()

const PAY = runAs(OPERATION)

/**
 * A quarter of the records each: completed, two states that wait for a worker, and unknown. All are
 * due in the far future, because the clock of the tests starts at 0.
 */
const FILL_RECORDS = `
  INSERT INTO oncekey_record (identity, record_id, tenant, operation, \`key\`, fingerprint, state,
    attempt, lapses, token, lease_until_ms, on_lapse, after_expiry, recovery_point,
    reconcile_at_ms, created_at_ms, last_run_at_ms, expires_at_ms, run_as, to_run, due_at_ms)
  SELECT UNHEX(MD5(seq)), UUID(), 't', 'o', seq, 'f',
    ELT(1 + seq % 4, 'completed', 'failed_retryable', 'pending', 'unknown'),
    1, 0, '', 0, 'unknown', 'new', IF(seq % 4 IN (1, 2), 'started', NULL),
    9e12, seq, seq, 9e12, IF(seq % 4 IN (1, 2), ${PAY}, 0), IF(seq % 4 IN (1, 2), ${PAY}, 0), 9e12
  FROM seq_1_to_{rows}`

const FILL_OPERATIONS = `
  INSERT INTO oncekey_record_operation (record_id, name, version, input)
  SELECT record_id, 'pay', 1, 'x' FROM oncekey_record WHERE to_run > 0`

const FILL_PHASES = `
  INSERT INTO oncekey_record_phase (record_id, name, number, kind, state, attempt,
    first_sent_at_ms, sent_at_ms, downstream_key, provider_id)
  SELECT record_id, 'charge', 1, 'external', 'intended', 1, 0, 0, record_id, record_id
  FROM oncekey_record_operation`

/** A fifth is blocked by a dead message, some are in 1,000 lanes, and most have no partition. */
const FILL_MESSAGES = `
  INSERT INTO oncekey_record_message (id, topic, lane, place, sequence, state, token, attempt,
    created_at_ms, added_at_us, due_at_ms, errors, payload)
  SELECT UUID(), 'receipts', CASE WHEN seq % 5 = 0 THEN '/blocked'
      WHEN seq % 5 = 1 AND seq < {rows} / 4 THEN CONCAT('/', seq % 1000) ELSE '' END, 0, seq,
    'ready', '', 0, seq, seq, 9e12 + seq, '[]', 'x'
  FROM seq_1_to_{rows}`

/** Each of these records has ten discarded replies. */
const FILL_DISCARDED = `
  INSERT INTO oncekey_record_discarded (record_id, identity, tenant, attempt, discarded_at_ms,
    piece, result)
  SELECT r.record_id, r.identity, 't', n.seq, 0, 0, 'x'
  FROM oncekey_record AS r, seq_1_to_10 AS n WHERE r.state = 'unknown'`

const FINISH_MESSAGES = [
  `UPDATE oncekey_record_message SET place = IF(lane = '', due_at_ms, sequence)`,
  `UPDATE oncekey_record_message SET state = 'dead', due_at_ms = NULL, ended_at_ms = 1
    WHERE lane = '/blocked' ORDER BY place LIMIT 1`,
  `INSERT INTO oncekey_record_partition (topic, lane, sequence, is_open)
    SELECT topic, lane, MAX(sequence), 1 FROM oncekey_record_message WHERE lane <> ''
    GROUP BY topic, lane`,
]

const TABLES = ['', '_operation', '_phase', '_message', '_partition', '_discarded'].map(
  (suffix) => `oncekey_record${suffix}`,
)

async function fill(app: Pool, rows: number, isAnalysed: boolean): Promise<void> {
  // The optimizer keeps the statistics of the empty tables.
  for (const table of TABLES) {
    await app.query(`ALTER TABLE ${table} STATS_PERSISTENT = 1, STATS_AUTO_RECALC = 0`)
    await app.query(`ANALYZE TABLE ${table}`)
  }
  const records = [FILL_RECORDS, FILL_OPERATIONS, FILL_PHASES, FILL_DISCARDED]
  for (const sql of [...records, FILL_MESSAGES]) {
    const isOfRecords = records.includes(sql)
    const count = isOfRecords ? Math.max(20, rows / 5) : rows
    await app.query(sql.replaceAll('{rows}', `${count}`))
  }
  for (const sql of FINISH_MESSAGES) await app.query(sql)
  if (!isAnalysed) return
  for (const table of TABLES) await app.query(`ANALYZE TABLE ${table}`)
}

/** Calls every method of a durable store, with something to find each time. */
async function useAll(store: MysqlStore, clock: FakeClock, app: Pool): Promise<void> {
  const { phases, operator } = store.durable
  const { lease, recordId } = await begun(store)
  const intended = { phase: intentOf() }
  ofKind(await phases.record(lease, intended), 'advanced')
  ofKind(await phases.record(lease, intended), 'advanced')
  ofKind(await phases.record(lease, { phase: resultOf() }), 'advanced')
  ofKind(await phases.record(lease, { phase: intentOf({ name: 'b' }) }), 'advanced')
  ofKind(await phases.record(lease, { phase: { kind: 'clear', name: 'b', number: 2 } }), 'advanced')
  const step = { phase: transactionOf(), end: { kind: 'hand_over', afterMs: 0 } } as const
  ofKind(await phases.advance(lease, () => step), 'advanced')
  await phases.load(recordId)
  const query = { operations: [OPERATION], limit: 10 }
  expect((await phases.due(query)).length).toBe(1)
  expect((await phases.orphans({ ...query, operations: [] })).length).toBe(1)
  expect(await phases.orphans(query)).toEqual([])
  const overdue = { topics: [], overdueMs: 0, limit: 10 }
  expect(await store.durable.outbox.unrelayed!(overdue)).toEqual([])

  const unknown = await begun(store, { key: 'unknown' })
  ofKind(await phases.record(unknown.lease, intended), 'advanced')
  ofKind(await settle(store, doubtOf(unknown.lease)), 'settled')
  expect((await operator.takeUnknown({ limit: 10, againMs: 5 })).length).toBe(1)
  const target = { recordId: unknown.recordId, attempt: 1, inMs: 7 }
  expect(await operator.postpone(target)).toBe(true)
  const finding = { kind: 'not_executed' } as const
  for (const phase of [
    { providerId: 'ch_1' },
    { downstreamKey: 'none' },
    { recordId: unknown.recordId },
  ]) {
    await operator.act({ kind: 'conclude', phase, finding }, BY)
  }
  await operator.audit({ subject: unknown.recordId, limit: 10 })
  await operator.audit({ limit: 10 })
  await useOutbox(store, clock, app)

  const done = await begun(store, { key: 'done' })
  ofKind(await settle(store, completeOf(done.lease)), 'settled')
  await useDiscards(store, (await begun(store, { key: 'discarded' })).lease)
  ofKind(await settle(store, releaseOf(await hold(store, { key: 'released' }))), 'settled')
  clock.advance(RETENTION_MS)
  expect(await store.reap({ limit: 10, abandoned: completion() })).toMatchObject({
    removed: 3,
    abandoned: 1,
  })
}

async function useDiscards(store: MysqlStore, lease: Lease): Promise<void> {
  const { phases, operator } = store.durable
  ofKind(await phases.record(lease, { phase: resultOf() }), 'advanced')
  ofKind(await settle(store, completeOf(lease)), 'settled')
  const { recordId } = await viewOf(store, lease)
  const discard = { kind: 'discard_reply', attempt: 1, despiteEffects: true } as const
  ofKind(await operator.act({ ...discard, ref: { recordId } }, BY), 'done')
  expect((await operator.discarded({ recordId, limit: 10 })).length).toBe(1)
}

async function useOutbox(store: MysqlStore, clock: FakeClock, app: Pool): Promise<void> {
  const { outbox, operator } = store.durable
  const many = Array.from({ length: 30 }, (_, n) => ({ partition: `p${n}` }))
  await addAll(app, store, [...many, {}, { topic: 'other' }])
  const request = { topics: ['receipts', 'other'], limit: 100, leaseMs: 50, token: 'a' }
  const taken = await outbox.claim(request)
  expect(taken.length).toBe(32)
  expect((await outbox.claim(request)).length).toBe(32)
  expect(await outbox.renew(taken, 50)).not.toContain(false)
  const [first, second, ...others] = taken.map(({ id, token }) => ({ id, token }))
  await outbox.settle([
    { kind: 'dead', ...first!, error: 'no', blocks: false },
    { kind: 'retry', ...second!, error: 'no', delayMs: 9e9 },
    ...others.map((one) => ({ kind: 'done', ...one, providerId: 'm' }) as const),
  ])
  // The claim finds most partitions empty, and closes them.
  expect(await outbox.claim({ ...request, token: 'b' })).toEqual([])
  await outbox.read(first!.id)
  await outbox.list({ state: 'ready', limit: 10 })
  for (const kind of ['retry_message', 'drop_message'] as const) {
    await operator.act({ kind, messageId: first!.id }, BY)
  }
  clock.advance(10)
  expect(await outbox.prune({ limit: 100, olderThanMs: 5 })).toBe(30)
}

it.each([
  { what: 'has a few rows', rows: 20, isAnalysed: true },
  { what: 'was never analysed', rows: 40_000, isAnalysed: false },
  { what: 'was analysed', rows: 40_000, isAnalysed: true },
])(
  'uses an index for every statement when the database $what',
  { timeout: 120_000 },
  async (table) => {
    const { open, connect, app } = await setup()
    await open()
    await fill(app, table.rows, table.isAnalysed)
    const sent = new Set<string>()
    const clock = new FakeClock()
    const pool = connect()
    const store = mysqlStore({ pool: telling(pool, (sql) => sent.add(sql)), clock })
    await useAll(store, clock, app)

    const plans = [...sent]
      .map((sql) => sql.replace(/^\s*\/\*M!.*?\*\//, '').trim())
      .filter((sql) => /^(\(?SELECT|UPDATE|DELETE|INSERT[^]*\bSELECT\b)/.test(sql))
    expect(plans.length).toBeGreaterThan(40)
    const faults: unknown[] = []
    for (const sql of plans) {
      const [steps] = await app.query<RowDataPacket[]>(`EXPLAIN ${sql}`)
      for (const step of steps) {
        const { table: name, type, key, Extra } = step as Record<string, string | null>
        // The one-row table that provides the time, and results of subqueries.
        if (name === null || name === undefined || name.startsWith('<')) continue
        // The last entries of the audit are read in the order of their numbers.
        if (name === 'a' && type === 'index') continue
        const isCheap = ['const', 'eq_ref', 'ref', 'range', null].includes(type!)
        // One record, or one provider id, has few phases.
        const isHandful = name === 'p' && type === 'ref'
        const isSorted = /filesort/.test(Extra!) && !/Using index/.test(Extra!) && !isHandful
        const hasKey = key !== null || type === 'const'
        if (!isCheap || !hasKey || isSorted) faults.push({ ...step, sql })
      }
    }
    expect(faults).toEqual([])
  },
)

/** Counts the rows that the server reads on the only connection of a pool. */
async function rowsReadBy(pool: Pool, run: () => Promise<unknown>): Promise<number> {
  await pool.query('FLUSH STATUS')
  await run()
  const [rows] = await pool.query<RowDataPacket[]>(`SHOW SESSION STATUS LIKE 'Handler_read%'`)
  return rows.reduce((sum, row) => sum + Number(row['Value']), 0)
}

it('reads a small number of rows beside 100,000 others', { timeout: 120_000 }, async () => {
  const { open, connect, app } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  await fill(app, 100_000, false)
  const pool = connect({ connectionLimit: 1 })
  const counted = mysqlStore({ pool, clock })
  const { outbox, phases, operator } = counted.durable
  const request = { topics: ['receipts'], limit: 10, leaseMs: 50, token: 'a' }

  // Nothing is due: the claim reads every lane once, and the head of each lane.
  const idle = await rowsReadBy(pool, async () => {
    expect(await outbox.claim(request)).toEqual([])
  })
  expect(idle).toBeLessThan(10_000)
  // One of the lanes is blocked, with a fifth of all messages in it.
  await app.query(`UPDATE oncekey_record_message SET due_at_ms = 0, place = IF(lane = '', 0, place)
    WHERE state = 'ready'`)
  const busy = await rowsReadBy(pool, async () => {
    const taken = await outbox.claim(request)
    expect(taken.length).toBe(10)
  })
  expect(busy).toBeLessThan(5_000)

  await begun(store, { key: 'due' }).then(({ lease }) => settle(store, releaseOf(lease)))
  await settle(store, doubtOf(await hold(store, { key: 'unknown' })))
  const looked = await rowsReadBy(pool, async () => {
    expect((await phases.due({ operations: [OPERATION], limit: 10 })).length).toBe(1)
    expect((await operator.takeUnknown({ limit: 10, againMs: 5 })).length).toBe(1)
    expect((await counted.reap({ limit: 10, abandoned: completion() })).removed).toBe(0)
  })
  expect(looked).toBeLessThan(200)

  // All other operations are also due, for workers of another version.
  await app.query(`UPDATE oncekey_record SET reconcile_at_ms = 0, due_at_ms = 0, run_as = 77,
    to_run = 77 WHERE to_run > 0 AND token = ''`)
  await app.query(`UPDATE oncekey_record_operation SET version = 2 WHERE input = 'x'`)
  const passed = await rowsReadBy(pool, async () => {
    expect((await phases.due({ operations: [OPERATION], limit: 10 })).length).toBe(1)
    expect((await phases.orphans({ operations: [OPERATION], limit: 10 })).length).toBe(10)
  })
  expect(passed).toBeLessThan(200)

  // The reaper does not read them either.
  await settle(store, releaseOf(await hold(store, { key: 'released' })))
  clock.advance(RETENTION_MS)
  const reaped = await rowsReadBy(pool, async () => {
    expect((await counted.reap({ limit: 10 })).removed).toBe(1)
  })
  expect(reaped).toBeLessThan(200)
})

// A DELETE that scans the table would wait for the locked rows.
it('removes most rows of a small table without waiting for locked rows', async () => {
  const { open, app, connect } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  const { outbox } = store.durable
  const leases = (await store.claim(claimRequests(90))).map((one) => ofKind(one, 'claimed').lease)
  await store.settle(leases.map((lease) => completeOf(lease)))
  await addAll(
    app,
    store,
    Array.from({ length: 90 }, () => ({})),
  )
  const taken = await outbox.claim({ topics: ['receipts'], limit: 90, leaseMs: 1, token: 'a' })
  await outbox.settle(
    taken.map(({ id, token }) => ({ kind: 'done', id, token, providerId: undefined })),
  )
  clock.advance(RETENTION_MS)
  const held = await hold(store, { key: 'held' })
  const [message] = await addAll(app, store, [{}])
  const other = await connect().getConnection()
  await other.beginTransaction()
  const own = 'SELECT * FROM oncekey_record WHERE identity = UNHEX(?) FOR UPDATE'
  await other.query(own, [held.identity])
  await other.query('SELECT * FROM oncekey_record_message WHERE id = ? FOR UPDATE', [message])
  expect((await store.reap({ limit: 90 })).removed).toBe(90)
  expect(await outbox.prune({ limit: 90, olderThanMs: 1 })).toBe(90)
  await other.rollback()
  other.release()
  expect((await viewOf(store, held)).state).toBe('in_progress')
})
