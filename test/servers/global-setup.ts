import { findPgbouncer } from './pgbouncer.ts'
import { findBinaries } from './postgres.ts'

/** Once, before any test file: two of them must not install the same package side by side. */
export function setup(): void {
  if (process.env['ONCEKEY_TEST_POSTGRES_URL'] === undefined) findBinaries()
  findPgbouncer()
}
