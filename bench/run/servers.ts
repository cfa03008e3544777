/**
 * The private servers of a run, with the default settings of their packages, each started at its
 * first use.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import { createConnection, type RowDataPacket } from 'mysql2/promise'
import pg from 'pg'
import { startMariadb, type MariadbServer } from '../../test/servers/mariadb.ts'
import { startPostgres, type PostgresServer } from '../../test/servers/postgres.ts'
import { startRedis, type RedisServer } from '../../test/servers/redis.ts'
import type { Places } from './contract.ts'

export type ServerName = 'postgres' | 'mariadb' | 'redis'

/** Every subject on Redis has a separate database, which it may empty. */
const REDIS_DATABASES = 64

export class Servers {
  readonly #folder = mkdtempSync(join(tmpdir(), 'oncekey-bench-'))
  readonly #say: (text: string) => void
  #postgres: Promise<PostgresServer> | undefined
  #mariadb: Promise<MariadbServer> | undefined
  #redis: Promise<RedisServer> | undefined
  #redisDatabases = 0

  constructor(say: (text: string) => void) {
    this.#say = say
  }

  /** New databases on the named servers, and a new folder. */
  async places(...names: readonly ServerName[]): Promise<Places> {
    const folder = mkdtempSync(join(this.#folder, 'program-'))
    const addresses: Partial<Record<ServerName, string>> = {}
    for (const name of names) addresses[name] = await this.#database(name)
    return { folder, ...addresses }
  }

  /** The versions of the started servers. */
  async versions(): Promise<Partial<Record<ServerName, string>>> {
    return {
      ...(this.#postgres === undefined ? {} : { postgres: await this.#postgresVersion() }),
      ...(this.#mariadb === undefined ? {} : { mariadb: await this.#mariadbVersion() }),
      ...(this.#redis === undefined ? {} : { redis: await this.#redisVersion() }),
    }
  }

  async close(): Promise<void> {
    // A server that failed to start has already rejected its first use.
    const started = await Promise.allSettled([this.#postgres, this.#mariadb, this.#redis])
    for (const server of started) {
      if (server.status === 'fulfilled') await server.value?.close()
    }
    rmSync(this.#folder, { recursive: true, force: true })
  }

  async #database(name: ServerName): Promise<string> {
    switch (name) {
      case 'postgres':
        return (await this.#startPostgres()).database()
      case 'mariadb':
        return (await this.#startMariadb()).database()
      case 'redis': {
        const { url } = await this.#startRedis()
        return `${url}/${this.#redisDatabases++ % REDIS_DATABASES}`
      }
    }
  }

  #startPostgres(): Promise<PostgresServer> {
    if (this.#postgres === undefined) this.#say('starting PostgreSQL')
    return (this.#postgres ??= startPostgres({ private: true }))
  }

  #startMariadb(): Promise<MariadbServer> {
    if (this.#mariadb === undefined) this.#say('starting MariaDB')
    return (this.#mariadb ??= startMariadb({ private: true }))
  }

  #startRedis(): Promise<RedisServer> {
    if (this.#redis === undefined) this.#say('starting Redis')
    return (this.#redis ??= startRedis(['--databases', `${REDIS_DATABASES}`]))
  }

  async #postgresVersion(): Promise<string> {
    const client = new pg.Client(await this.#database('postgres'))
    await client.connect()
    const { rows } = await client.query<{ server_version: string }>('SHOW server_version')
    await client.end()
    // The packages append their own name.
    return rows[0]!.server_version.split(' ')[0]!
  }

  async #mariadbVersion(): Promise<string> {
    const connection = await createConnection(await this.#database('mariadb'))
    const [rows] = await connection.query<RowDataPacket[]>('SELECT version() AS version')
    await connection.end()
    return String(rows[0]!['version']).split('-')[0]!
  }

  async #redisVersion(): Promise<string> {
    const client = new Redis((await this.#startRedis()).url)
    const info = await client.info('server')
    client.disconnect()
    return /redis_version:(\S+)/.exec(info)?.[1] ?? 'unknown'
  }
}
