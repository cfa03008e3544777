import { sleep, systemClock, type Clock } from '../../core/clock.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { appliedMigrations, migrationRecord, type Migration } from '../../core/migrations.ts'
import { writeAlone, type Driver, type Session } from './driver.ts'
import { DURABLE_TABLES, ENGINE, TEXT, WORD } from './durable-tables.ts'
import { isDuplicateName, isLockTimeout, isNotMigrated } from './failures.ts'
import { MigrationLimit, withLock } from './migration-lock.ts'
import { resolveTables, type TableOptions } from './options.ts'
import { ROLLBACK, type Tables } from './sql.ts'
import { TURN_STATEMENTS } from './turn-tables.ts'

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

interface MysqlMigration extends Migration {
  readonly statements: readonly string[]
}

/**
 * Applied in this order, each once; each of them can be repeated, for MySQL commits every
 * statement that makes a table, and a process may die between two of them. Never edit one that
 * was released: append another, by the rules of `docs/internals/schema-changes.md`.
 *
 * Every index costs a write with each claim and each completion, and none can be partial. So one
 * index serves the sweep, the reap, workers, reconcilers and the lists: `due_at_ms` is whatever
 * time counts in the record's state, `to_run` keeps operations that wait for a worker apart from
 * what waits for its expiry, and from those that wait for another worker, and the last run is in it
 * for the lists. `run_as` is what `to_run` becomes whenever the record waits for a worker: a number
 * that is made from the name and the version of its operation.
 *
 * The token is compared by the database and so is binary: text collations here ignore trailing
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
]

const MIGRATION_TABLE = `
CREATE TABLE IF NOT EXISTS {migration} (
  number INT NOT NULL PRIMARY KEY,
  applied_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
) ${ENGINE}`

/** Ignored where it is there: the process may have died right after it. */
const RECORD_MIGRATION = `INSERT IGNORE INTO {migration} (number) VALUES ({number})`

/** One name for the tables, whoever is connected to which database; names have 64 characters. */
const LOCK_NAME = `SHA1(CONCAT('oncekey ', {database}, ' ', '{record}'))`

/**
 * While a change of a table waits, every claim waits behind it, and a transaction that has read
 * the table and is about to write to it is rolled back as a deadlock. So it does not wait at first,
 * and tries to come between two transactions. MySQL waits for a second at the least.
 */
const QUICK_WAIT = 'SET SESSION lock_wait_timeout = 1 /*M! - 1 */'
const QUICK_TRIES = 200
const QUICK_PAUSE_MS = 25

/**
 * An index that is built needs the lock once more at its end, and is built again where it does not
 * get it. So the index of a large table is not tried for long without a wait.
 */
const QUICK_MS = 5_000

/**
 * Where transactions follow on each other without a gap, it has to wait. It gives up soon, lets
 * them pass, and comes again.
 */
const LONG_WAIT = 'SET SESSION lock_wait_timeout = 1'
const LONG_TRIES = 15
const LONG_PAUSE_MS = 1_000

export interface MigrationSqlOptions extends TableOptions {
  /** The number of the last migration that has been applied. @default 0 */
  after?: number
}

/**
 * The migrations as one script, for people whose migrations are run by another tool. The database
 * must exist. It is what `store.migrate()` runs, so that either may carry on where the other was.
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
 * Brings the tables up to date. Safe from many processes at once: the first gets the lock, the
 * others find the work done. Where there is nothing to do, reading is all it does, so that a user
 * without the right to create anything may call it. Tables that a newer version has changed are
 * left as they are, and refused only where that version says that this one cannot use them.
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
  // A transaction that the last user of the connection left open: making a table would commit it.
  await session.run(ROLLBACK)
  if (await isDone()) return
  await withLock(session, { name: lockName(tables), limit, isDone }, async () => {
    const { database } = tables
    if (database !== undefined) await createDatabase(session, database)
    await writeAlone(session, forTables(tables, MIGRATION_TABLE))
    for (let n = (await appliedCount(session, tables)) + 1; n <= MIGRATIONS.length; n++) {
      for (const sql of migration(n)) await change(session, forTables(tables, sql), clock)
    }
  })
}

/**
 * Only where it is missing: IF NOT EXISTS asks for the right to create databases all the same. It
 * is there for those who make it at the same time for another table, whose lock is another one.
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

async function change(session: Session, sql: string, clock: Clock): Promise<void> {
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
      // MySQL knows no IF NOT EXISTS here: a process has died between the change and its record.
      if (isDuplicateName(error)) return
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
      'the table. Look for one that stays open in information_schema.innodb_trx, and migrate again',
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

const DURABLE_NAMES = ['operation', 'phase', 'message', 'partition', 'audit'] as const

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
