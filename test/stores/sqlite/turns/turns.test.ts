/** Due work in turns: behaviour of SQLite beyond the cases that all stores share. */
import { DatabaseSync, type StatementSync } from 'node:sqlite'
import { expect, it, onTestFinished } from 'vitest'
import { newToken } from '../../../../src/core/record/identity.ts'
import { TurnCursors } from '../../../../src/stores/kit/turns.ts'
import { DueTurns } from '../../../../src/stores/sqlite/turns/due.ts'
import { MessageTurns } from '../../../../src/stores/sqlite/turns/messages.ts'
import { migrate, MIGRATIONS } from '../../../../src/stores/sqlite/migrations.ts'
import { forTable } from '../../../../src/stores/sqlite/sql.ts'
import type { WalkResult } from '../../../../src/stores/sqlite/turns/walk.ts'
import { UnknownTurns } from '../../../../src/stores/sqlite/turns/unknown.ts'
import { LEASE_MS } from '../../../../src/testing/store-cases/store-case.ts'
import { setup, setupFile } from '../setup.ts'

const PAY = { name: 'pay', version: 1 }
const NOW_MS = 1_000_000
const LIMIT = 10

interface Rows {
  readonly count: number
  /** An SQL expression of the row number `n`. */
  readonly tenant: string
  readonly dueAtMs?: number
}

const numbers = (count: number) => `
  WITH RECURSIVE number (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM number LIMIT ${count})`

/** An identity and a record id, ascending: random ones are slow in indexes of a million rows. */
function uniqueIds(): string {
  const id = `printf('%08d%08d', ${insertions++}, n)`
  return `CAST(${id} AS BLOB), ${id}`
}

let insertions = 0

/** Writes the columns that nodes of every release write. */
function insertRecords(db: DatabaseSync, state: string, run: string, rows: Rows): void {
  const { count, tenant, dueAtMs = 0 } = rows
  db.exec(`INSERT INTO oncekey_record (identity, record_id, tenant, operation, key, fingerprint,
      state, attempt, lapses, token, lease_until_ms, on_lapse, after_expiry, reconcile_at_ms, tries,
      created_at_ms, last_run_at_ms, expires_at_ms, run_name, run_version)
    ${numbers(count)} SELECT ${uniqueIds()}, ${tenant}, 'POST /x', n, 'f',
      '${state}', 1, 0, 't', 0, 'resume', 'new', ${dueAtMs}, 0, 0, 0, 9000000000000, ${run}
    FROM number`)
}

function insertMessages(db: DatabaseSync, { count, tenant, dueAtMs = 0 }: Rows): void {
  db.exec(`INSERT INTO oncekey_record_message (id, topic, is_head, state, attempt, due_at_ms,
      created_at_ms, errors, payload, tenant)
    ${numbers(count)} SELECT hex(randomblob(16)), 'receipts', 1, 'ready', 0, ${dueAtMs}, 0, '[]',
      x'00', ${tenant} FROM number`)
}

function openMemory(): DatabaseSync {
  const db = new DatabaseSync(':memory:')
  onTestFinished(() => db.close())
  migrate(db, 'oncekey_record', 0)
  return db
}

/** The same connection, with counts of its statements and of the rows they returned. */
function counting(db: DatabaseSync): { db: DatabaseSync; counts: () => [number, number] } {
  let statements = 0
  let rows = 0
  const counted = (statement: StatementSync) =>
    new Proxy(statement, {
      get:
        (target, name: 'get' | 'all') =>
        (...values: never[]) => {
          const result = target[name](...values)
          statements++
          rows += Array.isArray(result) ? result.length : Number(result !== undefined)
          return result
        },
    })
  const prepare = (sql: string) => counted(db.prepare(sql))
  return { db: { prepare } as unknown as DatabaseSync, counts: () => [statements, rows] }
}

interface TakeOptions {
  readonly cursors?: TurnCursors
  readonly limit?: number
  readonly withoutTenants?: readonly string[]
}

/** Takes turns with one of the classes, and saves where the walk stopped. */
const KINDS = {
  'operations that are due': {
    insert: (db: DatabaseSync, rows: Rows) =>
      insertRecords(db, 'failed_retryable', "'pay', 1", rows),
    take: (
      db: DatabaseSync,
      { cursors = new TurnCursors(), limit = LIMIT, ...rest }: TakeOptions,
    ) => {
      const query = { operations: [PAY], limit, ...rest }
      return tenantsOf(new DueTurns(db, 'oncekey_record').walk(query, cursors, NOW_MS))
    },
  },
  'unknown records': {
    insert: (db: DatabaseSync, rows: Rows) => insertRecords(db, 'unknown', "'pay', 1", rows),
    take: (
      db: DatabaseSync,
      { cursors = new TurnCursors(), limit = LIMIT, ...rest }: TakeOptions,
    ) => {
      const request = { againMs: 1000, limit, ...rest }
      return tenantsOf(new UnknownTurns(db, 'oncekey_record').walk(request, cursors, NOW_MS))
    },
  },
  messages: {
    insert: insertMessages,
    take: (
      db: DatabaseSync,
      { cursors = new TurnCursors(), limit = LIMIT, ...rest }: TakeOptions,
    ) => {
      const claim = { topics: ['receipts'], limit, ...rest }
      return tenantsOf(new MessageTurns(db, 'oncekey_record').walk(claim, cursors, NOW_MS))
    },
  },
} as const

function tenantsOf({ keys, saveCursors }: WalkResult): string[] {
  saveCursors()
  return keys.map(({ tenant }) => tenant).toSorted()
}

const MANY = process.env['ONCEKEY_TEST_FULL'] === '1' ? 1_000_000 : 20_000

const times = (count: number, tenant: string) => Array.from({ length: count }, () => tenant)

it.each(Object.entries(KINDS))(
  'runs as many statements for %s with a large backlog as with a small one',
  { timeout: 120_000 },
  (_, { insert, take }) => {
    const costs = [100, MANY].map((count) => {
      const memory = openMemory()
      insert(memory, { count, tenant: "'a'" })
      insert(memory, { count: 3, tenant: "'b' || n", dueAtMs: 1 })
      insert(memory, { count: 100, tenant: "'later'", dueAtMs: 2 * NOW_MS })
      const { db, counts } = counting(memory)
      const cursors = new TurnCursors()
      expect(take(db, { cursors })).toEqual([...times(7, 'a'), 'b0', 'b1', 'b2'])
      expect(take(db, { cursors, withoutTenants: ['a'] })).toEqual(['b0', 'b1', 'b2'])
      expect(take(db, { cursors, withoutTenants: ['b0', 'b1', 'b2'] })).toEqual(times(LIMIT, 'a'))
      return counts()
    })
    expect(costs[1]).toEqual(costs[0])
    expect(costs[0]![0]).toBeLessThan(60)
  },
)

it.each(Object.entries(KINDS))(
  'runs a bounded number of statements if very many tenants have %s',
  (_, { insert, take }) => {
    const costs = [1000, 5000].map((count) => {
      const memory = openMemory()
      insert(memory, { count, tenant: "'later-' || n", dueAtMs: 2 * NOW_MS })
      insert(memory, { count: 1, tenant: "'later-500'" })
      const { db, counts } = counting(memory)
      expect(take(db, {})).toEqual(['later-500'])
      return counts()
    })
    expect(costs[1]).toEqual(costs[0])
    expect(costs[0]![0]).toBeLessThan(100)
  },
)

it.each(Object.entries(KINDS))(
  'shares the remaining places among the tenants that have %s',
  (_, { insert, take }) => {
    const db = openMemory()
    insert(db, { count: 100, tenant: "'a'" })
    insert(db, { count: 100, tenant: "'b'", dueAtMs: 1 })
    expect(take(db, {})).toEqual([...times(5, 'a'), ...times(5, 'b')])
    insert(db, { count: 2, tenant: "'c'", dueAtMs: 2 })
    expect(take(db, {})).toEqual([...times(4, 'a'), ...times(4, 'b'), 'c', 'c'])
    // An excluded tenant leaves its places to the others, even if its work is due longest.
    expect(take(db, { withoutTenants: ['a'] })).toEqual([...times(8, 'b'), 'c', 'c'])
    expect(take(db, { limit: 300, withoutTenants: ['a'] })).toHaveLength(102)
  },
)

it.each(Object.entries(KINDS))(
  'reaches each of very many tenants that have %s',
  (_, { insert, take }) => {
    const db = openMemory()
    insert(db, { count: 150, tenant: "'later-' || n", dueAtMs: 2 * NOW_MS })
    insert(db, { count: 150, tenant: "'t-' || n" })
    insert(db, { count: 1000, tenant: "'flood'", dueAtMs: 0 })
    const cursors = new TurnCursors()
    const reached = new Set<string>()
    // One call visits 64 of the 301 tenants.
    for (let call = 0; call < 20; call++) {
      for (const tenant of take(db, { cursors })) reached.add(tenant)
    }
    expect(reached.size).toBe(151)
  },
)

const LATER_MS = 2 * NOW_MS

// 60 operations with 100 tenants each: one call visits 1,000 of these 6,000.
it('reaches an operation behind more operations and tenants than one call visits', () => {
  const db = openMemory()
  const run = "printf('later-%02d', n % 60), 1"
  insertRecords(db, 'unknown', "'flood', 1", { count: 3000, tenant: "'flood'" })
  insertRecords(db, 'unknown', run, { count: 6000, tenant: "'t-' || n", dueAtMs: LATER_MS })
  insertRecords(db, 'unknown', "'later-30', 1", { count: 1, tenant: "'t-'", dueAtMs: 1 })
  const cursors = new TurnCursors()
  const take = () => KINDS['unknown records'].take(db, { cursors })
  const calls = Array.from({ length: 8 }, take)
  expect(calls.flat().filter((tenant) => tenant === 't-')).toHaveLength(1)
})

it.each([
  ['operations that are due', 3_500],
  ['unknown records', 3_500],
] as const)(
  'finds %s behind %d tenants when a tenant with many due rows is excluded',
  async (kind, count) => {
    const { store, app } = setup()
    const { insert } = KINDS[kind]
    const later = 9_000_000_000_000
    insert(app, { count: 500, tenant: "'flood'" })
    insert(app, { count, tenant: "'later-' || n", dueAtMs: later })
    insert(app, { count: 1, tenant: "'z'", dueAtMs: 1 })
    const { operator, phases } = store.durable
    const take = (...withoutTenants: string[]) =>
      kind === 'unknown records'
        ? operator.takeUnknown({ limit: LIMIT, withoutTenants, againMs: 1000 })
        : phases.due({ operations: [PAY], limit: LIMIT, withoutTenants })
    expect((await take('flood')).map(({ record }) => record.tenant)).toEqual(['z'])
    expect(await take('flood', 'z')).toEqual([])
  },
)

it('runs a bounded number of statements if all due work belongs to an excluded tenant', () => {
  const memory = openMemory()
  insertRecords(memory, 'failed_retryable', "'pay', 1", { count: 500, tenant: "'flood'" })
  const later = { count: 5000, tenant: "'later-' || n", dueAtMs: LATER_MS }
  insertRecords(memory, 'failed_retryable', "'pay', 1", later)
  const { db, counts } = counting(memory)
  const cursors = new TurnCursors()
  const query = { operations: [PAY], limit: LIMIT, withoutTenants: ['flood'] }
  const result = new DueTurns(db, 'oncekey_record').walk(query, cursors, NOW_MS)
  expect([result.keys, result.isCut]).toEqual([[], true])
  // 2,000 leaps, one statement for whether work is due, and one for the longest due.
  expect(counts()[0]).toBe(2002)
})

it('takes turns with rows of older nodes, written before or after the migration', async () => {
  const { connect, open } = setupFile()
  const db = connect()
  const [first, second] = MIGRATIONS
  db.exec(forTable('oncekey_record', first!.sql + second!.sql))
  db.exec(`CREATE TABLE oncekey_record_migration (number INTEGER PRIMARY KEY, applied_at_ms INTEGER
    NOT NULL) STRICT; INSERT INTO oncekey_record_migration VALUES (1, 0), (-2, 0)`)
  const addOldMessage = () =>
    db.exec(`INSERT INTO oncekey_record_message (id, topic, is_head, state, attempt, due_at_ms,
      created_at_ms, errors, payload)
      VALUES (hex(randomblob(16)), 'receipts', 1, 'ready', 0, 0, 0, '[]', x'00')`)
  const addOldRecords = () => {
    insertRecords(db, 'failed_retryable', "'pay', 1", { count: 1, tenant: "'a'" })
    insertRecords(db, 'unknown', 'NULL, NULL', { count: 1, tenant: "'a'" })
  }
  addOldMessage()
  addOldRecords()
  const { phases, operator, outbox } = open().durable
  addOldMessage()
  addOldRecords()
  const claim = { topics: ['receipts'], limit: LIMIT, leaseMs: LEASE_MS, token: newToken() }
  expect(await phases.due({ operations: [PAY], limit: LIMIT })).toHaveLength(2)
  expect(await operator.takeUnknown({ limit: LIMIT, againMs: 1000 })).toHaveLength(2)
  const held = await outbox.claim(claim)
  expect(held.map(({ tenant }) => tenant)).toEqual([undefined, undefined])
})

/** Calls until one returns work: a walk continues where the walk before it stopped. */
async function callsUntil(take: () => Promise<readonly unknown[]>): Promise<number> {
  for (let call = 1; call <= 10; call++) if ((await take()).length > 0) return call
  return Infinity
}

// One call visits 64 tenants, and the longest due rows all belong to an excluded tenant.
it('reaches a tenant and an operation behind very many that are not due yet', async () => {
  const { store, app } = setup()
  const { operator, outbox } = store.durable
  const flood = { count: 500, tenant: "'flood'" }
  const later = { count: 200, dueAtMs: 9_000_000_000_000 }
  insertMessages(app, flood)
  insertMessages(app, { ...later, tenant: "'later-' || n" })
  insertMessages(app, { count: 1, tenant: "'z'", dueAtMs: 1 })
  insertRecords(app, 'unknown', "'a', 1", flood)
  insertRecords(app, 'unknown', "'later-' || n, 1", { ...later, tenant: "'b'" })
  insertRecords(app, 'unknown', "'z', 1", { count: 1, tenant: "'b'", dueAtMs: 1 })
  const without = { limit: LIMIT, withoutTenants: ['flood'] }
  const claim = { topics: ['receipts'], leaseMs: LEASE_MS, ...without }
  const claimed = callsUntil(() => outbox.claim({ ...claim, token: newToken() }))
  expect(await claimed).toBeLessThanOrEqual(4)
  const taken = callsUntil(() => operator.takeUnknown({ ...without, againMs: 1000 }))
  expect(await taken).toBeLessThanOrEqual(4)
})

it('takes no write lock if all due work is excluded', async () => {
  const { store, app } = setup()
  insertRecords(app, 'unknown', "'pay', 1", { count: 3, tenant: "'a'" })
  insertMessages(app, { count: 3, tenant: "'a'" })
  const { operator, outbox } = store.durable
  app.exec('BEGIN IMMEDIATE')
  const without = { limit: LIMIT, withoutTenants: ['a'] }
  expect(await operator.takeUnknown({ ...without, againMs: 1000 })).toEqual([])
  const claim = { topics: ['receipts'], leaseMs: LEASE_MS, token: newToken() }
  expect(await outbox.claim({ ...claim, ...without })).toEqual([])
  app.exec('ROLLBACK')
})
