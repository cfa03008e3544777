import { systemClock, type Clock } from '../../core/clock.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, flag, oneOf, rejectUnknownOptions, wholeNumber } from '../../core/options.ts'

export interface SqliteStoreOptions {
  /** The database file. It and its folder are made where they are missing. */
  path: string

  /**
   * `full` has every commit on the disk before it is acknowledged. `normal` is several times
   * faster for single writes, and gives up the last commits when the power fails or the machine
   * crashes: keys that were answered are then forgotten, and a retry runs them again. A crash of
   * the process alone loses nothing either way.
   *
   * @default 'full'
   */
  synchronous?: 'full' | 'normal'

  /**
   * Name of the table, also the first part of the names of its indexes, of its migration table and
   * of its history. Letters, digits and underscores.
   *
   * @default 'oncekey_record'
   */
  table?: string

  /**
   * How long asynchronous work may keep a transaction, and with it the only writer, to itself;
   * then it is rolled back. It must leave the leases of other keys time to be renewed.
   *
   * @default 30_000
   */
  transactionMs?: number

  /**
   * Moves expired records into a table of their own, for audit, instead of removing them. Nothing
   * ever removes them from there: how long they are kept is yours to decide.
   *
   * @default false
   */
  history?: boolean

  /** For tests. @default the system's clock */
  clock?: Clock
}

export type ResolvedSqliteStoreOptions = Readonly<Required<SqliteStoreOptions>>

const KNOWN = ['path', 'synchronous', 'table', 'transactionMs', 'history', 'clock'] as const

/** With a lease of 60 s renewed every 20 s, a renewal that waits this long still comes in time. */
const TRANSACTION_MS = 30_000
const TRANSACTION_MS_MAX = 15 * 60 * 1000

/** Short enough that the longest index name stays readable. */
const TABLE_PATTERN = /^[a-z_][a-z0-9_]{0,47}$/i

/** Fills defaults and checks every rule once. The caller's object is not touched. */
export function resolveSqliteStoreOptions(options: SqliteStoreOptions): ResolvedSqliteStoreOptions {
  rejectUnknownOptions('sqliteStore', options, KNOWN)
  return Object.freeze({
    path: checkedPath(options.path),
    synchronous: oneOf('sqliteStore: synchronous', options.synchronous, {
      fallback: 'full',
      words: ['full', 'normal'],
    }),
    table: checkedTable(options.table ?? 'oncekey_record'),
    transactionMs: wholeNumber('sqliteStore: transactionMs', options.transactionMs, {
      fallback: TRANSACTION_MS,
      min: 1,
      max: TRANSACTION_MS_MAX,
    }),
    history: flag('sqliteStore: history', options.history, false),
    clock: options.clock ?? systemClock,
  })
}

function checkedPath(path: unknown): string {
  if (typeof path !== 'string' || path === '') {
    throw new InvalidOptionsError(`sqliteStore: path must name a file, got ${describe(path)}`)
  }
  if (path === ':memory:') {
    throw new InvalidOptionsError(
      'sqliteStore: path ":memory:" is a database that only one connection can see, and the ' +
        'store needs two; use memoryStore() for a store that is not kept',
    )
  }
  if (path.startsWith('file:')) {
    throw new InvalidOptionsError(
      `sqliteStore: path must be a plain file path, not a URI, got ${describe(path)}`,
    )
  }
  return path
}

function checkedTable(table: unknown): string {
  if (typeof table !== 'string' || !TABLE_PATTERN.test(table) || /^sqlite_/i.test(table)) {
    throw new InvalidOptionsError(
      'sqliteStore: table must be a name of at most 48 letters, digits and underscores that ' +
        `starts with neither a digit nor "sqlite_", got ${describe(table)}`,
    )
  }
  return table
}
