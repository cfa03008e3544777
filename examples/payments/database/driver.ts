import type { Store } from 'oncekey'

export type Value = string | number | null

export type Row = Readonly<Record<string, Value>>

export interface Answer {
  readonly rows: readonly Row[]
  /** How many rows were inserted, updated or deleted. */
  readonly changes: number
}

/** One statement, with `?` for each value. Every database of the service takes the same SQL. */
export type Query = (sql: string, values?: readonly Value[]) => Promise<Answer>

/** What differs from one database to the next. */
export interface Driver {
  readonly store: Store
  readonly query: Query
  within(tx: unknown): Query
  /** Whether this is the error of an INSERT whose primary key is there already. */
  isDuplicate(error: unknown): boolean
  /** Those of oncekey and ours. Any number of processes may call it at the same time. */
  makeTables(): Promise<void>
  close(): Promise<void>
}
