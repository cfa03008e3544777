/**
 * The parts of `mysql2` that are used here. Described, not imported: the package depends on no
 * driver, and whatever behaves like it will do.
 */

/** A row as an array: two columns may have the same name, and names cost bytes. */
export type Row = readonly unknown[]

/** All values are in the text, as literals: nothing is left for a driver to quote or to convert. */
export interface MysqlQuery {
  sql: string
  rowsAsArray: true
  nestTables: false
  typeCast: (field: unknown, next: () => unknown) => unknown
}

/** With the driver's own way to read rows and values, whatever the pool was told. */
export function toQuery(sql: string): MysqlQuery {
  return { sql, rowsAsArray: true, nestTables: false, typeCast: (_, next) => next() }
}

/** What a statement without rows answers. */
export interface MysqlHeader {
  readonly affectedRows: number
  /** Flags of the session after the statement; the first bit: a transaction is open. */
  readonly serverStatus?: number | undefined
}

/** The part of a connection from `mysql2/promise` that is used. */
export interface MysqlConnection {
  query(query: MysqlQuery): Promise<readonly [unknown, unknown]>
}

export interface MysqlPoolConnection extends MysqlConnection {
  release(): void
  destroy(): void
  /** The connection with callbacks behind it: the same object each time that it is given out. */
  readonly connection?: object
}

/** The pool with callbacks behind a pool of promises. */
export interface MysqlCorePool {
  readonly config: object
  on?(event: 'connection', listener: (connection: object) => void): unknown
}

/** The part of a pool from `mysql2/promise` that is used. */
export interface MysqlPromisePool {
  getConnection(): Promise<MysqlPoolConnection>
  readonly pool: MysqlCorePool
}

/** The part of a pool from `mysql2` that is used. */
export interface MysqlCallbackPool {
  promise(): MysqlPromisePool
}

export type MysqlPool = MysqlPromisePool | MysqlCallbackPool
