import { InvalidOptionsError } from '../../core/errors.ts'
import { describe } from '../../core/options.ts'
import type { Driver, PgPool, PostgresJsPool, PostgresPool } from './client.ts'
import { pgDriver } from './pg-driver.ts'
import { postgresJsDriver } from './postgres-js-driver.ts'

export function driverOf(pool: PostgresPool, prepare: boolean): Driver {
  if (isPostgresJs(pool)) return postgresJsDriver(pool, prepare)
  if (isPgPool(pool)) return pgDriver(pool, prepare)
  throw new InvalidOptionsError(
    'postgresStore: pool must be a Pool of "pg" or the sql of "postgres". A single Client will ' +
      'not do: an open transaction on it would hold up every other key. ' +
      `Got ${typeof pool === 'function' ? 'a function' : describe(pool)}`,
  )
}

function isPostgresJs(pool: unknown): pool is PostgresJsPool {
  return typeof pool === 'function' && 'unsafe' in pool && 'begin' in pool && 'options' in pool
}

/** A Client of `pg` has `query` and `connect`, too, but no options of a pool. */
function isPgPool(pool: unknown): pool is PgPool {
  if (typeof pool !== 'object' || pool === null) return false
  return 'query' in pool && 'connect' in pool && 'options' in pool
}
