import { InvalidOptionsError } from '../../../core/errors.ts'
import { describe } from '../../../core/options.ts'
import type { PgPool, PgSingleClient, PostgresJsPool, PostgresPool } from '../client.ts'
import type { Driver } from './driver.ts'
import { pgClientDriver } from './pg-client.ts'
import { pgDriver } from './pg.ts'
import { postgresJsDriver } from './postgres-js.ts'

/** Chooses the driver for the connections that the caller passes to the store. */
export function driverOf(pool: PostgresPool, prepare: boolean): Driver {
  if (isPostgresJs(pool)) return postgresJsDriver(pool, prepare)
  if (isPgPool(pool)) return pgDriver(pool, prepare)
  if (isPgClient(pool)) return pgClientDriver(pool, prepare)
  throw new InvalidOptionsError(
    'postgresStore: pool must be a Pool of "pg", a Client of "pg" (8.21 or newer), or the sql of ' +
      '"postgres" (not that of a transaction or of a reserved connection), ' +
      `got ${typeof pool === 'function' ? 'a function' : describe(pool)}`,
  )
}

function isPostgresJs(pool: unknown): pool is PostgresJsPool {
  return typeof pool === 'function' && 'unsafe' in pool && 'begin' in pool && 'options' in pool
}

/** A Client also has `query` and `connect`, but not the options of a pool. */
function isPgPool(pool: unknown): pool is PgPool {
  if (typeof pool !== 'object' || pool === null) return false
  return 'query' in pool && 'connect' in pool && 'options' in pool
}

/** Older Clients do not report whether a transaction is open on them. */
function isPgClient(pool: unknown): pool is PgSingleClient {
  if (typeof pool !== 'object' || pool === null) return false
  return 'query' in pool && 'getTransactionStatus' in pool
}
