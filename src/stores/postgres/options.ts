import type { Clock } from '../../core/time/clock.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, flag, rejectUnknownOptions, wholeNumber } from '../../core/options.ts'
import type { PostgresPool } from './client.ts'
import type { TableName } from './sql.ts'

export interface TableOptions {
  /**
   * Schema of the tables and functions. `migrate()` creates it if it is missing. At most 48
   * letters, digits and underscores; does not start with a digit.
   *
   * @default 'public'
   */
  schema?: string

  /**
   * Name of the record table. The names of its indexes, its functions and its other tables begin
   * with it. At most 48 letters, digits and underscores; does not start with a digit.
   *
   * @default 'oncekey_record'
   */
  table?: string
}

export interface PostgresStoreOptions extends TableOptions {
  /**
   * A `Pool` of `pg`, or the `sql` of `postgres.js`. The store does not close it. Transactions
   * leave two of its connections free (one of a pool with fewer than four), so that leases are
   * renewed while handlers run. Transactions need at least 2 connections. The store warns about a
   * missing `connectionTimeoutMillis`, and about a `connect_timeout` that is missing or over 5 s.
   *
   * A single, connected `Client` of `pg` also works if no handler uses a transaction.
   */
  pool: PostgresPool

  /**
   * Uses prepared statements, which save the database some parsing. Set it to `false` behind
   * pgbouncer in transaction mode, unless pgbouncer is 1.21 or newer and configured for them.
   *
   * @default true
   */
  prepare?: boolean

  /**
   * Wakes requests that wait for a result (`waitMs`) with `NOTIFY`. The store listens on one extra
   * connection, which it opens when a request waits; it costs nothing while no request waits.
   * Without it, requests poll at intervals. Set it to `false` behind pgbouncer in transaction mode,
   * which passes no notifications on.
   *
   * @default the value of `prepare`, and `false` with a single Client
   */
  listen?: boolean

  /**
   * How long a handler may keep a transaction open, in milliseconds. After that the store closes
   * the connection and the database rolls the transaction back. A long limit lets slow handlers
   * finish but keeps their connections from other requests. From 1 to 900_000 (15 minutes).
   *
   * @default 30_000
   */
  transactionTimeoutMs?: number

  /**
   * Moves expired records to a history table, for audit, instead of deleting them. The store
   * never deletes from that table, so remove old rows yourself.
   *
   * @default false
   */
  history?: boolean

  /**
   * Replaces the clock in tests.
   *
   * @default the clock of the database, which all nodes share
   */
  clock?: Clock
}

export interface ResolvedPostgresStoreOptions {
  readonly pool: PostgresPool
  readonly name: TableName
  readonly prepare: boolean
  /** `undefined`: listen if the driver can. */
  readonly listen: boolean | undefined
  readonly transactionTimeoutMs: number
  readonly history: boolean
  readonly clock: Clock | undefined
}

const KNOWN = [
  'pool',
  'schema',
  'table',
  'prepare',
  'listen',
  'transactionTimeoutMs',
  'history',
  'clock',
] as const satisfies readonly (keyof PostgresStoreOptions)[]

const TRANSACTION_MS = 30_000
const TRANSACTION_MS_MAX = 15 * 60 * 1000

/** PostgreSQL cuts names at 63 bytes; the longest suffix that the store adds has 15. */
const NAME_PATTERN = /^[a-z_][a-z0-9_]{0,47}$/i

/** Fills in defaults and checks every rule once. Does not change the caller's object. */
export function resolvePostgresStoreOptions(
  options: PostgresStoreOptions,
): ResolvedPostgresStoreOptions {
  rejectUnknownOptions('postgresStore', options, KNOWN)
  const { pool, schema, table, transactionTimeoutMs, history, clock } = options
  const prepare = flag('postgresStore: prepare', options.prepare, true)
  return Object.freeze({
    pool,
    name: resolveTableName('postgresStore', {
      ...(schema === undefined ? {} : { schema }),
      ...(table === undefined ? {} : { table }),
    }),
    prepare,
    listen: toListen(options.listen, prepare),
    transactionTimeoutMs: wholeNumber('postgresStore: transactionTimeoutMs', transactionTimeoutMs, {
      fallback: TRANSACTION_MS,
      min: 1,
      max: TRANSACTION_MS_MAX,
    }),
    history: flag('postgresStore: history', history, false),
    clock,
  })
}

/** A pooler that cannot prepare statements cannot pass notifications on either. */
function toListen(listen: unknown, prepare: boolean): boolean | undefined {
  if (listen !== undefined) return flag('postgresStore: listen', listen, false)
  return prepare ? undefined : false
}

export function resolveTableName(where: string, options: TableOptions): TableName {
  rejectUnknownOptions(where, options, ['schema', 'table'])
  return Object.freeze({
    schema: checkedName(`${where}: schema`, options.schema ?? 'public'),
    table: checkedName(`${where}: table`, options.table ?? 'oncekey_record'),
  })
}

function checkedName(where: string, name: unknown): string {
  if (typeof name === 'string' && NAME_PATTERN.test(name)) return name
  throw new InvalidOptionsError(
    `${where} must be a name of at most 48 letters, digits and underscores that does not start ` +
      `with a digit, got ${describe(name)}`,
  )
}
