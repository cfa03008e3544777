import type { Pool, RowDataPacket } from 'mysql2/promise'
import { expect, it } from 'vitest'
import type { HeldMessage } from '../../../../src/core/store/durable-store.ts'
import { newToken } from '../../../../src/core/record/identity.ts'
import { mysqlStore, type MysqlStore } from '../../../../src/stores/mysql/index.ts'
import { runAs } from '../../../../src/stores/mysql/durable/phase-sql.ts'
import { OPERATION } from '../../../../src/testing/durable-cases/durable-case.ts'
import { releaseAll } from '../../../../src/testing/durable-cases/waiting-work.ts'
import { FakeClock } from '../../../../src/testing/fake-clock.ts'
import { addAll } from '../durable/setup.ts'
import { telling, useMariadb } from '../setup.ts'

const setup = useMariadb()

const isFull = process.env['ONCEKEY_TEST_FULL'] === '1'

/** Number of rows of one tenant that have been due for long. */
const ROWS = isFull ? [20_000, 1_000_000] : [20_000]

const PAY = runAs(OPERATION)

/** A third is pending, a third is failed_retryable, and a third is unknown. */
const FILL_RECORDS = `
  INSERT INTO oncekey_record (identity, record_id, tenant, operation, \`key\`, fingerprint, state,
    attempt, lapses, token, lease_until_ms, on_lapse, after_expiry, recovery_point,
    reconcile_at_ms, created_at_ms, last_run_at_ms, expires_at_ms, run_as, to_run, due_at_ms)
  SELECT UNHEX(MD5(seq)), UUID(), 'flood', 'o', seq, 'f',
    ELT(1 + seq % 3, 'pending', 'failed_retryable', 'unknown'), 1, 0, '', 0, 'resume', 'new',
    'started', 0, 0, 0, 9e12, ${PAY}, IF(seq % 3 = 2, 0, ${PAY}), 0
  FROM seq_1_to_{rows}`

const FILL_OPERATIONS = `
  INSERT IGNORE INTO oncekey_record_operation (record_id, name, version, input)
  SELECT record_id, 'pay', 1, 'x' FROM oncekey_record`

/** Every 20th message has its own partition, and the others have none. */
const FILL_MESSAGES = [
  `INSERT INTO oncekey_record_message (id, topic, lane, place, sequence, state, token, attempt,
    created_at_ms, added_at_us, due_at_ms, \`partition\`, tenant, errors, payload)
  SELECT UUID(), 'receipts', IF(seq % 20 = 0, CONCAT('/p', seq), ''), IF(seq % 20 = 0, 1, 0),
    seq % 20 = 0, 'ready', '', 0, 0, seq, 0, IF(seq % 20 = 0, CONCAT('p', seq), NULL), 'flood',
    '[]', 'x'
  FROM seq_1_to_{rows}`,
  `INSERT INTO oncekey_record_partition (topic, lane, sequence, is_open, tenant)
  SELECT topic, lane, 1, 1, tenant FROM oncekey_record_message WHERE lane <> ''`,
]

const TABLES = ['', '_operation', '_message', '_partition'].map((name) => `oncekey_record${name}`)

async function flood(app: Pool, rows: number): Promise<void> {
  // The optimizer keeps the statistics of the empty tables.
  for (const table of TABLES) {
    await app.query(`ALTER TABLE ${table} STATS_PERSISTENT = 1, STATS_AUTO_RECALC = 0`)
    await app.query(`ANALYZE TABLE ${table}`)
  }
  for (const sql of [FILL_RECORDS, FILL_OPERATIONS, ...FILL_MESSAGES]) {
    await app.query(sql.replaceAll('{rows}', `${rows}`))
  }
}

const claimOf = (more: object = {}) => ({
  topics: ['receipts'],
  limit: 3,
  leaseMs: 60_000,
  token: newToken(),
  ...more,
})

const tenantsOf = (messages: readonly HeldMessage[]) =>
  messages.map(({ tenant = 'none' }) => tenant).toSorted()

/** Adds work of other tenants that has become due later. */
async function addOthers(store: MysqlStore, app: Pool, clock: FakeClock): Promise<void> {
  await releaseAll({ store, clock } as never, [{ tenant: 'a' }, { tenant: 'z' }])
  await app.query(`UPDATE oncekey_record SET tenant = 'b' WHERE state = 'unknown' LIMIT 1`)
  const messages = ['a', 'z'].flatMap((tenant) => [{ tenant }, { tenant, partition: tenant }])
  await addAll(app, store, messages)
}

/** Counts the rows that the server reads on the only connection of a pool. */
async function rowsReadBy(pool: Pool, run: () => Promise<unknown>): Promise<number> {
  await pool.query('FLUSH STATUS')
  await run()
  const [rows] = await pool.query<RowDataPacket[]>(`SHOW SESSION STATUS LIKE 'Handler_read%'`)
  return rows.reduce((sum, row) => sum + Number(row['Value']), 0)
}

it.each(ROWS)(
  'reads a bounded number of rows beside %d of one tenant, and finds other tenants at once',
  { timeout: 600_000 },
  async (count) => {
    const { open, connect, app } = await setup()
    const clock = new FakeClock()
    const store = await open({ clock })
    await flood(app, count)
    clock.advance(1000)
    await addOthers(store, app, clock)
    const pool = connect({ connectionLimit: 1 })
    const sent = new Set<string>()
    const { phases, operator, outbox } = mysqlStore({
      pool: telling(pool, (sql) => sent.add(sql)),
      clock,
    }).durable
    const query = { operations: [OPERATION], limit: 3 }

    const looked = await rowsReadBy(pool, async () => {
      const due = await phases.due(query)
      expect(due.map(({ record }) => record.tenant).toSorted()).toEqual(['a', 'flood', 'z'])
    })
    expect(looked).toBeLessThan(300)
    const taken = await rowsReadBy(pool, async () => {
      const unknown = await operator.takeUnknown({ limit: 2, againMs: 5000 })
      expect(unknown.map(({ record }) => record.tenant).toSorted()).toEqual(['b', 'flood'])
    })
    expect(taken).toBeLessThan(300)
    const claimed = await rowsReadBy(pool, async () => {
      expect(tenantsOf(await outbox.claim(claimOf()))).toEqual(['a', 'flood', 'z'])
    })
    // The look reads 500 partitions, and the head of each.
    expect(claimed).toBeLessThan(5_000)
    // The next calls start where the first ones stopped, and leap with their first statement.
    const again = await rowsReadBy(pool, async () => {
      expect((await phases.due({ ...query, withoutTenants: ['flood'] })).length).toBe(2)
      expect((await operator.takeUnknown({ limit: 2, againMs: 5000 })).length).toBe(2)
      const rest = await outbox.claim(claimOf({ withoutTenants: ['flood'] }))
      expect(tenantsOf(rest)).toEqual(['a', 'z'])
    })
    expect(again).toBeLessThan(6_000)
    expect(await faultsOf(app, [...sent])).toEqual([])
  },
)

/** Steps of leaping statements that read the index by another access than a range. */
async function faultsOf(app: Pool, sent: readonly string[]): Promise<unknown[]> {
  const leaping = sent.filter((sql) => sql.includes('FORCE INDEX (turn)'))
  expect(leaping.length).toBeGreaterThan(4)
  const faults: unknown[] = []
  for (const sql of leaping) {
    const [steps] = await app.query<RowDataPacket[]>(`EXPLAIN ${sql}`)
    for (const step of steps) {
      const { key, type, Extra } = step as Record<string, string | null>
      const isLeap = type === 'range' || type === 'ref'
      if (key === 'turn' && (!isLeap || /filesort|temporary/.test(Extra!))) faults.push(step)
    }
  }
  return faults
}

it('needs one statement if all due work fits the limit, and at most two otherwise', async () => {
  const { open, connect, app } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  const sent: string[] = []
  const told = mysqlStore({ pool: telling(connect(), (sql) => void sent.push(sql)), clock })
  const { phases } = told.durable
  const statements = async (limit: number) => {
    sent.length = 0
    await phases.due({ operations: [OPERATION], limit })
    return sent.length
  }
  await releaseAll({ store, clock } as never, [{ tenant: 'a' }, { tenant: 'a' }, { tenant: 'a' }])
  expect(await statements(3)).toBe(1)
  for (let call = 0; call < 3; call++) await statements(2)
  expect(await statements(2)).toBe(1)
  await flood(app, 300)
  for (let call = 0; call < 5; call++) await statements(10)
  // Tenants whose work is not among the longest due may need a second statement.
  for (let call = 0; call < 5; call++) expect(await statements(10)).toBeLessThanOrEqual(2)
})

it('finds messages of an older node that writes no columns for turns', async () => {
  const { open, app } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  await flood(app, 300)
  clock.advance(1000)
  const old = (id: string) => `INSERT INTO oncekey_record_message (id, topic, lane, place, sequence,
      state, token, attempt, created_at_ms, added_at_us, due_at_ms, \`partition\`, errors, payload)
    VALUES ('${id}', 'receipts', `
  await app.query(`${old('00000000-0000-7000-8000-000000000001')} '', 1000, 0, 'ready', '', 0, 0,
    UNIX_TIMESTAMP() * 1e6, 1000, NULL, '[]', 'x')`)
  await app.query(`INSERT INTO oncekey_record_partition (topic, lane, sequence, is_open)
    VALUES ('receipts', '/old', 1, 1) ON DUPLICATE KEY UPDATE sequence = sequence + 1, is_open = 1`)
  await app.query(`${old('00000000-0000-7000-8000-000000000002')} '/old', 1, 1, 'ready', '', 0, 0,
    UNIX_TIMESTAMP() * 1e6, 1000, 'old', '[]', 'x')`)
  const { outbox } = store.durable
  const first = await outbox.claim(claimOf({ limit: 2 }))
  expect(tenantsOf(first)).toEqual(['flood', 'none'])
  const rest = await outbox.claim(claimOf({ withoutTenants: ['flood'] }))
  const ids = [...first, ...rest].filter(({ tenant }) => tenant === undefined).map(({ id }) => id)
  expect(ids.toSorted()).toEqual([1, 2].map((n) => `00000000-0000-7000-8000-00000000000${n}`))
})

// The first operation of the tenant never ran and has expired: it waits for the reaper.
it('finds an operation after one that no worker may take any more', async () => {
  const { open, app } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  await flood(app, 300)
  clock.advance(1000)
  const [left, taken] = await releaseAll({ store, clock } as never, [
    { tenant: 'a' },
    { tenant: 'a', afterMs: 1 },
  ])
  await app.query(`UPDATE oncekey_record SET state = 'pending', attempt = 0, expires_at_ms = 1000
    WHERE \`key\` = '${left}'`)
  clock.advance(1)
  const due = await store.durable.phases.due({ operations: [OPERATION], limit: 2 })
  const own = due.filter(({ record }) => record.tenant === 'a')
  expect(own.map(({ record }) => record.key)).toEqual([taken])
})

it('claims the only partition of a tenant at once beside 3,000 of another', async () => {
  const { open, app } = await setup()
  const store = await open()
  await app.query(`INSERT INTO oncekey_record_partition (topic, lane, sequence, is_open, tenant)
    SELECT 'receipts', CONCAT('/a', seq), 1, 1, 'flood' FROM seq_1_to_3000`)
  await app.query(`INSERT INTO oncekey_record_message (id, topic, lane, place, sequence, state,
      token, attempt, created_at_ms, added_at_us, due_at_ms, \`partition\`, tenant, errors, payload)
    SELECT UUID(), 'receipts', CONCAT('/a', seq), 1, 1, 'ready', '', 0, 0, seq, 0,
      CONCAT('a', seq), 'flood', '[]', 'x' FROM seq_1_to_3000`)
  const { outbox } = store.durable
  // The look has not reached the last partitions yet.
  expect((await outbox.claim(claimOf())).length).toBe(3)
  await addAll(app, store, [{ tenant: 'z', partition: 'z' }, { partition: 'zz' }])
  const taken = await outbox.claim(claimOf())
  expect(tenantsOf(taken)).toEqual(['flood', 'none', 'z'])
  const partitions = new Set<string>()
  for (let claims = 0; claims < 20; claims++) {
    for (const { partition } of await outbox.claim(claimOf())) partitions.add(partition!)
  }
  expect(partitions.size).toBe(60)
})

it('claims no message of a left-out tenant in place of one that another relay takes', async () => {
  const { open, app, connect } = await setup()
  const store = await open()
  const { outbox } = store.durable
  const tenants = ['a', 'a', 'b', 'b']
  const ids = await addAll(
    app,
    store,
    tenants.map((tenant) => ({ tenant })),
  )
  const other = await connect().getConnection()
  await other.beginTransaction()
  const lock = 'SELECT id FROM oncekey_record_message WHERE id = ? FOR UPDATE'
  await other.query(lock, [ids[2]])
  expect(tenantsOf(await outbox.claim(claimOf({ withoutTenants: ['a'] })))).toEqual(['b'])
  await other.rollback()
  other.release()
  expect(tenantsOf(await outbox.claim(claimOf({ withoutTenants: ['b'] })))).toEqual(['a', 'a'])
})

/** Number of deadlocks on the server. */
const DEADLOCKS = `SELECT variable_value FROM information_schema.global_status
  WHERE variable_name = 'INNODB_DEADLOCKS'`

it('gives each message of many tenants to one of four relays, without a deadlock', async () => {
  const { open, connect, column } = await setup()
  const store = await open()
  const app = connect()
  const deadlocks = await column(DEADLOCKS)
  const added: string[] = []
  for (let round = 0; round < 4; round++) {
    const messages = Array.from({ length: 100 }, (_, n) => ({
      tenant: n < 60 ? 'flood' : `t${n % 23}`,
      partition: n % 7 === 0 ? `p${n % 5}` : undefined,
    }))
    added.push(...(await addAll(app, store, messages)))
  }
  const relays = await Promise.all(
    Array.from({ length: 4 }, () => open({ pool: connect({ connectionLimit: 2 }) })),
  )
  const handled: string[] = []
  const relay = async ({ durable: { outbox } }: MysqlStore) => {
    while (handled.length < added.length) {
      const taken = await outbox.claim(claimOf({ limit: 9 }))
      handled.push(...taken.map(({ id }) => id))
      const settled = await outbox.settle(
        taken.map(({ id, token }) => ({ kind: 'done', id, token, providerId: undefined })),
      )
      expect(settled).not.toContain(false)
    }
  }
  await Promise.all(relays.map(relay))
  expect(handled.toSorted()).toEqual(added.toSorted())
  expect(await column(DEADLOCKS)).toEqual(deadlocks)
}, 60_000)
