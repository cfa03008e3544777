import { findBinaries as findPostgres } from './postgres.ts'
import { findBinaries as findRedis } from './redis.ts'

/** Once, before any test file: two of them must not install the same package side by side. */
export function setup(): void {
  if (process.env['ONCEKEY_TEST_POSTGRES_URL'] === undefined) findPostgres()
  if (process.env['ONCEKEY_TEST_REDIS_URL'] === undefined) findRedis()
}
