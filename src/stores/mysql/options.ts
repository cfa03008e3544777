import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, flag, rejectUnknownOptions, wholeNumber } from '../../core/options.ts'
import type { Clock } from '../../core/time/clock.ts'
import type { MysqlPool } from './client.ts'
import { tablesOf, type Tables } from './sql.ts'

export interface TableOptions {
  /**
   * Database that contains the tables. `migrate()` creates it if it does not exist. At most 48
   * letters, digits and underscores; does not start with a digit.
   *
   * @default the database that the pool connects to
   */
  database?: string

  /**
   * Name of the record table and prefix of the names of the other tables, such as
   * `oncekey_record_history`. At most 48 letters, digits and underscores; does not start with a
   * digit.
   *
   * @default 'oncekey_record'
   */
  table?: string
}

export interface MysqlStoreOptions extends TableOptions {
  /**
   * A pool of `mysql2/promise` or of `mysql2`. The store does not close it. The store uses all but
   * two of its connections for transactions (all but one of a pool smaller than four), so that
   * leases can be renewed while handlers run. Transactions need at least 2 connections.
   */
  pool: MysqlPool

  /**
   * Keeps expired records in a history table instead of removing them. The table grows until you
   * delete rows from it.
   *
   * @default false
   */
  history?: boolean

  /**
   * How long a handler may keep a transaction open, in milliseconds: from 1 to 900_000 (15
   * minutes). After that the store destroys the connection, and the server rolls the transaction
   * back. A longer time lets slow handlers finish, but other transactions wait longer for a
   * connection.
   *
   * @default 30_000
   */
  transactionTimeoutMs?: number

  /** For tests. @default the clock of the database, which all nodes share */
  clock?: Clock
}

export interface ResolvedMysqlStoreOptions {
  readonly pool: MysqlPool
  readonly tables: Tables
  readonly history: boolean
  readonly transactionTimeoutMs: number
  readonly clock: Clock | undefined
}

const KNOWN = ['pool', 'database', 'table', 'history', 'transactionTimeoutMs', 'clock'] as const

const TRANSACTION_MS = 30_000
const TRANSACTION_MS_MAX = 15 * 60 * 1000

/** MySQL permits names of 64 characters, and the longest suffix has 10. */
const NAME_PATTERN = /^[a-z_][a-z0-9_]{0,47}$/i

/** Applies defaults and checks every option. Does not change the caller's object. */
export function resolveMysqlStoreOptions(options: MysqlStoreOptions): ResolvedMysqlStoreOptions {
  rejectUnknownOptions('mysqlStore', options, KNOWN)
  const { pool, database, table, history, transactionTimeoutMs, clock } = options
  return Object.freeze({
    pool,
    tables: resolveTables('mysqlStore', {
      ...(database === undefined ? {} : { database }),
      ...(table === undefined ? {} : { table }),
    }),
    history: flag('mysqlStore: history', history, false),
    transactionTimeoutMs: wholeNumber('mysqlStore: transactionTimeoutMs', transactionTimeoutMs, {
      fallback: TRANSACTION_MS,
      min: 1,
      max: TRANSACTION_MS_MAX,
    }),
    clock,
  })
}

export function resolveTables(where: string, options: TableOptions): Tables {
  rejectUnknownOptions(where, options, ['database', 'table'])
  const { database, table = 'oncekey_record' } = options
  return tablesOf({
    database: database === undefined ? undefined : checkedName(`${where}: database`, database),
    table: checkedName(`${where}: table`, table),
  })
}

function checkedName(where: string, name: unknown): string {
  if (typeof name === 'string' && NAME_PATTERN.test(name)) return name
  throw new InvalidOptionsError(
    `${where} must be a name of at most 48 letters, digits and underscores that does not start ` +
      `with a digit, got ${describe(name)}`,
  )
}
