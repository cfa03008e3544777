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

/**
 * What the service needs of a database. Its rows and oncekey's records are in the same one, so that
 * a phase of an operation can commit them together.
 */
export interface Database {
  readonly store: Store

  /** A statement by itself: reads what is committed, and commits what it writes. */
  readonly query: Query

  /** Statements inside the transaction that oncekey hands to a phase. */
  within(tx: unknown): Query

  /** Like `query`, for an INSERT. False where a row with this primary key is there already. */
  insertOnce(sql: string, values: readonly Value[]): Promise<boolean>

  /** Makes what is missing. Any number of processes may call it at the same time. */
  migrate(): Promise<void>

  close(): Promise<void>
}

export interface DatabaseSettings {
  /** Empty: a SQLite file. */
  readonly databaseUrl: string
  readonly dataFolder: string
}

/** Loads only the driver that is needed. Nothing is asked of the database yet. */
export async function openDatabase(settings: DatabaseSettings): Promise<Database> {
  const { databaseUrl, dataFolder } = settings
  if (databaseUrl === '') {
    const { openSqlite } = await import('./sqlite.ts')
    return openSqlite(dataFolder)
  }
  if (/^postgres(ql)?:/.test(databaseUrl)) {
    const { openPostgres } = await import('./postgres.ts')
    return openPostgres(databaseUrl)
  }
  const { openMysql } = await import('./mysql.ts')
  return openMysql(databaseUrl)
}
