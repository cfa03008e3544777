import type { DatabaseSync } from 'node:sqlite'
import {
  appliedMigrations,
  migrationRecord,
  type Migration,
  type MigrationNumbers,
} from '../kit/migrations.ts'
import { DURABLE } from './durable/tables.ts'
import { forTable } from './sql.ts'

interface SqliteMigration extends Migration {
  readonly sql: string
}

/**
 * Applied in this order, each once. Never edit a released migration: append another.
 *
 * The result is the last column, because SQLite reads through a large value to reach the columns
 * behind it. `STRICT` and the CHECK constraints turn a wrong value into an error instead of a
 * record that no code can read. The constraints list their values with OR, because for an IN with
 * more than two values SQLite builds a temporary index at every write: a seventh of the time of a
 * claim and its completion. The indexes are partial, so that a claim writes as few as possible.
 *
 * A record also has the name and version of its operation, so that due records of one operation
 * are found even behind many that wait for another worker.
 *
 * A released record with an operation never expires, so it is not in the expiry index: a reaper
 * would read it again at every call.
 *
 * The history table always exists, so that the `history` option can be switched on at any time. Its
 * `number` is a declared column, because VACUUM may renumber the rows of a table without one.
 */
export const MIGRATIONS: readonly SqliteMigration[] = [
  {
    runsFrom: 1,
    sql: `
  CREATE TABLE "{table}" (
    identity BLOB NOT NULL CHECK (length(identity) = 16),
    record_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    operation TEXT NOT NULL,
    key TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state = 'in_progress' OR state = 'completed' OR
      state = 'failed_retryable' OR state = 'unknown' OR state = 'expired' OR state = 'pending'),
    attempt INTEGER NOT NULL,
    lapses INTEGER NOT NULL,
    token TEXT NOT NULL,
    lease_until_ms INTEGER NOT NULL,
    on_lapse TEXT NOT NULL CHECK
      (on_lapse = 'unknown' OR on_lapse = 'rerun' OR on_lapse = 'resume'),
    after_expiry TEXT NOT NULL CHECK (after_expiry IN ('new', 'refuse')),
    proof TEXT CHECK (proof IN ('proven', 'declared')),
    recovery_point TEXT,
    error_code TEXT,
    reconcile_at_ms INTEGER,
    tries INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL,
    last_run_at_ms INTEGER NOT NULL,
    completed_at_ms INTEGER,
    expires_at_ms INTEGER NOT NULL,
    run_name TEXT,
    run_version INTEGER,
    result BLOB
  ) STRICT;
  CREATE UNIQUE INDEX "{table}_identity" ON "{table}" (identity);
  CREATE UNIQUE INDEX "{table}_record_id" ON "{table}" (record_id);
  CREATE INDEX "{table}_lease" ON "{table}" (lease_until_ms) WHERE state = 'in_progress';
  CREATE INDEX "{table}_expiry" ON "{table}" (expires_at_ms) WHERE state = 'completed'
    OR (state = 'failed_retryable' AND recovery_point IS NULL);
  CREATE INDEX "{table}_pending" ON "{table}" (expires_at_ms)
    WHERE state = 'pending' AND (recovery_point IS NULL OR attempt = 0);
  CREATE INDEX "{table}_list" ON "{table}" (state, last_run_at_ms)
    WHERE state NOT IN ('in_progress', 'completed');
  CREATE INDEX "{table}_due" ON "{table}" (run_name, run_version, reconcile_at_ms)
    WHERE state IN ('pending', 'failed_retryable') AND reconcile_at_ms IS NOT NULL
      AND run_name IS NOT NULL;
  CREATE INDEX "{table}_unknown" ON "{table}" (reconcile_at_ms)
    WHERE state = 'unknown' AND reconcile_at_ms IS NOT NULL;

  CREATE TABLE "{table}_history" (
    number INTEGER PRIMARY KEY,
    identity BLOB NOT NULL,
    record_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    operation TEXT NOT NULL,
    key TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    lapses INTEGER NOT NULL,
    lease_until_ms INTEGER NOT NULL,
    on_lapse TEXT NOT NULL,
    after_expiry TEXT NOT NULL,
    proof TEXT,
    recovery_point TEXT,
    error_code TEXT,
    reconcile_at_ms INTEGER,
    tries INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL,
    last_run_at_ms INTEGER NOT NULL,
    completed_at_ms INTEGER,
    expires_at_ms INTEGER NOT NULL,
    result BLOB
  ) STRICT;
  CREATE INDEX "{table}_history_identity" ON "{table}_history" (identity);
  CREATE INDEX "{table}_history_record_id" ON "{table}_history" (record_id);
  ${DURABLE}
  `,
  },
  {
    // SQLite adds columns behind the result, so these are read only of records without a result.
    runsFrom: 1,
    sql: `
  ALTER TABLE "{table}" ADD COLUMN lease_ms INTEGER;
  ALTER TABLE "{table}" ADD COLUMN lease_from_ms INTEGER;
  `,
  },
  {
    // For due work in turns. Expressions, so that the indexes also cover rows of older nodes.
    runsFrom: 1,
    sql: `
  CREATE INDEX "{table}_due_turn" ON "{table}" (run_name, run_version, tenant, reconcile_at_ms)
    WHERE state IN ('pending', 'failed_retryable') AND reconcile_at_ms IS NOT NULL
      AND run_name IS NOT NULL;
  CREATE INDEX "{table}_unknown_turn" ON "{table}"
    (coalesce(run_name, operation), ifnull(run_version, ''), tenant, reconcile_at_ms)
    WHERE state = 'unknown' AND reconcile_at_ms IS NOT NULL;
  ALTER TABLE "{table}_message" ADD COLUMN tenant TEXT;
  CREATE INDEX "{table}_message_turn" ON "{table}_message" (topic, ifnull(tenant, ''), due_at_ms)
    WHERE is_head = 1 AND due_at_ms IS NOT NULL;
  `,
  },
  {
    // `id_seed` has the record id for which it and `refuse_for_ms` were written, then the seed.
    // A discarded reply outlives its record, so it does not refer to it. `run` is the operation
    // that has made the reply, with its phases.
    runsFrom: 1,
    sql: `
  ALTER TABLE "{table}" ADD COLUMN id_seed BLOB;
  ALTER TABLE "{table}" ADD COLUMN refuse_for_ms INTEGER;
  ALTER TABLE "{table}_history" ADD COLUMN id_seed BLOB;
  ALTER TABLE "{table}_history" ADD COLUMN refuse_for_ms INTEGER;
  CREATE INDEX "{table}_tombstone" ON "{table}" (reconcile_at_ms)
    WHERE state = 'expired' AND reconcile_at_ms IS NOT NULL;
  CREATE TABLE "{table}_discarded" (
    number INTEGER PRIMARY KEY,
    record_id TEXT NOT NULL,
    identity BLOB NOT NULL,
    tenant TEXT NOT NULL,
    operation TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    discarded_at_ms INTEGER NOT NULL,
    result BLOB NOT NULL,
    run BLOB
  ) STRICT;
  CREATE INDEX "{table}_discarded_record_id" ON "{table}_discarded" (record_id);
  CREATE INDEX "{table}_discarded_time" ON "{table}_discarded" (discarded_at_ms);
  `,
  },
]

/**
 * Brings the tables up to date. Safe from many processes at once: the first takes the write lock,
 * and the others find the migrations applied. Tables of a newer version are left unchanged, and
 * are refused only if that version has recorded that this one cannot use them.
 *
 * The numbers are in a separate table, not in `PRAGMA user_version`: the file may also hold the
 * application's tables, and then the application uses that number.
 */
export function migrate(db: DatabaseSync, table: string, nowMs: number): void {
  // Checks without the write lock first: a transaction of another process may hold it for long.
  if (isCurrent(db, table)) return
  db.exec('BEGIN IMMEDIATE')
  try {
    db.exec(
      forTable(
        table,
        `CREATE TABLE IF NOT EXISTS "{table}_migration"
           (number INTEGER PRIMARY KEY, applied_at_ms INTEGER NOT NULL) STRICT`,
      ),
    )
    const record = db.prepare(forTable(table, `INSERT INTO "{table}_migration" VALUES (?, ?)`))
    for (let number = appliedCount(db, table) + 1; number <= MIGRATIONS.length; number++) {
      const { before, after } = migrationRecord(MIGRATIONS, number)
      if (before !== undefined) record.run(before, nowMs)
      db.exec(forTable(table, MIGRATIONS[number - 1]!.sql))
      record.run(after, nowMs)
    }
    db.exec('COMMIT')
  } catch (error) {
    db.exec('ROLLBACK')
    throw error
  }
}

function isCurrent(db: DatabaseSync, table: string): boolean {
  const sql = `SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE`
  if (db.prepare(sql).get(`${table}_migration`) === undefined) return false
  return appliedCount(db, table) === MIGRATIONS.length
}

function appliedCount(db: DatabaseSync, table: string): number {
  const sql = `SELECT coalesce(min(number), 0) AS lowest, coalesce(max(number), 0) AS highest
    FROM "{table}_migration"`
  const numbers = db.prepare(forTable(table, sql)).get() as unknown as MigrationNumbers
  return appliedMigrations(`"${table}"`, numbers, MIGRATIONS.length)
}
