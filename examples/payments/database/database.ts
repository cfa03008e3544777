import type { Store } from 'oncekey'
import type { RateLimiterAbstract } from 'rate-limiter-flexible'
import type { Driver, Limit, Query, Value } from './driver.ts'
import { PRODUCTS } from './schema.ts'

export type { Limit, Query, Row, Value } from './driver.ts'

/**
 * The database of the service. Its rows and oncekey's records are in the same database, so that a
 * phase of an operation can commit them together.
 */
export interface Database {
  readonly store: Store

  /** A single statement: reads committed rows, and commits its writes. */
  readonly query: Query

  /** Statements inside the transaction that oncekey passes to a phase. */
  within(tx: unknown): Query

  /** Like `query`, for an INSERT. Returns false if the primary key exists already. */
  insertOnce(sql: string, values: readonly Value[]): Promise<boolean>

  /** Creates missing tables. Several processes may call it at the same time. */
  migrate(): Promise<void>

  /** Counts in the database, so that nodes share the limit. On SQLite, counts in this process. */
  limiter(limit: Limit): RateLimiterAbstract

  close(): Promise<void>
}

/** A statement that failed for any reason. */
export class DatabaseFailedError extends Error {
  override readonly name = 'DatabaseFailedError'
}

export interface DatabaseSettings {
  /** Empty for a SQLite file. */
  readonly databaseUrl: string
  readonly dataFolder: string
}

/** Opens the database without a call to the server. */
export async function openDatabase(settings: DatabaseSettings): Promise<Database> {
  const driver = await openDriver(settings)
  const insertOnce: Database['insertOnce'] = async (sql, values) => {
    try {
      await driver.query(sql, values)
      return true
    } catch (error) {
      // Databases agree on INSERT, but not on how to say that a row may be there already.
      if (driver.isDuplicate(error)) return false
      throw failed(error)
    }
  }
  return {
    store: driver.store,
    query: reportingFailures(driver.query),
    within: (tx) => reportingFailures(driver.within(tx)),
    insertOnce,
    async migrate() {
      await driver.makeTables()
      // Once: what was sold since then is not put back by the next start.
      for (const { sku, priceCents, stock } of PRODUCTS) {
        await insertOnce(STOCK, [sku, priceCents, stock])
      }
    },
    limiter: (limit) => driver.limiter(limit),
    close: () => driver.close(),
  }
}

const STOCK = 'INSERT INTO product (sku, price_cents, stock) VALUES (?, ?, ?)'

/** Loads only the required driver. */
async function openDriver({ databaseUrl, dataFolder }: DatabaseSettings): Promise<Driver> {
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

function reportingFailures(query: Query): Query {
  return async (sql, values) => {
    try {
      return await query(sql, values)
    } catch (error) {
      throw failed(error)
    }
  }
}

function failed(cause: unknown): DatabaseFailedError {
  const reason = cause instanceof Error ? cause.message : String(cause)
  return new DatabaseFailedError(`the database failed: ${reason}`, { cause })
}
