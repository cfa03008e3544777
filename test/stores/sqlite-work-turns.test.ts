/** What SQLite does beyond the cases of all stores when it hands out work in turns. */
import { DatabaseSync, type StatementSync } from 'node:sqlite'
import { expect, it, onTestFinished } from 'vitest'
import { newToken } from '../../src/core/identity.ts'
import { TurnCursors } from '../../src/core/turns.ts'
import { DueTurns } from '../../src/stores/sqlite/due-turns.ts'
import { MessageTurns } from '../../src/stores/sqlite/message-turns.ts'
import { migrate, MIGRATIONS } from '../../src/stores/sqlite/migrations.ts'
import { forTable } from '../../src/stores/sqlite/sql.ts'
import type { Walked } from '../../src/stores/sqlite/turn-walk.ts'
import { UnknownTurns } from '../../src/stores/sqlite/unknown-turns.ts'
import { LEASE_MS } from '../../src/testing/store-cases/store-case.ts'
import { setup, setupFile } from './sqlite-setup.ts'

const PAY = { name: 'pay', version: 1 }
const NOW_MS = 1_000_000
const LIMIT = 10

interface Rows {
  readonly count: number
  /** In SQL, of the number `n` of a row. */
  readonly tenant: string
  readonly dueAtMs?: number
}

const numbers = (count: number) => `
  WITH RECURSIVE number (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM number LIMIT ${count})`

/** An identity and a record id, in order: random ones take long in indexes of a million. */
function uniqueIds(): string {
  const id = `printf('%08d%08d', ${insertions++}, n)`
  return `CAST(${id} AS BLOB), ${id}`
}

let insertions = 0

/** As nodes of every release write them. */
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

/** The same connection, and how often it was asked and how many rows it gave. */
function counting(db: DatabaseSync): { db: DatabaseSync; asked: () => [number, number] } {
  let statements = 0
  let rows = 0
  const counted = (statement: StatementSync) =>
    new Proxy(statement, {
      get:
        (target, name: 'get' | 'all') =>
        (...values: never[]) => {
          const found = target[name](...values)
          statements++
          rows += Array.isArray(found) ? found.length : Number(found !== undefined)
          return found
        },
    })
  const prepare = (sql: string) => counted(db.prepare(sql))
  return { db: { prepare } as unknown as DatabaseSync, asked: () => [statements, rows] }
}

interface Asked {
  readonly cursors?: TurnCursors
  readonly limit?: number
  readonly withoutTenants?: readonly string[]
}

/** Takes turns with one of the classes, and remembers where they stopped. */
const KINDS = {
  'operations that are due': {
    insert: (db: DatabaseSync, rows: Rows) =>
      insertRecords(db, 'failed_retryable', "'pay', 1", rows),
    take: (db: DatabaseSync, { cursors = new TurnCursors(), limit = LIMIT, ...rest }: Asked) => {
      const query = { operations: [PAY], limit, ...rest }
      return kept(new DueTurns(db, 'oncekey_record').walk(query, cursors, NOW_MS))
    },
  },
  'unknown records': {
    insert: (db: DatabaseSync, rows: Rows) => insertRecords(db, 'unknown', "'pay', 1", rows),
    take: (db: DatabaseSync, { cursors = new TurnCursors(), limit = LIMIT, ...rest }: Asked) => {
      const request = { againMs: 1000, limit, ...rest }
      return kept(new UnknownTurns(db, 'oncekey_record').walk(request, cursors, NOW_MS))
    },
  },
  messages: {
    insert: insertMessages,
    take: (db: DatabaseSync, { cursors = new TurnCursors(), limit = LIMIT, ...rest }: Asked) => {
      const claim = { topics: ['receipts'], limit, ...rest }
      return kept(new MessageTurns(db, 'oncekey_record').walk(claim, cursors, NOW_MS))
    },
  },
} as const

function kept({ keys, keep }: Walked): string[] {
  keep()
  return keys.map(({ tenant }) => tenant).toSorted()
}

const MANY = process.env['ONCEKEY_TEST_FULL'] === '1' ? 1_000_000 : 20_000

const times = (count: number, tenant: string) => Array.from({ length: count }, () => tenant)

it.each(Object.entries(KINDS))(
  'asks for %s as often where very many wait as where few do',
  { timeout: 120_000 },
  (_, { insert, take }) => {
    const costs = [100, MANY].map((count) => {
      const memory = openMemory()
      insert(memory, { count, tenant: "'a'" })
      insert(memory, { count: 3, tenant: "'b' || n", dueAtMs: 1 })
      insert(memory, { count: 100, tenant: "'later'", dueAtMs: 2 * NOW_MS })
      const { db, asked } = counting(memory)
      const cursors = new TurnCursors()
      expect(take(db, { cursors })).toEqual([...times(7, 'a'), 'b0', 'b1', 'b2'])
      expect(take(db, { cursors, withoutTenants: ['a'] })).toEqual(['b0', 'b1', 'b2'])
      expect(take(db, { cursors, withoutTenants: ['b0', 'b1', 'b2'] })).toEqual(times(LIMIT, 'a'))
      return asked()
    })
    expect(costs[1]).toEqual(costs[0])
    expect(costs[0]![0]).toBeLessThan(60)
  },
)

it.each(Object.entries(KINDS))(
  'asks a bounded number of times where very many tenants have %s',
  (_, { insert, take }) => {
    const costs = [1000, 5000].map((count) => {
      const memory = openMemory()
      insert(memory, { count, tenant: "'later-' || n", dueAtMs: 2 * NOW_MS })
      insert(memory, { count: 1, tenant: "'later-500'" })
      const { db, asked } = counting(memory)
      expect(take(db, {})).toEqual(['later-500'])
      return asked()
    })
    expect(costs[1]).toEqual(costs[0])
    expect(costs[0]![0]).toBeLessThan(100)
  },
)

it.each(Object.entries(KINDS))(
  'shares the places that are left among the tenants that have %s',
  (_, { insert, take }) => {
    const db = openMemory()
    insert(db, { count: 100, tenant: "'a'" })
    insert(db, { count: 100, tenant: "'b'", dueAtMs: 1 })
    expect(take(db, {})).toEqual([...times(5, 'a'), ...times(5, 'b')])
    insert(db, { count: 2, tenant: "'c'", dueAtMs: 2 })
    expect(take(db, {})).toEqual([...times(4, 'a'), ...times(4, 'b'), 'c', 'c'])
    // One that is left out leaves its places to the others, however long it waits.
    expect(take(db, { withoutTenants: ['a'] })).toEqual([...times(8, 'b'), 'c', 'c'])
    expect(take(db, { limit: 300, withoutTenants: ['a'] })).toHaveLength(102)
  },
)

it.each(Object.entries(KINDS))(
  'reaches each of very many tenants that have %s, whichever are there',
  (_, { insert, take }) => {
    const db = openMemory()
    insert(db, { count: 150, tenant: "'later-' || n", dueAtMs: 2 * NOW_MS })
    insert(db, { count: 150, tenant: "'t-' || n" })
    insert(db, { count: 1000, tenant: "'flood'", dueAtMs: 0 })
    const cursors = new TurnCursors()
    const reached = new Set<string>()
    // 301 tenants, of which one call goes through 64.
    for (let call = 0; call < 20; call++) {
      for (const tenant of take(db, { cursors })) reached.add(tenant)
    }
    expect(reached.size).toBe(151)
  },
)

const LATER_MS = 2 * NOW_MS

// 60 operations of 100 tenants each: a call goes through 1,000 of these 6,000.
it('reaches an operation behind more operations and tenants than one call examines', () => {
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
] as const)('finds %s behind %d tenants where a flood is left out', async (kind, count) => {
  const { store, app } = setup()
  const { insert } = KINDS[kind]
  const later = 9_000_000_000_000
  insert(app, { count: 500, tenant: "'flood'" })
  insert(app, { count, tenant: "'later-' || n", dueAtMs: later })
  insert(app, { count: 1, tenant: "'z'", dueAtMs: 1 })
  const { desk, phases } = store.durable
  const take = (...withoutTenants: string[]) =>
    kind === 'unknown records'
      ? desk.takeUnknown({ limit: LIMIT, withoutTenants, againMs: 1000 })
      : phases.due({ operations: [PAY], limit: LIMIT, withoutTenants })
  expect((await take('flood')).map(({ record }) => record.tenant)).toEqual(['z'])
  expect(await take('flood', 'z')).toEqual([])
})

it('asks a bounded number of times where a flood is left out and nothing else is due', () => {
  const memory = openMemory()
  insertRecords(memory, 'failed_retryable', "'pay', 1", { count: 500, tenant: "'flood'" })
  const later = { count: 5000, tenant: "'later-' || n", dueAtMs: LATER_MS }
  insertRecords(memory, 'failed_retryable', "'pay', 1", later)
  const { db, asked } = counting(memory)
  const cursors = new TurnCursors()
  const query = { operations: [PAY], limit: LIMIT, withoutTenants: ['flood'] }
  const walked = new DueTurns(db, 'oncekey_record').walk(query, cursors, NOW_MS)
  expect([walked.keys, walked.isCut]).toEqual([[], true])
  // 2,000 leaps; whether anything is due; the longest due.
  expect(asked()[0]).toBe(2002)
})

it('takes turns with what older nodes add, before the migration and after it', async () => {
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
  const { phases, desk, outbox } = open().durable
  addOldMessage()
  addOldRecords()
  const claim = { topics: ['receipts'], limit: LIMIT, leaseMs: LEASE_MS, token: newToken() }
  expect(await phases.due({ operations: [PAY], limit: LIMIT })).toHaveLength(2)
  expect(await desk.takeUnknown({ limit: LIMIT, againMs: 1000 })).toHaveLength(2)
  const held = await outbox.claim(claim)
  expect(held.map(({ tenant }) => tenant)).toEqual([undefined, undefined])
})

/** Calls until one gives something: a walk goes on where the one before has stopped. */
async function callsUntil(take: () => Promise<readonly unknown[]>): Promise<number> {
  for (let call = 1; call <= 10; call++) if ((await take()).length > 0) return call
  return Infinity
}

// A call goes through 64, and the longest due are all of a tenant that is left out.
it('comes to a tenant and an operation behind very many that wait for later', async () => {
  const { store, app } = setup()
  const { desk, outbox } = store.durable
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
  const taken = callsUntil(() => desk.takeUnknown({ ...without, againMs: 1000 }))
  expect(await taken).toBeLessThanOrEqual(4)
})

it('takes no write lock to learn that all that is due is left out', async () => {
  const { store, app } = setup()
  insertRecords(app, 'unknown', "'pay', 1", { count: 3, tenant: "'a'" })
  insertMessages(app, { count: 3, tenant: "'a'" })
  const { desk, outbox } = store.durable
  app.exec('BEGIN IMMEDIATE')
  const without = { limit: LIMIT, withoutTenants: ['a'] }
  expect(await desk.takeUnknown({ ...without, againMs: 1000 })).toEqual([])
  const claim = { topics: ['receipts'], leaseMs: LEASE_MS, token: newToken() }
  expect(await outbox.claim({ ...claim, ...without })).toEqual([])
  app.exec('ROLLBACK')
})
