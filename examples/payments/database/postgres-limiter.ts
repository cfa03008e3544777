import type pg from 'pg'
import { RateLimiterPostgres } from 'rate-limiter-flexible'
import type { Limit } from './driver.ts'

/** Not in the write-ahead log: after a crash of the database, the limits begin again. */
export const LIMIT_TABLE = `
  CREATE UNLOGGED TABLE IF NOT EXISTS rate_limit (
    key VARCHAR(255) COLLATE "C" PRIMARY KEY, points INTEGER NOT NULL, expire BIGINT)`

/** Longer than the guard waits for a limiter; short, so that a lost connection leaves the pool. */
const ANSWER_MS = 2_000

export function createPostgresLimiter(
  pool: pg.Pool,
  { name, perSecond }: Limit,
): RateLimiterPostgres {
  // Without a name, which some connection poolers do not support, and with a time limit.
  const query = ({ text, values }: pg.QueryConfig) => {
    const timed = { text, values: values ?? [], query_timeout: ANSWER_MS }
    return pool.query(timed)
  }
  return new RateLimiterPostgres({
    storeClient: { query },
    storeType: 'pool',
    tableName: 'rate_limit',
    tableCreated: true,
    keyPrefix: name,
    points: perSecond,
    duration: 1,
    // Above the limit, points are refused from memory for the rest of the second.
    inMemoryBlockOnConsumed: perSecond,
  })
}
