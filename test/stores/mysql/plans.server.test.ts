import type { RowDataPacket } from 'mysql2/promise'
import { expect, it } from 'vitest'
import { mysqlStore } from '../../../src/stores/mysql/index.ts'
import {
  claim,
  claimRequests,
  completeOf,
  hold,
  LEASE_MS,
  ofKind,
  releaseOf,
  RETENTION_MS,
  settle,
} from '../../../src/testing/store-cases/store-case.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { telling, useMariadb } from './setup.ts'

const setup = useMariadb()

/** One record in a hundred is held, some are released or unknown, and most are completed. */
const FILL = `
  INSERT INTO oncekey_record (identity, record_id, tenant, operation, \`key\`, fingerprint, state,
    attempt, lapses, token, lease_until_ms, on_lapse, after_expiry, created_at_ms, last_run_at_ms,
    expires_at_ms, due_at_ms)
  SELECT UNHEX(MD5(n)), UUID(), 't', 'o', n, 'f',
    ELT(1 + (n % 100 < 4) * (1 + n % 4), 'completed', 'in_progress', 'failed_retryable', 'unknown',
      'pending'),
    1, 0, '', 9e12, 'unknown', 'new', n, n, 9e12, 9e12
  FROM (SELECT a.d + b.d * 10 + c.d * 100 + e.d * 1000 + f.d * 10000 AS n
    FROM {digits} a, {digits} b, {digits} c, {digits} e, {digits} f) AS numbers WHERE n < {rows}`

const DIGITS = `(SELECT 0 AS d ${Array.from('123456789', (n) => `UNION SELECT ${n}`).join(' ')})`

it.each([
  { what: 'has a few records', rows: 20, isAnalysed: true },
  { what: 'was never analysed', rows: 30_000, isAnalysed: false },
  { what: 'was analysed', rows: 30_000, isAnalysed: true },
])(
  'uses an index for every statement on a table that $what',
  { timeout: 60_000 },
  async (table) => {
    const { open, connect, app } = await setup()
    await open()
    // The optimizer keeps the statistics of the empty table.
    await app.query('ALTER TABLE oncekey_record STATS_PERSISTENT = 1, STATS_AUTO_RECALC = 0')
    await app.query('ANALYZE TABLE oncekey_record')
    await app.query(FILL.replaceAll('{digits}', DIGITS).replace('{rows}', `${table.rows}`))
    if (table.isAnalysed) await app.query('ANALYZE TABLE oncekey_record')

    const sent = new Set<string>()
    const clock = new FakeClock()
    const pool = telling(connect(), (sql) => sent.add(sql))
    const store = mysqlStore({ pool, clock, history: true })
    const leases = (await store.claim(claimRequests(60, { onLapse: 'rerun' }))).map(
      (one) => ofKind(one, 'claimed').lease,
    )
    await store.claim(claimRequests(60))
    await store.renew(leases.map((lease) => ({ ...lease, leaseMs: LEASE_MS + 1 })))
    await store.settle(leases.slice(0, 20).map((lease) => completeOf(lease)))
    await store.settle(leases.slice(20, 40).map((lease) => releaseOf(lease)))
    ofKind(await claim(store, { key: 'key-30' }), 'claimed')
    ofKind(await settle(store, completeOf({ ...leases[30]!, attempt: 7 })), 'fenced')
    const transaction = store.transaction(await hold(store, { key: 'tx' }), () => ({
      result: new Uint8Array(),
      retentionMs: RETENTION_MS,
    }))
    ofKind(await transaction, 'settled')
    const ref = { recordId: (await store.read({ identity: leases[0]!.identity }))!.recordId }
    await store.read(ref)
    await store.resolve([{ ref, verdict: { kind: 'failed_retryable' }, retentionMs: 1 }])
    const states = ['in_progress', 'completed', 'unknown', 'pending', 'failed_retryable'] as const
    for (const state of states) await store.list({ state, limit: 10 })
    clock.advance(2 * RETENTION_MS)
    const abandoned = { result: new Uint8Array(), retentionMs: 1 }
    ofKind(await claim(store, { key: 'key-1' }), 'claimed')
    await store.reap({ limit: 10, abandoned })
    await store.sweep({ limit: 10 })
    await store.history!({ ref, limit: 10 })
    await store.history!({ ref: { identity: leases[0]!.identity }, limit: 10 })

    const plans = [...sent]
      .map((sql) => sql.replace(/^\s*\/\*M!.*?\*\//, '').trim())
      .filter((sql) => /^(SELECT|UPDATE|DELETE|INSERT[^]*\bSELECT\b)/.test(sql))
    expect(plans.length).toBeGreaterThan(25)
    const faults: unknown[] = []
    for (const sql of plans) {
      const [steps] = await app.query<RowDataPacket[]>(`EXPLAIN ${sql}`)
      for (const step of steps) {
        const { table: name, type, key, Extra } = step
        // The one-row table that provides the time, and the few rows that a list has found.
        if (name === null || (name as string).startsWith('<derived')) continue
        const isCheap = ['const', 'eq_ref', 'ref', 'range', null].includes(type as string)
        const isSorted = /filesort/.test(Extra as string) && !/Using index/.test(Extra as string)
        if (!isCheap || key === null || isSorted) faults.push({ ...step, sql })
      }
    }
    expect(faults).toEqual([])
  },
)
