import { sleep, type Clock } from '../../core/clock.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { flag } from '../../core/options.ts'
import { appliedMigrations, migrationRecord, type Migration } from '../../core/migrations.ts'
import type { Driver, Session } from './client.ts'
import { DESK_FUNCTIONS } from './desk-functions.ts'
import { DURABLE_TABLES } from './durable-tables.ts'
import { AFTER_EXPIRY, MESSAGE, ON_LAPSE, PROOF, RECORD, STATE } from './function-parts.ts'
import { isLockTimeout } from './failures.ts'
import { FUNCTIONS, FUNCTIONS_2 } from './functions.ts'
import {
  brokenIndexes,
  buildIndex,
  checkIndexesSql,
  indexSql,
  whileAlone,
  type IndexBuild,
  type TableIndex,
  type Workplace,
} from './index-builds.ts'
import { ANNOUNCED_3, MESSAGE_TENANT_FUNCTIONS_3 } from './message-tenant-functions.ts'
import { MESSAGE_TURN_FUNCTIONS_3 } from './message-turn-functions.ts'
import { OUTBOX_FUNCTIONS } from './outbox-functions.ts'
import { PHASE_FUNCTIONS } from './phase-functions.ts'
import { resolveTableName, type TableOptions } from './options.ts'
import { MigrationLimit } from './migration-limit.ts'
import { forTable, type TableName } from './sql.ts'
import { groupDigest, groupVersion, TURN_FUNCTIONS_3 } from './turn-functions.ts'

const STATES = ['in_progress', 'completed', 'failed_retryable', 'unknown', 'pending', 'expired']

function enumeration(type: string, words: readonly string[]): string {
  return `CREATE TYPE ${type} AS ENUM (${words.map((word) => `'${word}'`).join(', ')});`
}

/**
 * Types, not CHECK constraints: PostgreSQL reads the expression of each constraint from its text
 * again in every statement, which was an eighth of what a single claim cost.
 */
const ENUMERATIONS = [
  enumeration(STATE, STATES),
  enumeration(ON_LAPSE, ['unknown', 'rerun', 'resume']),
  enumeration(AFTER_EXPIRY, ['new', 'refuse']),
  enumeration(PROOF, ['proven', 'declared']),
].join('\n')

interface PostgresMigration extends Migration {
  /**
   * What the indexes need, committed before they are built. Safe to repeat: a process may die
   * before the migration is recorded.
   */
  readonly before?: string
  /** Built without a lock, after `before` and before `sql`, where the tables are in use. */
  readonly indexes?: readonly TableIndex[]
  readonly sql: string
}

/**
 * Functions depend on them only for speed. `turn-parts.ts` says what they are for. Each has a
 * condition that is always true and that only the functions of this migration name: no statement of
 * an older node can use one of these indexes by mistake.
 *
 * An entry has at most 2,704 bytes, and a change of a record that needs a larger one fails. Names
 * of tenants, operations on record, topics and partitions have at most 255 characters, which are
 * 765 bytes, so three of them fit. The operation of a scope may have four times as many.
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

const FUNCTIONS_3 = [
  ...TURN_FUNCTIONS_3,
  ...MESSAGE_TURN_FUNCTIONS_3,
  ...MESSAGE_TENANT_FUNCTIONS_3,
]

/**
 * Applied in this order, each once. Never edit one that was released: append another, by the rules
 * of `docs/internals/schema-changes.md`.
 *
 * Every index costs a write with each claim and each completion, so all but the two that keep
 * identities and record ids unique are partial, and a record that is claimed and completed is in
 * two of them, one after the other. Rows are small until they are completed; the room left in each
 * page (fillfactor) is for the completed version, so that it need not go to another page.
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
${[...PHASE_FUNCTIONS, ...OUTBOX_FUNCTIONS, ...DESK_FUNCTIONS].join('\n')}
`,
  },
  {
    // The table last: from then on, until the commit, every claim waits.
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
]

const INDEXES = MIGRATIONS.flatMap(({ indexes = [] }) => indexes)

const MIGRATION_TABLE = `
CREATE TABLE IF NOT EXISTS "{schema}"."{table}_migration" (
  number int PRIMARY KEY,
  applied_at timestamptz NOT NULL DEFAULT now()
);`

const RECORD_MIGRATION = `INSERT INTO "{schema}"."{table}_migration" (number) VALUES ({number});`

/** Two-part key of the advisory locks: ours, and that of the schema or the table. */
const LOCK = `SELECT pg_advisory_xact_lock(1869505355, hashtext($1::text))::text`

const HAS_SCHEMA = `SELECT count(*)::int FROM pg_catalog.pg_namespace WHERE nspname = $1::text`

const HAS_TABLE = `
  SELECT count(*)::int FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = $1::text AND c.relname = $2::text`

const NUMBERS = `SELECT coalesce(min(number), 0)::int, coalesce(max(number), 0)::int
  FROM "{schema}"."{table}_migration"`

/**
 * A migration may take longer than the statements that the application limits. Where its client is
 * lost after a statement, its locks are freed after a minute.
 */
const OPENING = `SET LOCAL statement_timeout = 0;
  SET LOCAL idle_in_transaction_session_timeout = '60s'; SELECT 1`

/**
 * A change of a table waits for the transactions that use it, and every claim that comes meanwhile
 * waits behind the change. So it gives up soon, lets them pass, and comes again.
 */
const LOCK_TIMEOUT = `SET LOCAL lock_timeout = '1s'`
const TRIES_MAX = 15
const PAUSE_MS = 1_000

/** How often another process that builds indexes is waited for: six hours. */
const TURNS_MAX = 21_600

export interface MigrationSqlOptions extends TableOptions {
  /** The number of the last migration that has been applied. @default 0 */
  after?: number

  /**
   * Builds indexes on tables that exist without locking them. The script is then for a tool that
   * sends its statements one by one and outside of a transaction, as `psql -f` does. Without it,
   * writes to a table wait while an index on it is built.
   *
   * @default false
   */
  concurrently?: boolean
}

/**
 * The migrations as one script, for people whose migrations are run by another tool. The schema
 * must exist. It is what `store.migrate()` runs, so that either may carry on where the other was.
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
  const isApart = flag('migrationSql: concurrently', concurrently, false) && after > 0
  const build = isApart ? 'CONCURRENTLY' : 'at once'
  const parts = MIGRATIONS.slice(after).map((_, index) => migration(after + index + 1, build))
  return forTable(name, ['BEGIN;', MIGRATION_TABLE, ...parts, 'COMMIT;'].join('\n'))
}

/**
 * Brings the tables up to date. Safe from many processes at once: the first gets the advisory
 * lock, the others find the work done. Where there is nothing to do, reading is all it does, so
 * that a role without the right to create anything may call it. An index that is missing or not
 * valid is built again. Tables that a newer version has changed are left as they are, and refused
 * only where that version says that this one cannot use them.
 */
export async function migrate(driver: Driver, name: TableName, clock: Clock): Promise<void> {
  const limit = new MigrationLimit(driver, clock)
  for (let turns = 1; turns <= TURNS_MAX; turns++) {
    const { applied, isNewer } = await tableState(limit, name)
    const isDone = applied === MIGRATIONS.length
    // A newer version may have replaced an index by another one.
    if (isDone && (isNewer || (await brokenIndexes(limit, name, INDEXES)).length === 0)) return
    if (applied === 0 || (!isDone && indexesAfter(applied).length === 0)) {
      const apply = (session: Session) => applyIn(session, name)
      await untilUnlocked(name, clock, () => limit.transact(apply, OPENING))
      continue
    }
    const steps = (place: Workplace) =>
      isDone ? repairIndexes(place, name, clock) : migrateApart(place, name, clock)
    if (!(await whileAlone(limit, { name, opening: OPENING }, steps))) await sleep(clock, PAUSE_MS)
  }
  throw new Error(`another process has not finished migrating "${name.schema}"."${name.table}"`)
}

function indexesAfter(applied: number): readonly TableIndex[] {
  return MIGRATIONS.slice(applied).flatMap(({ indexes = [] }) => indexes)
}

/** An index may be dropped by an operator, or left invalid by a script of an earlier version. */
async function repairIndexes(place: Workplace, name: TableName, clock: Clock): Promise<void> {
  for (const index of await brokenIndexes(place, name, INDEXES)) {
    await buildIndex(place, { name, index, clock })
  }
}

/** A migration with indexes on tables that are in use. Whatever is done already stays. */
async function migrateApart(place: Workplace, name: TableName, clock: Clock): Promise<void> {
  const inTurn = (body: (session: Session) => Promise<void>) =>
    untilUnlocked(name, clock, () => place.transact(body))
  for (let steps = 1; steps <= MIGRATIONS.length; steps++) {
    await inTurn((session) => applyIn(session, name))
    const { applied } = await tableState(place, name)
    if (applied === MIGRATIONS.length) return
    const { before = '', indexes = [] } = MIGRATIONS[applied]!
    await inTurn(async (session) => {
      await lockIn(session, name)
      await session.script(forTable(name, before))
    })
    for (const index of indexes) await buildIndex(place, { name, index, clock })
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
  // The schema first, always: others may be about to make it for another table.
  await session.query(LOCK, [name.schema])
  await session.query(LOCK, [`${name.schema}.${name.table}`])
  await session.script(LOCK_TIMEOUT)
}

/**
 * Applies what is missing, in one transaction: on tables that it makes, everything; otherwise up to
 * the first migration with indexes, except the one of the number `built`, which has them.
 */
async function applyIn(session: Session, name: TableName, built?: number): Promise<void> {
  await lockIn(session, name)
  // Only where it is missing: IF NOT EXISTS asks for the right to create schemas all the same.
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
      'transactions use it. Look for one that stays open in pg_stat_activity or ' +
      'pg_prepared_xacts, and migrate again',
    { cause },
  )
}

/** `built`: its indexes are there, and what they need. */
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
  const isApart = build === 'CONCURRENTLY'
  return before + (isApart ? `COMMIT;\n${built}BEGIN;\n` : built) + checkIndexesSql(indexes)
}

interface TableState {
  readonly applied: number
  /** It has migrations that this version does not know. */
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
