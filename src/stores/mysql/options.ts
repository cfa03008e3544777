import type { Clock } from '../../core/clock.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, flag, rejectUnknownOptions, wholeNumber } from '../../core/options.ts'
import type { MysqlPool } from './client.ts'
import { tablesOf, type Tables } from './sql.ts'

export interface TableOptions {
  /**
   * The database of the tables, where it is not the one that the pool is connected to. `migrate()`
   * makes it where it is missing. Letters, digits and underscores.
   */
  database?: string

  /**
   * Name of the table, also the first part of the names of its history and its migration table.
   * Letters, digits and underscores.
   *
   * @default 'oncekey_record'
   */
  table?: string
}

export interface MysqlStoreOptions extends TableOptions {
  /**
   * A pool of `mysql2/promise` or of `mysql2`. It stays yours: the store does not close it. The
   * store keeps two of its connections (one of a pool smaller than four) free of transactions, so
   * that leases are renewed while handlers work.
   */
  pool: MysqlPool

  /**
   * Keeps expired records in a table of their own instead of removing them. It grows until you
   * delete from it.
   *
   * @default false
   */
  history?: boolean

  /**
   * How long work may keep a transaction open; then its connection is dropped, and with it all
   * that it wrote. It must leave the others time to get a connection.
   *
   * @default 30_000
   */
  transactionMs?: number

  /** For tests. By default the database's own clock decides, the one that all nodes share. */
  clock?: Clock
}

export interface ResolvedMysqlStoreOptions {
  readonly pool: MysqlPool
  readonly tables: Tables
  readonly history: boolean
  readonly transactionMs: number
  readonly clock: Clock | undefined
}

const KNOWN = ['pool', 'database', 'table', 'history', 'transactionMs', 'clock'] as const

const TRANSACTION_MS = 30_000
const TRANSACTION_MS_MAX = 15 * 60 * 1000

/** MySQL takes names of 64 characters; the longest suffix of ours has ten. */
const NAME_PATTERN = /^[a-z_][a-z0-9_]{0,47}$/i

/** Fills defaults and checks every rule once. The caller's object is not touched. */
export function resolveMysqlStoreOptions(options: MysqlStoreOptions): ResolvedMysqlStoreOptions {
  rejectUnknownOptions('mysqlStore', options, KNOWN)
  const { pool, database, table, history, transactionMs, clock } = options
  return Object.freeze({
    pool,
    tables: resolveTables('mysqlStore', {
      ...(database === undefined ? {} : { database }),
      ...(table === undefined ? {} : { table }),
    }),
    history: flag('mysqlStore: history', history, false),
    transactionMs: wholeNumber('mysqlStore: transactionMs', transactionMs, {
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
