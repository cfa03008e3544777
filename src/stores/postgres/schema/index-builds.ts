/**
 * Builds indexes on tables in use, outside of a transaction, so that no claim waits for a build.
 * Only one process builds at a time, because two builds on one table wait for each other.
 *
 * The build lock is not the migration lock, and a process tries it without waiting. A waiting
 * statement has a snapshot, and a build waits for all older snapshots. Nodes of an older version
 * wait for the migration lock, so a build that holds it and such a node would wait for each other
 * for ever.
 */
import { sleep, type Clock } from '../../../core/time/clock.ts'
import { textArray } from '../driver/values.ts'
import type { Row, Session, Value } from '../driver/driver.ts'
import { isConflict, isLockTimeout, isStatementTimeout } from '../failures.ts'
import { ALIVE, BACKEND, LockedOut, type MigrationLimit } from './migration-limit.ts'
import { forTable, type TableName } from '../sql.ts'

export interface TableIndex {
  /** The name of the index without the name of the table, which precedes it. */
  readonly name: string
  readonly on: string
  readonly columns: string
  readonly where: string
}

export type IndexBuild = 'CONCURRENTLY' | 'at once'

/** An index exists but is not valid while it is built, and after its build was cancelled. */
const isValid = (schema: string, name: string) => `EXISTS (
    SELECT FROM pg_catalog.pg_index i
    JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = ${schema} AND c.relname = ${name} AND i.indisvalid)`

const BROKEN = `SELECT q.name FROM unnest($2::text[]) AS q (name)
  WHERE NOT ${isValid('$1::text', 'q.name')} ORDER BY 1`

/** Returns the indexes that are missing or not valid. */
export async function brokenIndexes(
  runner: Pick<Session, 'query'>,
  { schema, table }: TableName,
  indexes: readonly TableIndex[],
): Promise<TableIndex[]> {
  const nameOf = ({ name }: TableIndex) => `${table}_${name}`
  const rows = await runner.query(BROKEN, [schema, textArray(indexes.map(nameOf))])
  const broken = rows.map(([name]) => name)
  return indexes.filter((index) => broken.includes(nameOf(index)))
}

/**
 * Fails the script before it records the migration if an index is not valid: IF NOT EXISTS accepts
 * an index that a cancelled build has left.
 */
export function checkIndexesSql(indexes: readonly TableIndex[]): string {
  const names = indexes.map(({ name }) => `'{table}_${name}'`).join(', ')
  return `DO $body$
  DECLARE
    v_broken text;
  BEGIN
    v_broken := (SELECT string_agg(q.name, ', ') FROM unnest(ARRAY[${names}]) AS q (name)
      WHERE NOT ${isValid(`'{schema}'`, 'q.name')});
    IF v_broken IS NOT NULL THEN
      RAISE EXCEPTION 'not valid, because a build was given up: %', v_broken
        USING HINT = 'Drop these indexes in schema {schema}, and run the script again.';
    END IF;
  END $body$;\n`
}

/** `at once` is for an empty table, and for scripts that run in one transaction. */
export function indexSql({ name, on, columns, where }: TableIndex, build: IndexBuild): string {
  const how = build === 'CONCURRENTLY' ? `${build} ` : ''
  return `CREATE INDEX ${how}IF NOT EXISTS "{table}_${name}" ON ${on} (${columns})
  WHERE ${where};\n`
}

/** Runs the steps of a migration while no other process builds. */
export interface StepRunner {
  query(sql: string, values: readonly Value[]): Promise<readonly Row[]>
  transact(body: (session: Session) => Promise<void>): Promise<void>
  /** A statement that cannot run in a transaction. */
  alone(sql: string): Promise<void>
}

/** The advisory lock on index builds of a table. */
const KEY = '1869505355, hashtext($1::text)'
const lockName = ({ schema, table }: TableName) => `${schema}.${table} indexes`

/** How long a build waits for each older transaction before it fails. */
const WAIT_MS = 30_000
const TRIES_MAX = 3
const PAUSE_MS = 1_000

const VALID = `SELECT i.indisvalid FROM pg_catalog.pg_index i
  JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = $1::text AND c.relname = $2::text`

/** START TRANSACTION, because postgres.js rejects BEGIN. */
const START = 'START TRANSACTION ISOLATION LEVEL READ COMMITTED'

const LIMITS = ['statement_timeout', 'lock_timeout'] as const

export interface BuildLockOptions {
  readonly name: TableName
  /** The first statements in each transaction of the steps. */
  readonly opening: string
}

/**
 * Runs `body` under the build lock. Returns `false` without running it if another process has the
 * lock.
 *
 * On a direct connection, everything runs on that connection, without the time limits that the
 * application has set for its statements. Behind a pooler, the next statement may use another
 * connection, so a connection cannot hold a setting or a lock: there a transaction holds the lock,
 * and the steps use other connections.
 */
export async function withBuildLock(
  limit: MigrationLimit,
  options: BuildLockOptions,
  body: (runner: StepRunner) => Promise<void>,
): Promise<boolean> {
  const isDirect = await limit.transact(async (session) => {
    const [row] = await session.query(BACKEND, [])
    return row?.[0] === session.backend
  }, options.opening)
  if (isDirect) return limit.transact((session) => onSession(session, options, body), 'SELECT 1')
  if (limit.connectionsMax < 2) throw new Error(ONE_CONNECTION)
  return limit.hold((session) => besideHolder(limit, session, options, body), HOLDING)
}

const ONE_CONNECTION =
  'behind a pooler such as pgbouncer, migrate() builds indexes only with a Pool of at least 2 ' +
  'connections: use such a Pool, or connect to the database directly'

const HOLDING = `SET LOCAL idle_in_transaction_session_timeout = '60s'; SELECT 1`

async function besideHolder(
  limit: MigrationLimit,
  holder: Session,
  { name, opening }: BuildLockOptions,
  body: (runner: StepRunner) => Promise<void>,
): Promise<boolean> {
  const lock = `SELECT pg_try_advisory_xact_lock(${KEY})`
  const [row] = await holder.query(lock, [lockName(name)])
  if (row?.[0] !== true) return false
  // A statement with values keeps its snapshot until the next statement, and a build would wait
  // for that snapshot.
  await holder.script(ALIVE)
  await body({
    query: (sql, values) => limit.query(sql, values),
    transact: (work) => limit.transact(work, opening),
    alone: (sql) => limit.alone(sql),
  })
  return true
}

/** Commits the transaction that the driver has begun, and begins another for it to commit. */
async function onSession(
  session: Session,
  { name, opening }: BuildLockOptions,
  body: (runner: StepRunner) => Promise<void>,
): Promise<boolean> {
  await session.script('COMMIT')
  const key = [lockName(name)]
  const [row] = await session.query(`SELECT pg_try_advisory_lock(${KEY})`, key)
  try {
    if (row?.[0] !== true) return false
    await withoutLimits(session, () =>
      body({
        query: (sql, values) => session.query(sql, values),
        transact: (work) => transactOn(session, opening, work),
        alone: (sql) => session.script(sql),
      }),
    )
    return true
  } finally {
    if (row?.[0] === true) await session.query(`SELECT pg_advisory_unlock(${KEY})`, key)
    await session.script(START)
  }
}

async function withoutLimits(session: Session, body: () => Promise<void>): Promise<void> {
  const before: unknown[] = []
  for (const one of LIMITS) {
    before.push((await session.query(`SELECT current_setting('${one}')`, []))[0]?.[0])
  }
  await session.script(`SET statement_timeout = 0; SET lock_timeout = ${WAIT_MS}`)
  try {
    await body()
  } finally {
    const set = LIMITS.map((one, n) => `SET ${one} = '${String(before[n])}'`)
    await session.script(set.join('; '))
  }
}

async function transactOn(
  session: Session,
  opening: string,
  work: (session: Session) => Promise<void>,
): Promise<void> {
  await session.script(`${START}; ${opening}`)
  try {
    await work(session)
  } catch (error) {
    await session.script('ROLLBACK')
    throw error
  }
  await session.script('COMMIT')
}

/**
 * Builds an index if it is missing. An invalid index was left by a cancelled build: it costs writes
 * and serves no query, so it is dropped and built again.
 */
export async function buildIndex(
  runner: StepRunner,
  { name, index, clock }: { name: TableName; index: TableIndex; clock: Clock },
): Promise<void> {
  const full = `${name.table}_${index.name}`
  for (let tries = 1; ; tries++) {
    const [row] = await runner.query(VALID, [name.schema, full])
    if (row?.[0] === true) return
    try {
      if (row !== undefined) await runner.alone(forTable(name, dropSql(index)))
      await runner.alone(forTable(name, indexSql(index, 'CONCURRENTLY')))
    } catch (error) {
      if (isStatementTimeout(error)) throw cancelledBuild(full, error)
      const isWaiting = error instanceof LockedOut || isLockTimeout(error)
      if (!isWaiting && !isConflict(error)) throw error
      if (error instanceof LockedOut || tries === TRIES_MAX) throw blockedBuild(full, error)
      await sleep(clock, PAUSE_MS)
    }
    if (tries > TRIES_MAX) throw new Error(`index "${full}" was removed while it was built`)
  }
}

const dropSql = ({ name }: TableIndex) =>
  `DROP INDEX CONCURRENTLY IF EXISTS "{schema}"."{table}_${name}"`

function blockedBuild(index: string, cause: unknown): Error {
  return new Error(
    `index "${index}" could not be built, because an older transaction stays open. Look in ` +
      'pg_stat_activity for the one with the lowest xact_start, and in pg_prepared_xacts for a ' +
      'prepared one that was never ended; end it, and migrate again',
    { cause },
  )
}

function cancelledBuild(index: string, cause: unknown): Error {
  return new Error(
    `the build of index "${index}" was cancelled, or took longer than statement_timeout. Set ` +
      'statement_timeout to 0 for the user that migrates, and migrate again',
    { cause },
  )
}
