/**
 * The parts of `mysql2` that the store uses. Described here and not imported, because the package
 * depends on no driver; a client with the same interface works as well.
 */

/** A row as an array: two columns may have the same name, and names take bytes. */
export type Row = readonly unknown[]

/** All values are literals in the text, so that the driver quotes and converts nothing. */
export interface MysqlQuery {
  sql: string
  rowsAsArray: true
  nestTables: false
  typeCast: (field: unknown, next: () => unknown) => unknown
}

/** Overrides settings of the pool that change how rows and values are read. */
export function toQuery(sql: string): MysqlQuery {
  return { sql, rowsAsArray: true, nestTables: false, typeCast: (_, next) => next() }
}

/** Response to a statement without rows. */
export interface MysqlHeader {
  readonly affectedRows: number
  /** Flags of the session after the statement. The first bit means that a transaction is open. */
  readonly serverStatus?: number | undefined
}

/** A connection of `mysql2/promise`. */
export interface MysqlConnection {
  query(query: MysqlQuery): Promise<readonly [unknown, unknown]>
}

export interface MysqlPoolConnection extends MysqlConnection {
  release(): void
  destroy(): void
  /** The callback connection that this object wraps: always the same object. */
  readonly connection?: object
}

/** The callback pool that a promise pool wraps. */
export interface MysqlCorePool {
  readonly config: object
  on?(event: 'connection', listener: (connection: object) => void): unknown
}

/** A pool of `mysql2/promise`. */
export interface MysqlPromisePool {
  getConnection(): Promise<MysqlPoolConnection>
  readonly pool: MysqlCorePool
}

/** A pool of `mysql2`. */
export interface MysqlCallbackPool {
  promise(): MysqlPromisePool
}

export type MysqlPool = MysqlPromisePool | MysqlCallbackPool
