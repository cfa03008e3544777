import { sleep, type Clock } from '../../core/time/clock.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { flag } from '../../core/options.ts'
import { appliedMigrations, migrationRecord, type Migration } from '../kit/migrations.ts'
import type { Driver, Session } from './driver/driver.ts'
import { ACT_FUNCTIONS } from './functions/acts.ts'
import { DISCARDED_TABLE, DURABLE_TABLES } from './durable/tables.ts'
import {
  AFTER_EXPIRY,
  HISTORY,
  MESSAGE,
  ON_LAPSE,
  PROOF,
  RECORD,
  STATE,
} from './functions/parts.ts'
import { isLockTimeout } from './failures.ts'
import { FUNCTIONS, FUNCTIONS_2, FUNCTIONS_4 } from './functions/functions.ts'
import {
  brokenIndexes,
  buildIndex,
  checkIndexesSql,
  indexSql,
  withBuildLock,
  type IndexBuild,
  type TableIndex,
  type StepRunner,
} from './schema/index-builds.ts'
import { ANNOUNCED_3, MESSAGE_TENANT_FUNCTIONS_3 } from './functions/message-tenants.ts'
import { MESSAGE_TURN_FUNCTIONS_3 } from './functions/message-turns.ts'
import { OUTBOX_FUNCTIONS } from './functions/outbox.ts'
import { PHASE_FUNCTIONS } from './functions/phases.ts'
import { resolveTableName, type TableOptions } from './options.ts'
import { MigrationLimit } from './schema/migration-limit.ts'
import { forTable, type TableName } from './sql.ts'
import { groupDigest, groupVersion, TURN_FUNCTIONS_3 } from './functions/turns.ts'

const STATES = ['in_progress', 'completed', 'failed_retryable', 'unknown', 'pending', 'expired']

function enumeration(type: string, words: readonly string[]): string {
  return `CREATE TYPE ${type} AS ENUM (${words.map((word) => `'${word}'`).join(', ')});`
}

/**
 * Types instead of CHECK constraints: PostgreSQL parses the expression of each constraint again in
 * every statement, which took an eighth of the time of a single claim.
 */
const ENUMERATIONS = [
  enumeration(STATE, STATES),
  enumeration(ON_LAPSE, ['unknown', 'rerun', 'resume']),
  enumeration(AFTER_EXPIRY, ['new', 'refuse']),
  enumeration(PROOF, ['proven', 'declared']),
].join('\n')

interface PostgresMigration extends Migration {
  /**
   * Changes that the indexes need, committed before the indexes are built. Safe to repeat, because
   * a process may crash before it records the migration.
   */
  readonly before?: string
  /** Built without a lock, after `before` and before `sql`, if the tables are in use. */
  readonly indexes?: readonly TableIndex[]
  readonly sql: string
}

/**
 * The functions need these indexes only for speed; `turn-parts.ts` explains their use. The WHERE
 * clause of each index has a condition that is always true and that only the functions of this
 * migration contain, so no statement of an older node uses one of these indexes by mistake.
 *
 * An index entry has at most 2,704 bytes, and a write that needs a larger one fails. Names of
 * tenants, stored operations, topics and partitions have at most 255 characters, which are 765
 * bytes, so three of them fit. The operation of a scope may be four times as long.
 */
const TURN_INDEXES: readonly TableIndex[] = [
  {
    name: 'due_turn',
    on: RECORD,
    columns: 'run_name, run_version, tenant COLLATE "C", reconcile_at',
    where: `state IN ('pending', 'failed_retryable') AND reconcile_at IS NOT NULL AND attempt >= 0`,
  },
  {
    name: 'unknown_turn',
    on: RECORD,
    columns: `(${groupDigest('')}), (${groupVersion('')}),
  tenant COLLATE "C", reconcile_at`,
    where: `state = 'unknown' AND reconcile_at IS NOT NULL AND attempt >= 0`,
  },
  {
    name: 'message_turn',
    on: MESSAGE,
    columns: `topic, (coalesce(tenant, '')), due_at, number`,
    where: 'partition IS NULL AND due_at IS NOT NULL AND attempt >= 0',
  },
  {
    name: 'lane_turn',
    on: MESSAGE,
    columns: `topic, (coalesce(tenant, '')), partition, number`,
    where: 'partition IS NOT NULL AND (due_at IS NOT NULL OR blocks) AND attempt >= 0',
  },
]

/** Finds the tombstones that `reap` removes. Those that are kept for ever are not in it. */
const TOMBSTONE_INDEX: TableIndex = {
  name: 'tombstone',
  on: RECORD,
  columns: 'reconcile_at',
  where: `state = 'expired' AND reconcile_at IS NOT NULL AND attempt >= 0`,
}

const FUNCTIONS_3 = [
  ...TURN_FUNCTIONS_3,
  ...MESSAGE_TURN_FUNCTIONS_3,
  ...MESSAGE_TENANT_FUNCTIONS_3,
]

/**
 * Applied in this order, each once. Never edit a released migration: append another one, following
 * `docs/internals/schema-changes.md`.
 *
 * Every index costs a write with each claim and each completion. So all indexes but the two that
 * keep identities and record ids unique are partial, and a record that is claimed and completed is
 * in two of them, one after the other. Rows are small until they are completed; the fillfactor
 * leaves space in each page, so that the completed version fits into the same page.
 */
export const MIGRATIONS: readonly PostgresMigration[] = [
  {
    runsFrom: 1,
    sql: `
${ENUMERATIONS}
CREATE TABLE "{schema}"."{table}" (
  identity bytea NOT NULL CHECK (octet_length(identity) = 16),
  record_id uuid NOT NULL,
  attempt int NOT NULL,
  lapses int NOT NULL,
  tries int NOT NULL DEFAULT 0,
  state ${STATE} NOT NULL,
  on_lapse ${ON_LAPSE} NOT NULL,
  after_expiry ${AFTER_EXPIRY} NOT NULL,
  lease_until timestamptz NOT NULL,
  created_at timestamptz NOT NULL,
  last_run_at timestamptz NOT NULL,
  completed_at timestamptz,
  expires_at timestamptz NOT NULL,
  reconcile_at timestamptz,
  proof ${PROOF},
  token text NOT NULL,
  fingerprint text NOT NULL,
  tenant text NOT NULL,
  operation text NOT NULL,
  key text NOT NULL,
  watched boolean NOT NULL DEFAULT false,
  error_code text,
  recovery_point text,
  run_name text,
  run_version int,
  result bytea,
  CONSTRAINT "{table}_pkey" PRIMARY KEY (identity),
  CONSTRAINT "{table}_record_id" UNIQUE (record_id)
) WITH (fillfactor = 60);
CREATE INDEX "{table}_lease" ON "{schema}"."{table}" (lease_until)
  WHERE state = 'in_progress';
CREATE INDEX "{table}_expiry" ON "{schema}"."{table}" (expires_at)
  WHERE state = 'completed' OR (state = 'failed_retryable' AND recovery_point IS NULL);
CREATE INDEX "{table}_listed" ON "{schema}"."{table}" (state, last_run_at)
  WHERE state NOT IN ('in_progress', 'completed');
CREATE INDEX "{table}_pending" ON "{schema}"."{table}" (expires_at)
  WHERE state = 'pending' AND NOT (recovery_point IS NOT NULL AND attempt > 0);
CREATE INDEX "{table}_reconcile" ON "{schema}"."{table}" (reconcile_at)
  WHERE state = 'unknown';
CREATE INDEX "{table}_due" ON "{schema}"."{table}" (run_name, run_version, reconcile_at)
  WHERE state IN ('pending', 'failed_retryable') AND reconcile_at IS NOT NULL;
CREATE TABLE "{schema}"."{table}_history" (
  identity bytea NOT NULL,
  record_id uuid NOT NULL,
  attempt int NOT NULL,
  lapses int NOT NULL,
  tries int NOT NULL DEFAULT 0,
  lease_until timestamptz NOT NULL,
  created_at timestamptz NOT NULL,
  last_run_at timestamptz NOT NULL,
  completed_at timestamptz,
  expires_at timestamptz NOT NULL,
  reconcile_at timestamptz,
  on_lapse text NOT NULL,
  after_expiry text NOT NULL,
  proof text,
  fingerprint text NOT NULL,
  tenant text NOT NULL,
  operation text NOT NULL,
  key text NOT NULL,
  error_code text,
  recovery_point text,
  result bytea,
  CONSTRAINT "{table}_history_pkey" PRIMARY KEY (record_id)
);
CREATE INDEX "{table}_history_key" ON "{schema}"."{table}_history" (identity, created_at);
${FUNCTIONS.join('\n')}${DURABLE_TABLES}
${[...PHASE_FUNCTIONS, ...OUTBOX_FUNCTIONS, ...ACT_FUNCTIONS].join('\n')}
`,
  },
  {
    // ALTER TABLE comes last: from then on, until the commit, every claim waits.
    runsFrom: 1,
    sql: `${FUNCTIONS_2.join('\n')}
ALTER TABLE "{schema}"."{table}" ADD COLUMN lease_ms float8, ADD COLUMN lease_from timestamptz;
`,
  },
  {
    runsFrom: 1,
    before: `
ALTER TABLE ${MESSAGE} ADD COLUMN IF NOT EXISTS tenant text COLLATE "C";
`,
    indexes: TURN_INDEXES,
    sql: `${FUNCTIONS_3.join('\n')}${ANNOUNCED_3}
`,
  },
  {
    // Older nodes do not know the columns, but no value can come to belong to another record id:
    // every version replaces an expired record by DELETE and INSERT.
    //
    // ALTER TABLE comes last: from then on, until the commit, every claim waits. Functions use the
    // history after the records, and so does this, or both could wait for each other.
    runsFrom: 1,
    indexes: [TOMBSTONE_INDEX],
    sql: `${FUNCTIONS_4.join('\n')}${DISCARDED_TABLE}
ALTER TABLE ${RECORD} ADD COLUMN id_seed bytea, ADD COLUMN refuse_for_ms float8;
ALTER TABLE ${HISTORY} ADD COLUMN id_seed bytea, ADD COLUMN refuse_for_ms float8;
`,
  },
]

const INDEXES = MIGRATIONS.flatMap(({ indexes = [] }) => indexes)

const MIGRATION_TABLE = `
CREATE TABLE IF NOT EXISTS "{schema}"."{table}_migration" (
  number int PRIMARY KEY,
  applied_at timestamptz NOT NULL DEFAULT now()
);`

const RECORD_MIGRATION = `INSERT INTO "{schema}"."{table}_migration" (number) VALUES ({number});`

/** The key of an advisory lock: a constant of this package, and a schema or a table. */
const LOCK = `SELECT pg_advisory_xact_lock(1869505355, hashtext($1::text))::text`

const HAS_SCHEMA = `SELECT count(*)::int FROM pg_catalog.pg_namespace WHERE nspname = $1::text`

const HAS_TABLE = `
  SELECT count(*)::int FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = $1::text AND c.relname = $2::text`

const NUMBERS = `SELECT coalesce(min(number), 0)::int, coalesce(max(number), 0)::int
  FROM "{schema}"."{table}_migration"`

/**
 * A migration may take longer than the application's `statement_timeout`. If the connection is lost
 * after a statement, the server releases the locks after a minute.
 */
const OPENING = `SET LOCAL statement_timeout = 0;
  SET LOCAL idle_in_transaction_session_timeout = '60s'; SELECT 1`

/**
 * ALTER TABLE waits for the transactions that use the table, and every later claim waits behind it.
 * So it gives up after a second, lets the claims pass, and tries again.
 */
const LOCK_TIMEOUT = `SET LOCAL lock_timeout = '1s'`
const TRIES_MAX = 15
const PAUSE_MS = 1_000

/** Rounds, mostly of a second, in which another process builds indexes: six hours in all. */
const ROUNDS_MAX = 21_600

export interface MigrationSqlOptions extends TableOptions {
  /**
   * Number of the last migration that has been applied; the script contains the later ones.
   *
   * @default 0
   */
  after?: number

  /**
   * Builds indexes on existing tables with CREATE INDEX CONCURRENTLY. Run such a script with a tool
   * that sends each statement separately and opens no transaction, as `psql -f` does. If `false`,
   * the script can run in a transaction, but writes to a table wait while its index is built.
   *
   * @default false
   */
  concurrently?: boolean
}

/**
 * The migrations as one script, for another migration tool. The schema must exist. The script and
 * `store.migrate()` run the same migrations, so each can continue where the other stopped.
 */
export function migrationSql({
  after = 0,
  concurrently,
  ...names
}: MigrationSqlOptions = {}): string {
  const name = resolveTableName('migrationSql', names)
  if (!Number.isInteger(after) || after < 0 || after > MIGRATIONS.length) {
    throw new InvalidOptionsError(
      `migrationSql: after must be a whole number from 0 to ${MIGRATIONS.length}`,
    )
  }
  const isConcurrent = flag('migrationSql: concurrently', concurrently, false) && after > 0
  const build = isConcurrent ? 'CONCURRENTLY' : 'at once'
  const parts = MIGRATIONS.slice(after).map((_, index) => migration(after + index + 1, build))
  return forTable(name, ['BEGIN;', MIGRATION_TABLE, ...parts, 'COMMIT;'].join('\n'))
}

/**
 * Brings the tables up to date. Many processes can call it at once: the first gets the advisory
 * lock, and the others find the migrations applied. If nothing is missing, it only reads, so a role
 * without the right to create anything can call it. It builds a missing or invalid index again. It
 * does not change tables of a newer version, and rejects them only if that version has recorded
 * that this one cannot use them.
 */
export async function migrate(driver: Driver, name: TableName, clock: Clock): Promise<void> {
  const limit = new MigrationLimit(driver, clock)
  for (let rounds = 1; rounds <= ROUNDS_MAX; rounds++) {
    const { applied, isNewer } = await tableState(limit, name)
    const isDone = applied === MIGRATIONS.length
    // A newer version may have replaced an index.
    if (isDone && (isNewer || (await brokenIndexes(limit, name, INDEXES)).length === 0)) return
    if (applied === 0 || (!isDone && indexesAfter(applied).length === 0)) {
      const apply = (session: Session) => applyIn(session, name)
      await untilUnlocked(name, clock, () => limit.transact(apply, OPENING))
      continue
    }
    const steps = (runner: StepRunner) =>
      isDone ? repairIndexes(runner, name, clock) : migrateInUse(runner, name, clock)
    if (!(await withBuildLock(limit, { name, opening: OPENING }, steps)))
      await sleep(clock, PAUSE_MS)
  }
  throw new Error(
    `another process has not finished migrating "${name.schema}"."${name.table}" within six ` +
      'hours: find its connection in pg_stat_activity, end it, and migrate again',
  )
}

function indexesAfter(applied: number): readonly TableIndex[] {
  return MIGRATIONS.slice(applied).flatMap(({ indexes = [] }) => indexes)
}

/** An operator may have dropped an index, or an older script may have left it invalid. */
async function repairIndexes(runner: StepRunner, name: TableName, clock: Clock): Promise<void> {
  for (const index of await brokenIndexes(runner, name, INDEXES)) {
    await buildIndex(runner, { name, index, clock })
  }
}

/** Applies migrations with indexes to tables in use. Completed steps stay if a later one fails. */
async function migrateInUse(runner: StepRunner, name: TableName, clock: Clock): Promise<void> {
  const inTurn = (body: (session: Session) => Promise<void>) =>
    untilUnlocked(name, clock, () => runner.transact(body))
  for (let steps = 1; steps <= MIGRATIONS.length; steps++) {
    await inTurn((session) => applyIn(session, name))
    const { applied } = await tableState(runner, name)
    if (applied === MIGRATIONS.length) return
    const { before = '', indexes = [] } = MIGRATIONS[applied]!
    await inTurn(async (session) => {
      await lockIn(session, name)
      await session.script(forTable(name, before))
    })
    for (const index of indexes) await buildIndex(runner, { name, index, clock })
    await inTurn((session) => applyIn(session, name, applied + 1))
  }
}

async function untilUnlocked(
  name: TableName,
  clock: Clock,
  run: () => Promise<void>,
): Promise<void> {
  for (let tries = 1; ; tries++) {
    try {
      return await run()
    } catch (error) {
      if (!isLockTimeout(error)) throw error
      if (tries === TRIES_MAX) throw inUse(name, error)
    }
    await sleep(clock, PAUSE_MS)
  }
}

async function lockIn(session: Session, name: TableName): Promise<void> {
  // Always the schema first: another process may be creating it for another table.
  await session.query(LOCK, [name.schema])
  await session.query(LOCK, [`${name.schema}.${name.table}`])
  await session.script(LOCK_TIMEOUT)
}

/**
 * Applies missing migrations in one transaction: all of them to new tables, otherwise those before
 * the first migration with indexes. The indexes of migration number `built` exist already.
 */
async function applyIn(session: Session, name: TableName, built?: number): Promise<void> {
  await lockIn(session, name)
  // Only if it is missing: IF NOT EXISTS needs the right to create schemas in any case.
  const [schemas] = await session.query(HAS_SCHEMA, [name.schema])
  if (schemas?.[0] === 0) await session.script(forTable(name, 'CREATE SCHEMA "{schema}"'))
  const { applied } = await tableState(session, name)
  for (let n = applied + 1; n <= MIGRATIONS.length; n++) {
    if (applied > 0 && n !== built && MIGRATIONS[n - 1]!.indexes !== undefined) return
    const text = migration(n, n === built ? 'built' : 'at once')
    await session.script(forTable(name, MIGRATION_TABLE + text))
  }
}

function inUse({ schema, table }: TableName, cause: unknown): Error {
  return new Error(
    `table "${schema}"."${table}" could not be changed in ${TRIES_MAX} tries, because other ` +
      'transactions use it. Find one that stays open in pg_stat_activity or ' +
      'pg_prepared_xacts, end it, and migrate again',
    { cause },
  )
}

/** `built`: the indexes exist already, and so do the changes that they need. */
function migration(number: number, build: IndexBuild | 'built'): string {
  const { before, after } = migrationRecord(MIGRATIONS, number)
  const { sql } = MIGRATIONS[number - 1]!
  const record = (n: number) => RECORD_MIGRATION.replace('{number}', String(n))
  return [
    before === undefined ? '' : record(before),
    build === 'built' ? '' : preparation(number, build),
    sql,
    record(after),
  ].join('')
}

function preparation(number: number, build: IndexBuild): string {
  const { before = '', indexes = [] } = MIGRATIONS[number - 1]!
  if (indexes.length === 0) return before
  const built = indexes.map((index) => indexSql(index, build)).join('')
  const isConcurrent = build === 'CONCURRENTLY'
  return before + (isConcurrent ? `COMMIT;\n${built}BEGIN;\n` : built) + checkIndexesSql(indexes)
}

interface TableState {
  readonly applied: number
  /** The tables have migrations that this version does not know. */
  readonly isNewer: boolean
}

async function tableState(session: Pick<Session, 'query'>, name: TableName): Promise<TableState> {
  const { schema, table } = name
  const [tables] = await session.query(HAS_TABLE, [schema, `${table}_migration`])
  if (tables?.[0] === 0) return { applied: 0, isNewer: false }
  const [row] = await session.query(forTable(name, NUMBERS), [])
  const [lowest, highest] = row as readonly [number, number]
  const known = MIGRATIONS.length
  const applied = appliedMigrations(`"${schema}"."${table}"`, { lowest, highest }, known)
  return { applied, isNewer: -lowest > known }
}
