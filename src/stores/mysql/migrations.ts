/**
 * Creates the tables and changes them for newer versions, under a lock of the server.
 *
 * Tests: test/stores/mysql/migrations.server.test.ts, test/stores/mysql/store.server.test.ts,
 * test/stores/sql-schema-changes.server.test.ts.
 */
import { InvalidOptionsError } from '../../core/errors.ts'
import { sleep, systemClock, type Clock } from '../../core/time/clock.ts'
import { appliedMigrations, migrationRecord, type Migration } from '../kit/migrations.ts'
import { writeAlone, type Driver, type Session } from './driver/driver.ts'
import {
  ADD_TURN_INDEX,
  DISCARDED_TABLE,
  DROP_TURN_INDEX,
  DURABLE_TABLES,
  ENGINE,
  TEXT,
  TURN_STATEMENTS,
  WORD,
} from './durable/tables.ts'
import { isAlreadyChanged, isLockTimeout, isNotMigrated } from './failures.ts'
import { resolveTables, type TableOptions } from './options.ts'
import { ROLLBACK, type Tables } from './sql.ts'

const COLUMNS = `
  identity BINARY(16) NOT NULL,
  record_id CHAR(36) ${WORD} NOT NULL,
  attempt INT NOT NULL,
  lapses INT NOT NULL,
  lease_until_ms BIGINT NOT NULL,
  created_at_ms BIGINT NOT NULL,
  last_run_at_ms BIGINT NOT NULL,
  completed_at_ms BIGINT,
  expires_at_ms BIGINT NOT NULL,
  reconcile_at_ms BIGINT,
  tries INT NOT NULL DEFAULT 0,
  on_lapse VARCHAR(16) ${WORD} NOT NULL,
  after_expiry VARCHAR(16) ${WORD} NOT NULL,
  proof VARCHAR(16) ${WORD},
  fingerprint VARCHAR(255) ${TEXT} NOT NULL,
  tenant VARCHAR(255) ${TEXT} NOT NULL,
  operation VARCHAR(1024) ${TEXT} NOT NULL,
  \`key\` VARCHAR(1024) ${TEXT} NOT NULL,
  error_code MEDIUMTEXT ${TEXT},
  recovery_point MEDIUMTEXT ${TEXT},
  result LONGBLOB,`

const addSeedTo = (table: string) => `
ALTER TABLE ${table} ADD COLUMN /*M! IF NOT EXISTS */ id_seed VARBINARY(32),
  ADD COLUMN /*M! IF NOT EXISTS */ refuse_for_ms BIGINT, ALGORITHM = INSTANT`

interface MysqlMigration extends Migration {
  readonly statements: readonly string[]
}

/**
 * Applied in this order, each once. Each migration can be repeated, because MySQL commits every
 * statement that creates a table, and a process may crash between two statements. Never edit a
 * released migration: append another one by the rules of `docs/internals/schema-changes.md`.
 *
 * Every index costs a write with each claim and each completion, and none can be partial. So one
 * index serves the sweep, the reaper, workers, reconcilers and the lists: `due_at_ms` is the time
 * that matters in the state of the record. `to_run` separates operations that wait for a worker
 * from records that wait for their expiry, and from operations for other workers; and expired
 * records that are kept for a time from those that are kept for ever. The time of the
 * last run is in the index for the lists. `run_as` is the value that `to_run` gets while the record
 * waits for a worker: a number made from the name and the version of its operation.
 *
 * The token is binary, because the database compares it and its text collations ignore trailing
 * spaces.
 */
export const MIGRATIONS: readonly MysqlMigration[] = [
  {
    runsFrom: 1,
    statements: [
      `
CREATE TABLE IF NOT EXISTS {record} (${COLUMNS}
  state VARCHAR(16) ${WORD} NOT NULL,
  token VARBINARY(32) NOT NULL,
  run_as INT UNSIGNED NOT NULL DEFAULT 0,
  to_run INT UNSIGNED NOT NULL DEFAULT 0,
  due_at_ms BIGINT NOT NULL,
  PRIMARY KEY (identity),
  UNIQUE KEY record_id (record_id),
  KEY due (state, to_run, due_at_ms, last_run_at_ms),
  CHECK (state IN
    ('pending', 'in_progress', 'completed', 'failed_retryable', 'unknown', 'expired')),
  CHECK (on_lapse IN ('unknown', 'rerun', 'resume')),
  CHECK (after_expiry IN ('new', 'refuse')),
  CHECK (proof IN ('proven', 'declared'))
) ${ENGINE}`,
      `
CREATE TABLE IF NOT EXISTS {history} (${COLUMNS}
  number BIGINT NOT NULL AUTO_INCREMENT,
  PRIMARY KEY (number),
  KEY identity (identity),
  KEY record_id (record_id)
) ${ENGINE}`,
      ...DURABLE_TABLES,
    ],
  },
  {
    runsFrom: 1,
    statements: [
      `
ALTER TABLE {record} ADD COLUMN /*M! IF NOT EXISTS */ lease_ms BIGINT,
  ADD COLUMN /*M! IF NOT EXISTS */ lease_from_ms BIGINT, ALGORITHM = INSTANT`,
    ],
  },
  { runsFrom: 1, statements: TURN_STATEMENTS },
  {
    runsFrom: 1,
    statements: [
      DISCARDED_TABLE,
      addSeedTo('{history}'),
      DROP_TURN_INDEX,
      addSeedTo('{record}'),
      ADD_TURN_INDEX,
    ],
  },
]

const MIGRATION_TABLE = `
CREATE TABLE IF NOT EXISTS {migration} (
  number INT NOT NULL PRIMARY KEY,
  applied_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
) ${ENGINE}`

/** IGNORE, because a process may have crashed right after this statement. */
const RECORD_MIGRATION = `INSERT IGNORE INTO {migration} (number) VALUES ({number})`

/**
 * The same name for the same tables, from a connection to any database. A hash, because lock names
 * are limited to 64 characters.
 */
const LOCK_NAME = `SHA1(CONCAT('oncekey ', {database}, ' ', '{record}'))`

/**
 * While a table change waits for its lock, every claim waits behind it, and a transaction that has
 * read the table and then writes to it is rolled back as a deadlock. So the change does not wait at
 * first, and tries to run between two transactions. MySQL waits for at least one second.
 */
const QUICK_WAIT = 'SET SESSION lock_wait_timeout = 1 /*M! - 1 */'
const QUICK_TRIES = 200
const QUICK_PAUSE_MS = 25

/**
 * An index build needs the lock again at its end, and starts over if it does not get it. So the
 * index of a large table is not tried for long without waiting.
 */
const QUICK_MS = 5_000

/**
 * If transactions follow each other without a gap, the change has to wait. It stops waiting soon,
 * lets other transactions run, and tries again.
 */
const LONG_WAIT = 'SET SESSION lock_wait_timeout = 1'
const LONG_TRIES = 15
const LONG_PAUSE_MS = 1_000

export interface MigrationSqlOptions extends TableOptions {
  /** Number of the last migration that is applied already. @default 0 */
  after?: number
}

/**
 * Returns the migrations as one script, for use with another migration tool. The database must
 * exist. `store.migrate()` runs the same statements, so each of them can continue after the other.
 */
export function migrationSql({ after = 0, ...names }: MigrationSqlOptions = {}): string {
  const tables = resolveTables('migrationSql', names)
  if (!Number.isInteger(after) || after < 0 || after > MIGRATIONS.length) {
    throw new InvalidOptionsError(
      `migrationSql: after must be a whole number from 0 to ${MIGRATIONS.length}`,
    )
  }
  const parts = MIGRATIONS.slice(after).flatMap((_, index) => migration(after + index + 1))
  return [MIGRATION_TABLE, ...parts].map((sql) => `${forTables(tables, sql)};\n`).join('')
}

/**
 * Brings the tables up to date. Safe from many processes at once: the first gets the lock, and the
 * others find the work done. If there is nothing to do, the call only reads, so that a user without
 * the right to create tables can make it. Tables that a newer version has changed are not touched,
 * and rejected only if that version has declared that this one cannot use them.
 */
export async function migrate(driver: Driver, tables: Tables, clock: Clock): Promise<void> {
  const limit = new MigrationLimit()
  try {
    await driver.lend((session) => migrateOn(session, { tables, clock, limit }), limit.signal)
  } finally {
    limit.end()
  }
}

async function migrateOn(
  session: Session,
  of: { readonly tables: Tables; readonly clock: Clock; readonly limit: MigrationLimit },
): Promise<void> {
  const { tables, clock, limit } = of
  const isDone = async () => (await appliedCount(session, tables)) === MIGRATIONS.length
  // The last user of the connection may have left a transaction open, and CREATE would commit it.
  await session.run(ROLLBACK)
  if (await isDone()) return
  await withLock(session, { name: lockName(tables), limit, isDone }, async () => {
    const { database } = tables
    if (database !== undefined) await createDatabase(session, database)
    await writeAlone(session, forTables(tables, MIGRATION_TABLE))
    for (let n = (await appliedCount(session, tables)) + 1; n <= MIGRATIONS.length; n++) {
      for (const sql of migration(n)) await runChange(session, forTables(tables, sql), clock)
    }
  })
}

/**
 * Reads first, because even with IF NOT EXISTS the statement needs the right to create databases.
 * IF NOT EXISTS is for a process that creates the database at the same time for tables of another
 * name, under another lock.
 */
async function createDatabase(session: Session, name: string): Promise<void> {
  const sql = `SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = '${name}'`
  const [row] = await session.rows(sql)
  if (Number(row?.[0]) === 0) await session.run(`CREATE DATABASE IF NOT EXISTS \`${name}\``)
}

function lockName(tables: Tables): string {
  const { database } = tables
  const owner = database === undefined ? 'DATABASE()' : `'${database}'`
  return forTables(tables, LOCK_NAME).replace('{database}', owner)
}

async function runChange(session: Session, sql: string, clock: Clock): Promise<void> {
  await session.run(QUICK_WAIT)
  const [row] = await session.rows('SELECT @@SESSION.lock_wait_timeout')
  let quickTries = Number(row?.[0]) === 0 ? QUICK_TRIES : 0
  const startedMs = systemClock.monotonicMs()
  for (let tries = 1; ; tries++) {
    if (tries === quickTries + 1) await session.run(LONG_WAIT)
    try {
      await writeAlone(session, sql)
      return
    } catch (error) {
      // MySQL has no IF NOT EXISTS here: a process has crashed between the change and its record.
      if (isAlreadyChanged(error)) return
      if (!isLockTimeout(error)) throw error
      if (tries === quickTries + LONG_TRIES) throw inUse(sql, error)
    }
    const isQuick = tries <= quickTries
    if (isQuick && systemClock.monotonicMs() - startedMs > QUICK_MS) quickTries = tries
    await sleep(clock, isQuick ? QUICK_PAUSE_MS : LONG_PAUSE_MS)
  }
}

function inUse(sql: string, cause: unknown): Error {
  return new Error(
    `"${sql.slice(0, 60)}" got no lock in half a minute, because other transactions use ` +
      'the table. Find the open one in information_schema.innodb_trx, end it, and migrate ' +
      'again',
    { cause },
  )
}

function migration(number: number): string[] {
  const { before, after } = migrationRecord(MIGRATIONS, number)
  const record = (n: number) => RECORD_MIGRATION.replace('{number}', String(n))
  const statements = [...MIGRATIONS[number - 1]!.statements, record(after)]
  return before === undefined ? statements : [record(before), ...statements]
}

function forTables(tables: Tables, sql: string): string {
  const names = ['record', 'history', 'migration', ...DURABLE_NAMES] as const
  return names.reduce((text, name) => text.replaceAll(`{${name}}`, tables[name]), sql).trim()
}

const DURABLE_NAMES = ['operation', 'phase', 'message', 'partition', 'audit', 'discarded'] as const

async function appliedCount(session: Session, tables: Tables): Promise<number> {
  let rows
  try {
    rows = await session.rows(
      `SELECT COALESCE(MIN(number), 0), COALESCE(MAX(number), 0) FROM ${tables.migration}`,
    )
  } catch (error) {
    if (isNotMigrated(error)) return 0
    throw error
  }
  const [lowest, highest] = (rows[0] ?? []).map(Number)
  const numbers = { lowest: lowest ?? 0, highest: highest ?? 0 }
  return appliedMigrations(tables.record, numbers, MIGRATIONS.length)
}

/** How long a table change may take, and so how long other processes wait for it: six hours. */
const CHANGE_MS = 6 * 60 * 60_000

/**
 * Each wait for the lock is short, so that the server answers regularly: a missing answer means a
 * silent network and not another process that migrates.
 */
const LOCK_SECONDS = 1
const LOCK_TRIES = CHANGE_MS / (LOCK_SECONDS * 1000)

/** Time limit for statements that change no table. */
const ANSWER_MS = 60_000

/** Aborts a migration when the network has gone silent. */
class MigrationLimit {
  readonly #abort = new AbortController()
  #cancel = () => {}

  constructor() {
    this.expectAnswer()
  }

  get signal(): AbortSignal {
    return this.#abort.signal
  }

  expectAnswer(): void {
    this.#within(ANSWER_MS)
  }

  /** A table change may take long, and the server sends nothing until it ends. */
  expectChange(): void {
    this.#within(CHANGE_MS)
  }

  end(): void {
    this.#cancel()
  }

  #within(ms: number): void {
    this.#cancel()
    const giveUp = () => this.#abort.abort(new Error(`no answer within ${ms} ms`))
    this.#cancel = systemClock.after(ms, giveUp, { background: true })
  }
}

interface MigrationLock {
  /** Name of the lock, as SQL. */
  readonly name: string
  readonly limit: MigrationLimit
  /** Whether another process has applied all migrations. */
  readonly isDone: () => Promise<boolean>
}

/**
 * Runs `change` when no other process changes the tables, unless that process has done all the
 * work. Uses a lock of the server and not of a transaction, because CREATE and ALTER end a
 * transaction.
 */
async function withLock(
  session: Session,
  { name, limit, isDone }: MigrationLock,
  change: () => Promise<void>,
): Promise<void> {
  for (let tries = 1; !(await isLocked(session, name)); tries++) {
    limit.expectAnswer()
    // With autocommit = 0 the next read would repeat the first answer.
    await session.run(ROLLBACK)
    if (await isDone()) return
    if (tries === LOCK_TRIES) {
      throw new Error('another process has been migrating for six hours: check it, then migrate')
    }
  }
  try {
    limit.expectChange()
    const [before] = await session.rows('SELECT @@SESSION.lock_wait_timeout')
    await change()
    limit.expectAnswer()
    await session.run(`SET SESSION lock_wait_timeout = ${Number(before?.[0])}`)
    await session.run(`DO RELEASE_LOCK(${name})`)
  } catch (error) {
    // The lock and the session setting end with the connection.
    session.destroy()
    throw error
  }
}

async function isLocked(session: Session, name: string): Promise<boolean> {
  const [row] = await session.rows(`SELECT GET_LOCK(${name}, ${LOCK_SECONDS})`)
  // NULL means an error on the server.
  if (row?.[0] === null) throw new Error('GET_LOCK returned NULL: look in the log of the server')
  return Number(row?.[0]) === 1
}
