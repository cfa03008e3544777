import type { Clock } from '../../core/clock.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, flag, rejectUnknownOptions, wholeNumber } from '../../core/options.ts'
import type { PostgresPool } from './client.ts'
import type { TableName } from './sql.ts'

export interface TableOptions {
  /**
   * The schema of the table and of its functions. `migrate()` makes it where it is missing.
   * Letters, digits and underscores.
   *
   * @default 'public'
   */
  schema?: string

  /**
   * Name of the table, also the first part of the names of its indexes, its functions and its
   * migration table. Letters, digits and underscores.
   *
   * @default 'oncekey_record'
   */
  table?: string
}

export interface PostgresStoreOptions extends TableOptions {
  /**
   * A `Pool` of `pg`, or the `sql` of `postgres.js`. It stays yours: the store does not close it.
   * The store keeps two of its connections (one of a pool smaller than four) free of
   * transactions, so that leases are renewed while handlers work.
   *
   * A single, connected `Client` of `pg` will do where nothing needs a transaction.
   */
  pool: PostgresPool

  /**
   * Prepared statements save the database some parsing. `false` for pgbouncer in transaction
   * mode, unless it is 1.21 or newer and set up for them.
   *
   * @default true
   */
  prepare?: boolean

  /**
   * Wakes callers who wait for a result (`waitMs`) by `NOTIFY`, heard on a connection of the
   * store's own that is opened when somebody waits. Without it they look again at intervals.
   * It costs nothing while nobody waits. Behind pgbouncer in transaction mode nothing is heard.
   *
   * @default the value of `prepare`, and `false` with a single Client
   */
  listen?: boolean

  /**
   * How long work may keep a transaction open; then its connection is dropped, and with it all
   * that it wrote. It must leave the others time to get a connection.
   *
   * @default 30_000
   */
  transactionMs?: number

  /**
   * Keeps expired records in a history table, for audit, instead of removing them. It only grows:
   * removing what is too old is up to you.
   *
   * @default false
   */
  history?: boolean

  /** For tests. By default the database's own clock decides, the one that all nodes share. */
  clock?: Clock
}

export interface ResolvedPostgresStoreOptions {
  readonly pool: PostgresPool
  readonly name: TableName
  readonly prepare: boolean
  /** `undefined`: where it can be had. */
  readonly listen: boolean | undefined
  readonly transactionMs: number
  readonly history: boolean
  readonly clock: Clock | undefined
}

const KNOWN = [
  'pool',
  'schema',
  'table',
  'prepare',
  'listen',
  'transactionMs',
  'history',
  'clock',
] as const satisfies readonly (keyof PostgresStoreOptions)[]

const TRANSACTION_MS = 30_000
const TRANSACTION_MS_MAX = 15 * 60 * 1000

/** PostgreSQL cuts names at 63 bytes; the longest suffix of ours has 15. */
const NAME_PATTERN = /^[a-z_][a-z0-9_]{0,47}$/i

/** Fills defaults and checks every rule once. The caller's object is not touched. */
export function resolvePostgresStoreOptions(
  options: PostgresStoreOptions,
): ResolvedPostgresStoreOptions {
  rejectUnknownOptions('postgresStore', options, KNOWN)
  const { pool, schema, table, transactionMs, history, clock } = options
  const prepare = flag('postgresStore: prepare', options.prepare, true)
  return Object.freeze({
    pool,
    name: resolveTableName('postgresStore', {
      ...(schema === undefined ? {} : { schema }),
      ...(table === undefined ? {} : { table }),
    }),
    prepare,
    listen: toListen(options.listen, prepare),
    transactionMs: wholeNumber('postgresStore: transactionMs', transactionMs, {
      fallback: TRANSACTION_MS,
      min: 1,
      max: TRANSACTION_MS_MAX,
    }),
    history: flag('postgresStore: history', history, false),
    clock,
  })
}

/** Whoever cannot prepare statements is behind something that cannot listen, either. */
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
