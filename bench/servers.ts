/** The servers of a run, with the settings their packages give them, and an engine on each. */
import { Redis } from 'ioredis'
import mysql from 'mysql2/promise'
import pg from 'pg'
import { createEngine, type Engine } from '../src/core/engine.ts'
import { mysqlStore } from '../src/stores/mysql/index.ts'
import { postgresStore } from '../src/stores/postgres/index.ts'
import { redisStore } from '../src/stores/redis/index.ts'
import { startMariadb } from '../test/servers/mariadb.ts'
import { startPostgres } from '../test/servers/postgres.ts'
import { startRedis } from '../test/servers/redis.ts'

export interface Servers {
  readonly postgres: Engine
  readonly mariadb: Engine
  readonly redis: Engine
  readonly redisClient: Redis
  /** A pool on a fresh database of the PostgreSQL server. */
  readonly freshPool: () => Promise<pg.Pool>
  readonly close: () => Promise<void>
}

export async function openServers(connections: number): Promise<Servers> {
  console.log('starting PostgreSQL, MariaDB and Redis')
  const ends: (() => Promise<unknown>)[] = []
  const postgresServer = await startPostgres({ private: true })
  ends.unshift(() => postgresServer.close())
  const mariadbServer = await startMariadb({ private: true })
  ends.unshift(() => mariadbServer.close())
  const redisServer = await startRedis()
  ends.unshift(() => redisServer.close())

  const freshPool = async () => {
    const pool = new pg.Pool({
      connectionString: await postgresServer.database(),
      max: connections,
    })
    ends.unshift(() => pool.end())
    return pool
  }
  const postgres = postgresStore({ pool: await freshPool() })
  await postgres.migrate()
  const mysqlPool = mysql.createPool({
    uri: await mariadbServer.database(),
    connectionLimit: connections,
  })
  ends.unshift(() => mysqlPool.end())
  const mariadb = mysqlStore({ pool: mysqlPool })
  await mariadb.migrate()
  const redisClient = new Redis(redisServer.url)
  ends.unshift(() => redisClient.quit())

  return {
    postgres: createEngine({ store: postgres }),
    mariadb: createEngine({ store: mariadb }),
    redis: createEngine({ store: redisStore({ client: redisClient }) }),
    redisClient,
    freshPool,
    async close() {
      for (const end of ends) await end()
    },
  }
}
