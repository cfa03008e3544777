import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { setTimeout as sleep } from 'node:timers/promises'
import { sqliteStore, type SqliteTransaction } from 'oncekey/sqlite'
import { RateLimiterMemory } from 'rate-limiter-flexible'
import type { Answer, Driver, Row, Value } from './driver.ts'
import { INDEXES, tablesFor, type Dialect } from './schema.ts'

const DIALECT: Dialect = { text: () => 'TEXT', tableOptions: '' }

/** One file for all data, and for every process of this machine. */
export function openSqlite(dataFolder: string): Driver {
  mkdirSync(dataFolder, { recursive: true })
  const path = join(dataFolder, 'payments.db')
  const store = sqliteStore({ path })
  const own = new DatabaseSync(path)
  return {
    store,
    query: (sql, values) => whileBusy(() => run(own, sql, values)),
    within: (tx) => async (sql, values) => run(tx as SqliteTransaction, sql, values),
    isDuplicate: (error) => codeOf(error) === CONSTRAINT_PRIMARY_KEY,
    async makeTables() {
      await whileBusy(() => makeTables(own))
    },
    limiter: ({ name, perSecond }) =>
      new RateLimiterMemory({ keyPrefix: name, points: perSecond, duration: 1 }),
    async close() {
      own.close()
      await store.close()
    },
  }
}

/** Creates all tables in one transaction: the last table marks the end. */
function makeTables(db: DatabaseSync): void {
  db.exec('BEGIN IMMEDIATE')
  try {
    const made = db.prepare(`SELECT 1 FROM sqlite_schema WHERE name = 'provider_event'`).get()
    const statements = made === undefined ? [...tablesFor(DIALECT), ...INDEXES] : []
    for (const statement of statements) db.exec(statement)
    db.exec('COMMIT')
  } catch (error) {
    db.exec('ROLLBACK')
    throw error
  }
}

function run(
  db: Pick<SqliteTransaction, 'prepare'>,
  sql: string,
  values: readonly Value[] = [],
): Answer {
  const statement = db.prepare(sql)
  if (/^\s*SELECT\b/i.test(sql)) {
    return { rows: statement.all(...values) as Row[], changes: 0 }
  }
  const { changes } = statement.run(...values)
  return { rows: [], changes: Number(changes) }
}

const BUSY_MS_MAX = 5_000
const BUSY_PAUSE_MS = 5

/**
 * SQLite has one writer at a time. Its built-in wait would block this whole process, and the other
 * writer may be a phase of this process: so this retries asynchronously.
 */
async function whileBusy<Result>(attempt: () => Result): Promise<Result> {
  for (let waitedMs = 0; ; waitedMs += BUSY_PAUSE_MS) {
    try {
      return attempt()
    } catch (error) {
      if (!isBusy(error) || waitedMs >= BUSY_MS_MAX) throw error
      await sleep(BUSY_PAUSE_MS)
    }
  }
}

const BUSY = 5
const CONSTRAINT_PRIMARY_KEY = 1555

/** The lower byte is the kind of an error, the rest is the extended code. */
function isBusy(error: unknown): boolean {
  return (codeOf(error) & 0xff) === BUSY
}

function codeOf(error: unknown): number {
  return error instanceof Error && 'errcode' in error ? Number(error.errcode) : 0
}
