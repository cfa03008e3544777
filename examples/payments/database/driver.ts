import type { Store } from 'oncekey'
import type { RateLimiterAbstract } from 'rate-limiter-flexible'

export type Value = string | number | null

export type Row = Readonly<Record<string, Value>>

export interface Answer {
  readonly rows: readonly Row[]
  /** Number of rows that were inserted, updated or deleted. */
  readonly changes: number
}

/** One statement, with `?` for each value. All databases of the service accept the same SQL. */
export type Query = (sql: string, values?: readonly Value[]) => Promise<Answer>

/** What a limiter counts. */
export interface Limit {
  /** Keeps the counts of several limiters apart. */
  readonly name: string
  readonly perSecond: number
}

/** The differences between the databases. */
export interface Driver {
  readonly store: Store
  readonly query: Query
  within(tx: unknown): Query
  /** Whether this is the error of an INSERT with an existing primary key. */
  isDuplicate(error: unknown): boolean
  /** Creates the tables of oncekey and ours. Several processes may call it at the same time. */
  makeTables(): Promise<void>
  /** Counts in the database, so that nodes share the limit. On SQLite, counts in this process. */
  limiter(limit: Limit): RateLimiterAbstract
  close(): Promise<void>
}
