import type { Pool, PoolConnection, QueryOptions } from 'mysql2/promise'
import { RateLimiterMySQL } from 'rate-limiter-flexible'
import type { Limit } from './driver.ts'

/** The limiter's own table would not distinguish tenants by upper and lower case. */
export const LIMIT_TABLE = `
  CREATE TABLE IF NOT EXISTS rate_limit (
    \`key\` VARCHAR(255) PRIMARY KEY, points INT NOT NULL, expire BIGINT UNSIGNED)
  CHARACTER SET utf8mb4 COLLATE utf8mb4_bin`

/** Longer than the guard waits for a limiter; short, so that a lost connection leaves the pool. */
const ANSWER_MS = 2_000

export function createMysqlLimiter(
  pool: Pool,
  dbName: string,
  { name, perSecond }: Limit,
): RateLimiterMySQL {
  return new RateLimiterMySQL({
    storeClient: toCallbacks(pool),
    storeType: 'pool',
    dbName,
    tableName: 'rate_limit',
    tableCreated: true,
    keyPrefix: name,
    points: perSecond,
    duration: 1,
    // Above the limit, points are refused from memory for the rest of the second.
    inMemoryBlockOnConsumed: perSecond,
  })
}

type Done<Value> = (error: unknown, value?: Value) => void

/** The part of a connection that the limiter uses. */
interface CallbackConnection {
  query(sql: string, done: Done<unknown>): void
  query(sql: string, values: unknown[], done: Done<unknown>): void
  rollback(): void
  release(): void
}

/**
 * The pool for the limiter, which expects callbacks. A statement has a time limit, and a connection
 * whose statement failed is closed: without that, calls that get no answer would keep the pool.
 */
function toCallbacks(pool: Pool) {
  return {
    getConnection(done: Done<CallbackConnection>): void {
      pool.getConnection().then((connection) => done(null, toCallback(connection)), done)
    },
  }
}

function toCallback(connection: PoolConnection): CallbackConnection {
  let hasFailed = false
  return {
    query(sql: string, ...rest: [Done<unknown>] | [unknown[], Done<unknown>]) {
      const [values, done] = rest.length === 1 ? [[], rest[0]] : rest
      const statement: QueryOptions = { sql, values, timeout: ANSWER_MS }
      connection.query(statement).then(
        ([rows]) => done(null, rows),
        (error: unknown) => {
          hasFailed = true
          done(error)
        },
      )
    },
    // Closing the connection ends its transaction.
    rollback: () => undefined,
    release: () => (hasFailed ? connection.destroy() : connection.release()),
  }
}
