import { findMariadb } from './mariadb.ts'
import { findNats } from './nats.ts'
import { findPgbouncer } from './pgbouncer.ts'
import { findBinaries as findPostgres } from './postgres.ts'
import { findRabbitmq } from './rabbitmq.ts'
import { findBinaries as findRedis } from './redis.ts'
import { keepTemplates } from './templates.ts'

/**
 * Runs once before any test file, because two files must not install the same package at once. The
 * returned function runs after the last file.
 */
export function setup(): () => void {
  findUnlessGiven('ONCEKEY_TEST_POSTGRES_URL', findPostgres)
  findUnlessGiven('ONCEKEY_TEST_MYSQL_URL', findMariadb)
  findUnlessGiven('ONCEKEY_TEST_REDIS_URL', findRedis)
  findUnlessGiven('ONCEKEY_TEST_RABBITMQ_URL', findRabbitmq)
  findUnlessGiven('ONCEKEY_TEST_NATS_URL', findNats)
  findPgbouncer()
  return keepTemplates()
}

/** If the environment names a server, only tests that stop theirs need the programs. */
function findUnlessGiven(name: string, find: () => unknown): void {
  try {
    find()
  } catch (error) {
    if (process.env[name] === undefined) throw error
  }
}
