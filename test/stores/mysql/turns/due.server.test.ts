import type { Pool } from 'mysql2/promise'
import { expect, it } from 'vitest'
import type { DueOperation } from '../../../../src/core/store/durable-store.ts'
import { mysqlStore } from '../../../../src/stores/mysql/index.ts'
import { runAs } from '../../../../src/stores/mysql/durable/phase-sql.ts'
import { OPERATION } from '../../../../src/testing/durable-cases/durable-case.ts'
import { telling, useMariadb } from '../setup.ts'
import { countBy, fillRecords } from './turn-fill.ts'

const setup = useMariadb()

const LATER = '(UNIX_TIMESTAMP() + 3600) * 1000'

/** Takes all returned operations, like a worker. */
async function take(app: Pool, due: readonly DueOperation[]): Promise<void> {
  if (due.length === 0) return
  const sql = `UPDATE oncekey_record SET state = 'in_progress', to_run = 0, due_at_ms = 9e12
    WHERE record_id IN (?)`
  await app.query(sql, [due.map(({ record }) => record.recordId)])
}

const tenantsOf = (due: readonly DueOperation[]) => due.map(({ record }) => record.tenant)

it('gives both tenants of 210 operations a turn over many calls', async () => {
  const { open, app } = await setup()
  const store = await open()
  const operations = Array.from({ length: 210 }, (_, n) => ({ name: `op${n}`, version: 1 }))
  await app.query('CREATE TABLE run (name VARCHAR(20), number BIGINT)')
  const numbers = operations.map((one) => [one.name, runAs(one)])
  await app.query('INSERT INTO run VALUES ?', [numbers])
  await fillRecords(app, { rows: 10, tenant: `IF(seq = 10, 'b', 'a')`, atMs: 'seq' })
  await app.query('CREATE TABLE one AS SELECT * FROM oncekey_record')
  for (const table of ['oncekey_record_operation', 'oncekey_record']) {
    await app.query(`DELETE FROM ${table}`)
  }
  await app.query(`INSERT INTO oncekey_record (identity, record_id, tenant, operation, \`key\`,
      fingerprint, state, attempt, lapses, token, lease_until_ms, on_lapse, after_expiry,
      recovery_point, created_at_ms, last_run_at_ms, expires_at_ms, run_as, to_run, due_at_ms)
    SELECT UNHEX(MD5(CONCAT(one.\`key\`, run.name))), UUID(), tenant, run.name, one.\`key\`, 'f',
      state, 1, 0, '', 0, 'resume', 'new', 'started', 0, 0, 9e12, number, number, due_at_ms
    FROM one, run`)
  await app.query(`INSERT INTO oncekey_record_operation (record_id, name, version, input)
    SELECT record_id, operation, 1, 'x' FROM oncekey_record`)
  const served: string[] = []
  // Two turns of each operation: one for each of its tenants.
  for (let call = 0; call < 42; call++) {
    const due = await store.durable.phases.due({ operations, limit: 10 })
    served.push(...tenantsOf(due))
    await take(app, due)
  }
  expect(countBy(served)).toEqual(
    new Map([
      ['a', 210],
      ['b', 210],
    ]),
  )
}, 60_000)

it('finds the one due operation after thousands of tenants whose work is not due yet', async () => {
  const { open, app } = await setup()
  const store = await open()
  await fillRecords(app, { rows: 2000, tenant: `'flood'`, atMs: 'seq' })
  await fillRecords(app, { rows: 5000, tenant: `CONCAT('t', seq)`, atMs: LATER })
  await fillRecords(app, { rows: 1, tenant: `'zz'`, atMs: '500000' })
  const query = { operations: [OPERATION], limit: 10, withoutTenants: ['flood'] }
  for (let call = 0; call < 3; call++) {
    expect(tenantsOf(await store.durable.phases.due(query))).toEqual(['zz'])
  }
  // The walk has reached the end, and starts with the first tenant again.
  await fillRecords(app, { rows: 1, tenant: `'a'`, atMs: '500000' })
  const found = [await store.durable.phases.due(query), await store.durable.phases.due(query)]
  expect(new Set(found.flatMap(tenantsOf))).toEqual(new Set(['a', 'zz']))
})

it('continues where it stopped after it found nothing among 60,000 entries', async () => {
  const { open, app } = await setup()
  const store = await open()
  await fillRecords(app, { rows: 200, tenant: `'flood'`, atMs: 'seq' })
  await fillRecords(app, { rows: 60_000, tenant: `CONCAT('t', seq)`, atMs: LATER })
  await fillRecords(app, { rows: 1, tenant: `'zz'`, atMs: '500000' })
  const query = { operations: [OPERATION], limit: 10, withoutTenants: ['flood'] }
  let calls = 0
  while (calls < 3 && (await store.durable.phases.due(query)).length === 0) calls++
  expect(calls).toBe(1)
}, 60_000)

// The first operations of the tenant never ran and have expired: they wait for the reaper.
it('finds a due operation after more expired ones than a leap reads', async () => {
  const { open, app } = await setup()
  const store = await open()
  await fillRecords(app, { rows: 2000, tenant: `CONCAT('flood', seq % 3)`, atMs: 'seq' })
  const expired = { state: 'pending', attempt: 0, expiresAtMs: '500000' } as const
  await fillRecords(app, { rows: 70, tenant: `'quiet'`, atMs: '400000 + seq', ...expired })
  await fillRecords(app, { rows: 1, tenant: `'quiet'`, atMs: '500000' })
  const found = await store.durable.phases.due({ operations: [OPERATION], limit: 10 })
  expect(tenantsOf(found).filter((tenant) => tenant === 'quiet')).toEqual(['quiet'])
})

it.each([
  { tenants: 5, limit: 50 },
  { tenants: 20, limit: 10 },
  { tenants: 60, limit: 10 },
])('finds $limit operations of $tenants tenants with one statement', async ({ tenants, limit }) => {
  const { open, connect, app } = await setup()
  await open()
  const store = mysqlStore({ pool: telling(connect(), () => void sent++) })
  let sent = 0
  await fillRecords(app, { rows: 5000, tenant: `CONCAT('t', seq % ${tenants})`, atMs: 'seq' })
  const rounds = async (calls: number) => {
    const counts: number[] = []
    const served: string[] = []
    for (let call = 0; call < calls; call++) {
      sent = 0
      const due = await store.durable.phases.due({ operations: [OPERATION], limit })
      counts.push(sent)
      served.push(...tenantsOf(due))
      await take(app, due)
    }
    return { counts, turns: countBy(served) }
  }
  // The first calls find the tenants.
  await rounds(18)
  const { counts, turns } = await rounds(18)
  expect(new Set(counts)).toEqual(new Set([1]))
  expect(turns.size).toBe(tenants)
  expect(new Set(turns.values())).toEqual(new Set([(18 * limit) / tenants]))
})
