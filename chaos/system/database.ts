/** The database of a run: its URL, and how to kill and read it. */
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { setTimeout as sleep } from 'node:timers/promises'
import { createConnection } from 'mysql2/promise'
import { Client } from 'pg'
import { startMariadb } from '../../test/servers/mariadb.ts'
import { startPostgres } from '../../test/servers/postgres.ts'
import type { StoreName } from '../arguments.ts'

export type Row = Readonly<Record<string, unknown>>

export interface Database {
  /** Empty if the service keeps a file in its folder. */
  readonly url: string
  readonly dataFolder: string
  /** Kills every process of the database. A file has none. */
  readonly kill: () => Promise<void>
  readonly start: () => Promise<void>
  /** Reads the database on a separate connection. */
  readonly read: <Result>(ask: (rows: ReadRows) => Promise<Result>) => Promise<Result>
  readonly close: () => Promise<void>
}

export type ReadRows = (sql: string) => Promise<Row[]>

export async function startDatabase(store: StoreName, folder: string): Promise<Database> {
  const dataFolder = join(folder, 'data')
  mkdirSync(dataFolder, { recursive: true })
  switch (store) {
    case 'sqlite':
      return sqliteFile(dataFolder)
    case 'postgres':
      return postgresServer(dataFolder)
    case 'mysql':
      return mariadbServer(dataFolder)
  }
}

/**
 * A transaction of a lost client stays open, with its locks, until the server ends it. The guides
 * recommend 60 s; here all times are short. No transaction of the service is idle for so long.
 */
const IDLE_TRANSACTION_SECONDS = 8

const STARTS_MAX = 20
const START_PAUSE_MS = 250

/** Retries, because an outgoing connection of another process may use the port for a moment. */
async function startAgain(start: () => Promise<void>): Promise<void> {
  for (let starts = 1; ; starts++) {
    try {
      return await start()
    } catch (error) {
      if (starts === STARTS_MAX) throw error
      await sleep(START_PAUSE_MS)
    }
  }
}

function sqliteFile(dataFolder: string): Database {
  return {
    url: '',
    dataFolder,
    kill: () => Promise.resolve(),
    start: () => Promise.resolve(),
    async read(ask) {
      const file = new DatabaseSync(join(dataFolder, 'payments.db'), { timeout: 10_000 })
      try {
        return await ask((sql) => Promise.resolve(file.prepare(sql).all() as Row[]))
      } finally {
        file.close()
      }
    },
    close: () => Promise.resolve(),
  }
}

async function postgresServer(dataFolder: string): Promise<Database> {
  const server = await startPostgres({ private: true })
  const own = new URL(await server.database())
  // Set on the server, which takes precedence over the setting of the service.
  const idleMs = IDLE_TRANSACTION_SECONDS * 1_000
  own.searchParams.set('idle_in_transaction_session_timeout', `${idleMs}`)
  const url = own.href
  return {
    url,
    dataFolder,
    kill: server.kill,
    start: () => startAgain(server.start),
    async read(ask) {
      const client = new Client({ connectionString: url })
      // The server may be killed during a read: the query rejects in that case.
      client.on('error', () => undefined)
      await client.connect()
      try {
        return await ask(async (sql) => (await client.query<Row>(sql)).rows)
      } finally {
        await client.end()
      }
    },
    close: server.close,
  }
}

async function mariadbServer(dataFolder: string): Promise<Database> {
  // Set as an argument: the service connects before a statement could change it.
  const settings = [`--idle-transaction-timeout=${IDLE_TRANSACTION_SECONDS}`]
  const server = await startMariadb({ private: true, settings })
  const url = await server.database()
  return {
    url,
    dataFolder,
    kill: server.kill,
    start: () => startAgain(server.start),
    async read(ask) {
      const connection = await createConnection(url)
      connection.on('error', () => undefined)
      try {
        return await ask(async (sql) => (await connection.query(sql))[0] as Row[])
      } finally {
        connection.destroy()
      }
    },
    close: server.close,
  }
}
