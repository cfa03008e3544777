// Takes about 19 s.
import { createHash } from 'node:crypto'
import type mysql from 'mysql2/promise'
import { describe, expect, it } from 'vitest'
import { appliedMigrations, migrationRecord } from '../../src/stores/kit/migrations.ts'
import type { Store } from '../../src/core/store/store.ts'
import { MIGRATIONS as MYSQL } from '../../src/stores/mysql/migrations.ts'
import { migrationSql as mysqlMigrationSql, mysqlStore } from '../../src/stores/mysql/index.ts'
import { migrationSql, postgresStore } from '../../src/stores/postgres/index.ts'
import { indexSql } from '../../src/stores/postgres/schema/index-builds.ts'
import { MIGRATIONS as POSTGRES } from '../../src/stores/postgres/migrations.ts'
import { MIGRATIONS as SQLITE } from '../../src/stores/sqlite/migrations.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import { claim, finish, hold, LEASE_MS, ofKind } from '../../src/testing/store-cases/store-case.ts'
import { telling, useMariadb } from './mysql/setup.ts'
import { usePostgres } from './postgres/setup.ts'
import { setupFile } from './sqlite/setup.ts'

interface MigrationText {
  readonly runsFrom: number
  readonly text: string
}

const MIGRATIONS: Readonly<Record<string, readonly MigrationText[]>> = {
  postgres: POSTGRES.map(({ runsFrom, before = '', indexes = [], sql }) => {
    const built = indexes.map((index) => indexSql(index, 'CONCURRENTLY'))
    return { runsFrom, text: [before, ...built, sql].join('') }
  }),
  mysql: MYSQL.map(({ runsFrom, statements }) => ({ runsFrom, text: statements.join('\n') })),
  sqlite: SQLITE.map(({ runsFrom, sql }) => ({ runsFrom, text: sql })),
}

/** Databases were migrated with these texts. A new migration adds a line at the end. */
const PINNED: Readonly<Record<string, readonly string[]>> = {
  postgres: [
    '60a22f8453369097422ba4cab80d79b775b601089f1c9703196afafdf2835c27',
    'a5385e7bc6dffb4e01c44512c5486b9b7e34b00036a702570e82676152c82636',
    '5226528194734478b6b753e81512c1399d4398bba1b2561dadd24fa31cf8ac62',
    '20b6d4a6f2854cbc95e2dea0ffd4d3b64728dc3b628a49f0a80c5176839f5b7b',
  ],
  mysql: [
    '71b0dd96a29abd793fd85752a16a88d9db299f01a056fdfd9de0934cdda307c3',
    '6b37cae51111d0e1b5d4551ab3061a31d9da7b96a370434bf39593402a39d8fb',
    '15296ee80996111e111d9a5d29d9d4f883a8775b3c498b1a10664449ec65395e',
    '2f7bd48f24beb6cfaf3080cffac167001b22630238dea467f3904a2bf48f5650',
  ],
  sqlite: [
    '01bec1b1dcf0fdb09c9ad122f4530b7cb6933fdf1d714e7a6d3038b263cb2b75',
    '9dc6b0e57014677b96849ea07d240a2ce46ba4947eebbca3f503a93bfd010c81',
    '2a8468f727a0b6f2a5beabd48a1b665d02103da3d9cc1458efe5a2b9a5d343f5',
    '132e2eedc24b21e6e82e809778cb8b0150222b061f819624965b95129b3f1ad0',
  ],
}

describe.each(Object.keys(MIGRATIONS))('the migrations of %s', (store) => {
  const migrations = MIGRATIONS[store]!

  it('has not changed the text of a released migration', () => {
    const hashes = migrations.map(({ text }) => createHash('sha256').update(text).digest('hex'))
    expect(hashes).toEqual(PINNED[store])
  })

  it('never lowers runsFrom, and never sets it beyond the migration itself', () => {
    migrations.forEach(({ runsFrom }, index) => {
      expect(runsFrom).toBeGreaterThanOrEqual(migrations[index - 1]?.runsFrom ?? 1)
      expect(runsFrom).toBeLessThanOrEqual(index + 1)
    })
  })

  it('contains no statement that breaks older nodes or locks a table for long', () => {
    const later = migrations.slice(1).map(({ text }) => text)
    for (const text of later) {
      for (const forbidden of FORBIDDEN) expect(text).not.toMatch(forbidden)
      if (store !== 'sqlite') expect(text).not.toMatch(LOCKING_INDEX)
    }
    const created = migrations.flatMap(({ text }) => [...text.matchAll(/CREATE FUNCTION (\S+)/g)])
    const names = created.map(([, name]) => name)
    expect(names).toEqual([...new Set(names)])
  })
})

/** The rules are in `docs/internals/schema-changes.md`. */
const FORBIDDEN: readonly RegExp[] = [
  /CREATE OR REPLACE/i,
  /ADD VALUE/i,
  /RENAME/i,
  /ALTER TABLE[^;]*ADD COLUMN[^;]*NOT NULL/i,
  /ALTER TABLE[^;]*(ALTER COLUMN|MODIFY|CHANGE COLUMN)/i,
]

/** Not for SQLite, where every schema change locks the whole file. */
const LOCKING_INDEX = /CREATE (UNIQUE )?INDEX (?!CONCURRENTLY)/i

it('reads the applied migrations and the oldest compatible version from the table', () => {
  const judge = (numbers: number[], known: number) => {
    const [lowest, highest] = [Math.min(0, ...numbers), Math.max(0, ...numbers)]
    return appliedMigrations('"t"', { lowest, highest }, known)
  }
  expect(judge([], 3)).toBe(0)
  expect(judge([1], 3)).toBe(1)
  expect(judge([1, -2], 3)).toBe(2)
  // A newer version changed the tables, and this version can run beside it: nothing to do.
  expect(judge([1, -2, -3, -4], 3)).toBe(3)
  expect(judge([1, -2, -3, 2, -4], 2)).toBe(2)
  // A process crashed after it wrote the number that locks out older nodes, before the change.
  expect(judge([1, -2, 3], 3)).toBe(2)
  expect(() => judge([1, -2, -3, 2, -4], 1)).toThrow(
    'table "t" was changed by a newer version of oncekey and needs one that knows migration 2. ' +
      'This version knows 1: install the newer version again',
  )
  const three = [{ runsFrom: 1 }, { runsFrom: 1 }, { runsFrom: 2 }]
  expect([1, 2, 3].map((number) => migrationRecord(three, number))).toEqual([
    { before: undefined, after: 1 },
    { before: undefined, after: -2 },
    { before: 2, after: -3 },
  ])
})

/** The query of the first release, 002247e, at its start. That release starts if it returns 1. */
const FIRST_RELEASE = 'SELECT coalesce(max(number), 0) AS n FROM oncekey_record_migration'

const HOUR_MS = 3_600_000

/**
 * A node of an older version gives leases without a length, and takes over keys from nodes that
 * write the length. `giveUntil` changes only the ends of all leases, as such a node does.
 */
async function expectLeaseEndDecides(
  { store, clock }: { readonly store: Store; readonly clock: FakeClock },
  giveUntil: (untilMs: number) => unknown,
): Promise<void> {
  await hold(store)
  await giveUntil(clock.nowMs() + HOUR_MS)
  expect(ofKind(await claim(store), 'in_progress').leaseLeftMs).toBe(HOUR_MS)
  await store.sweep({ limit: 10 })
  clock.jumpWallTime(-HOUR_MS)
  expect(ofKind(await claim(store), 'in_progress').leaseLeftMs).toBe(2 * HOUR_MS)
  clock.jumpWallTime(HOUR_MS)
  await giveUntil(clock.nowMs() + LEASE_MS + 1)
  clock.advance(LEASE_MS)
  expect(ofKind(await claim(store), 'in_progress').leaseLeftMs).toBe(1)
  clock.advance(1)
  ofKind(await claim(store), 'unknown')
}

describe('on postgres', () => {
  const setup = usePostgres()

  it('starts on tables of a newer compatible version without changing them', async () => {
    const { open, app, column } = await setup()
    await finish(await open())
    await app.query('INSERT INTO oncekey_record_migration VALUES (-99)')
    const store = await open()
    ofKind(await claim(store), 'completed')
    expect(await column('SELECT min(number) FROM oncekey_record_migration')).toEqual([-99])
  })

  it('lets the first release start on the tables of this release', async () => {
    const { open, column } = await setup()
    await open()
    expect(await column(FIRST_RELEASE)).toEqual([1])
  })

  it('uses only the end of a lease that an older node gave', async () => {
    const { open, app } = await setup()
    const clock = new FakeClock()
    await expectLeaseEndDecides({ store: await open({ clock }), clock }, (untilMs) =>
      app.query('UPDATE oncekey_record SET lease_until = to_timestamp($1::float8 / 1000)', [
        untilMs,
      ]),
    )
  })

  it('lets claims of older nodes pass while a change waits for an open transaction', async () => {
    const { app, connect, column } = await setup()
    await app.query(firstOf(migrationSql()))
    const other = await connect().connect()
    await other.query('BEGIN; SELECT count(*) FROM oncekey_record')
    const migrated = postgresStore({ pool: connect() }).migrate()
    const isWaiting = `SELECT count(*)::int FROM pg_locks WHERE NOT granted
      AND mode = 'AccessExclusiveLock' AND relation = 'oncekey_record'::regclass`
    for (const key of ['a', 'b', 'c']) {
      await expect.poll(() => column(isWaiting), { timeout: 20_000 }).toEqual([1])
      const [how] = await column(OLD_CLAIM, [key])
      expect(how).toContain('all_new')
    }
    // The open transaction has read the table, so its statements pass before the change.
    await expect.poll(() => column(isWaiting), { timeout: 20_000 }).toEqual([1])
    await other.query('UPDATE oncekey_record SET watched = true')
    await other.query('COMMIT')
    other.release()
    await migrated
    const lowest = await column('SELECT min(number) FROM oncekey_record_migration')
    expect(lowest).toEqual([-POSTGRES.length])
    expect((await column(OLD_CLAIM, ['d']))[0]).toContain('all_new')
  })
})

/** The statement of a node of the first release for a first request. */
const OLD_CLAIM = `SELECT oncekey_record_claim_one(NULL, false, 'hold',
  decode(md5($1::text), 'hex'), gen_random_uuid(), 't', 'o', $1::text, 'f', 'token', 1000, 2000,
  'unknown', 5, 'new')`

/** The script of the first migration alone, which creates the tables of the first release. */
function firstOf(script: string): string {
  const end = 'VALUES (1);'
  return `${script.slice(0, script.indexOf(end) + end.length)} COMMIT;`
}

describe('on mariadb', () => {
  const setup = useMariadb()

  it('starts on tables of a newer compatible version without changing them', async () => {
    const { open, app, column } = await setup()
    await finish(await open())
    await app.query('INSERT INTO oncekey_record_migration (number) VALUES (-99)')
    const store = await open()
    ofKind(await claim(store), 'completed')
    expect(await column('SELECT MIN(number) FROM oncekey_record_migration')).toEqual([-99])
  })

  it('lets the first release start on the tables of this release', async () => {
    const { open, column } = await setup()
    await open()
    expect((await column(FIRST_RELEASE)).map(Number)).toEqual([1])
  })

  it('uses only the end of a lease that an older node gave', async () => {
    const { open, app } = await setup()
    const clock = new FakeClock()
    await expectLeaseEndDecides({ store: await open({ clock }), clock }, (untilMs) =>
      app.query(`UPDATE oncekey_record SET lease_until_ms = ${untilMs}, due_at_ms = ${untilMs}`),
    )
  })

  it('lets claims of older nodes pass while a change waits for an open transaction', async () => {
    const { app, connect, column } = await setup()
    await migrateByTheFirstRelease(connect({ multipleStatements: true }))
    const other = await connect().getConnection()
    await other.query('BEGIN')
    await other.query('SELECT COUNT(*) FROM oncekey_record')
    const migrated = mysqlStore({ pool: connect() }).migrate()
    for (const id of ['a', 'b', 'c']) {
      await expect.poll(() => column(WAITING_CHANGES), { timeout: 20_000 }).toEqual([1])
      await app.query(oldClaim(id))
    }
    await other.query('COMMIT')
    other.release()
    await migrated
    const lowest = await column('SELECT MIN(number) FROM oncekey_record_migration')
    expect(lowest).toEqual([-MYSQL.length])
    await app.query(oldClaim('d'))
    expect(await column('SELECT COUNT(*) FROM oncekey_record')).toEqual([4])
  })

  // A transaction reads the row of its key, works, and writes the row. The change comes between.
  it('rolls back no transaction that was open at the first try of the change', async () => {
    const { app, connect, column } = await setup()
    await migrateByTheFirstRelease(connect({ multipleStatements: true }))
    await app.query(oldClaim('a'))
    const other = await connect().getConnection()
    await other.query('BEGIN')
    await other.query('SELECT state FROM oncekey_record')
    let changes = 0
    const pool = telling(connect(), (sql) => void (changes += Number(sql.startsWith('ALTER'))))
    const migrated = mysqlStore({ pool }).migrate()
    // If the change does not wait for the transaction, the migration tries it again.
    const isTried = async () => changes >= 10 || (await column(WAITING_CHANGES))[0] === 1
    await expect.poll(isTried, { timeout: 20_000 }).toBe(true)
    await other.query(`UPDATE oncekey_record SET state = 'completed'`)
    await other.query('COMMIT')
    other.release()
    await migrated
    expect(await column('SELECT state FROM oncekey_record')).toEqual(['completed'])
  })
})

const WAITING_CHANGES = `SELECT COUNT(*) FROM information_schema.processlist
  WHERE db = DATABASE() AND state LIKE 'Waiting for table metadata lock%'`

async function migrateByTheFirstRelease(pool: mysql.Pool): Promise<void> {
  const end = 'VALUES (1);'
  const sql = mysqlMigrationSql()
  await pool.query(sql.slice(0, sql.indexOf(end) + end.length))
}

/** The columns that a node of the first release writes for a first request. */
const oldClaim = (id: string) => `INSERT INTO oncekey_record (
  identity, record_id, tenant, operation, \`key\`, fingerprint, state, attempt, lapses, token,
  lease_until_ms, on_lapse, after_expiry, tries, created_at_ms, last_run_at_ms, expires_at_ms,
  due_at_ms) VALUES (
  UNHEX(MD5('${id}')), UUID(), 't', 'o', '${id}', 'f', 'in_progress', 1, 0, 'token',
  1000, 'unknown', 'new', 0, 0, 0, 2000, 1000)`

describe('on sqlite', () => {
  it('starts on tables of a newer compatible version without changing them', async () => {
    const { open, connect } = setupFile()
    await finish(open())
    const db = connect()
    db.exec('INSERT INTO oncekey_record_migration VALUES (-99, 0)')
    ofKind(await claim(open()), 'completed')
    const lowest = db.prepare('SELECT min(number) AS n FROM oncekey_record_migration')
    expect(lowest.get()).toEqual({ n: -99 })
  })

  it('lets the first release start on the tables of this release', () => {
    const { open, connect } = setupFile()
    open()
    expect(connect().prepare(FIRST_RELEASE).get()).toEqual({ n: 1 })
  })

  it('uses only the end of a lease that an older node gave', async () => {
    const { open, clock, connect } = setupFile()
    const db = connect()
    await expectLeaseEndDecides({ store: open(), clock }, (untilMs) =>
      db.exec(`UPDATE oncekey_record SET lease_until_ms = ${untilMs}`),
    )
  })
})
