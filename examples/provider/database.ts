import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'

/** How long an outside reader, such as a backup, may delay a commit. */
const BUSY_MS = 5_000

const SCHEMA = `
  CREATE TABLE IF NOT EXISTS effect (
    sequence INTEGER PRIMARY KEY,
    effect_id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    status TEXT NOT NULL,
    key TEXT NOT NULL,
    amount_cents INTEGER NOT NULL CHECK (amount_cents > 0),
    currency TEXT NOT NULL,
    reference TEXT NOT NULL,
    account TEXT NOT NULL,
    of_id TEXT,
    decline_code TEXT,
    created_at TEXT NOT NULL
  ) STRICT;
  CREATE INDEX IF NOT EXISTS effect_by_key ON effect (key, sequence);
  CREATE INDEX IF NOT EXISTS effect_by_of ON effect (of_id) WHERE of_id IS NOT NULL;

  CREATE TABLE IF NOT EXISTS late_effect (
    key TEXT PRIMARY KEY,
    request TEXT NOT NULL,
    due_ms INTEGER NOT NULL
  ) STRICT;

  CREATE TABLE IF NOT EXISTS delivery (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    sequence INTEGER NOT NULL,
    body TEXT NOT NULL,
    is_copy INTEGER NOT NULL,
    is_held INTEGER NOT NULL,
    after_ms INTEGER NOT NULL,
    due_ms INTEGER,
    tries INTEGER NOT NULL
  ) STRICT;
  CREATE INDEX IF NOT EXISTS delivery_due ON delivery (due_ms, number) WHERE due_ms IS NOT NULL;
  CREATE INDEX IF NOT EXISTS delivery_by_sequence ON delivery (sequence, number);
  CREATE INDEX IF NOT EXISTS delivery_held ON delivery (number) WHERE is_held = 1`

export interface Database {
  /** A connection whose commits are on the disk. */
  readonly durable: DatabaseSync
  /** A connection whose commits survive a crash, but no power cut: for work that may repeat. */
  readonly quick: DatabaseSync
  close(): void
}

export function openDatabase(dataFolder: string): Database {
  mkdirSync(dataFolder, { recursive: true })
  const path = join(dataFolder, 'provider.db')
  const durable = openFile(path, 'FULL')
  inTransaction(durable, () => durable.exec(SCHEMA))
  const quick = openFile(path, 'NORMAL')
  return {
    durable,
    quick,
    close() {
      quick.close()
      durable.close()
    },
  }
}

/** Commits all or nothing. The work is synchronous, so no other code runs in between. */
export function inTransaction<Result>(db: DatabaseSync, work: () => Result): Result {
  db.exec('BEGIN IMMEDIATE')
  try {
    const result = work()
    db.exec('COMMIT')
    return result
  } catch (error) {
    if (db.isTransaction) db.exec('ROLLBACK')
    throw error
  }
}

function openFile(path: string, synchronous: 'FULL' | 'NORMAL'): DatabaseSync {
  const db = new DatabaseSync(path, { timeout: BUSY_MS })
  db.exec(`PRAGMA journal_mode = WAL; PRAGMA synchronous = ${synchronous}`)
  return db
}
