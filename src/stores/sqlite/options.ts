import { systemClock, type Clock } from '../../core/time/clock.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, flag, oneOf, rejectUnknownOptions, wholeNumber } from '../../core/options.ts'

export interface SqliteStoreOptions {
  /**
   * The database file. Not `:memory:` and not a `file:` URI. The store creates the file and its
   * folder if they are missing.
   */
  path: string

  /**
   * `full` writes every commit to the disk before it is acknowledged. `normal` is several times
   * faster for single writes, but loses the last commits if the power fails or the machine crashes:
   * the store then forgets keys that were answered, and a retry runs their work again. A crash of
   * the process alone loses nothing with either value.
   *
   * @default 'full'
   */
  synchronous?: 'full' | 'normal'

  /**
   * Name of the record table, and prefix of the names of its indexes and of the store's other
   * tables. At most 48 letters, digits and underscores; starts with neither a digit nor `sqlite_`.
   *
   * @default 'oncekey_record'
   */
  table?: string

  /**
   * How long asynchronous work may keep a transaction open; then the transaction is rolled back.
   * From 1 to 900_000 (15 minutes). An open transaction blocks all other writes to the file, so a
   * longer limit delays the renewal of other leases: keep it below two thirds of `leaseMs`, which
   * the store does not check.
   *
   * @default 30_000
   */
  transactionTimeoutMs?: number

  /**
   * Moves expired records into a history table, for audit, instead of removing them. The store
   * never removes records from the history: delete them when your rules allow it.
   *
   * @default false
   */
  history?: boolean

  /** The clock of the store, for tests. @default the system clock */
  clock?: Clock
}

export type ResolvedSqliteStoreOptions = Readonly<Required<SqliteStoreOptions>>

const KNOWN = ['path', 'synchronous', 'table', 'transactionTimeoutMs', 'history', 'clock'] as const

/** With a lease of 60 s renewed every 20 s, a renewal that waits this long is still in time. */
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
    transactionTimeoutMs: wholeNumber(
      'sqliteStore: transactionTimeoutMs',
      options.transactionTimeoutMs,
      {
        fallback: TRANSACTION_MS,
        min: 1,
        max: TRANSACTION_MS_MAX,
      },
    ),
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
        'store needs two; name a file, or use memoryStore() to keep records in memory',
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
