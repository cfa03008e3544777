/** The database of a soak: its URL, and the number of oncekey rows in it. */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { createConnection, type RowDataPacket } from 'mysql2/promise'
import { Client } from 'pg'
import { startMariadb } from '../../test/servers/mariadb.ts'
import { startPostgres } from '../../test/servers/postgres.ts'
import type { StoreName } from './options.ts'

export interface SoakDatabase {
  /** Empty for SQLite. */
  readonly url: string
  /**
   * Counts records, phases and messages of oncekey, not the rows of the service, which only grow.
   */
  readonly countRows: () => Promise<number>
  readonly close: () => Promise<void>
}

const TABLES = ['oncekey_record', 'oncekey_record_phase', 'oncekey_record_message']
const COUNT = `SELECT ${TABLES.map((table) => `(SELECT count(*) FROM ${table})`).join(' + ')} AS n`

export async function openSoakDatabase(
  store: StoreName,
  dataFolder: string,
): Promise<SoakDatabase> {
  if (store === 'postgres') return openPostgres()
  if (store === 'mysql') return openMariadb()
  return {
    url: '',
    countRows: async () => countInFile(join(dataFolder, 'payments.db')),
    close: async () => undefined,
  }
}

function countInFile(path: string): number {
  if (!existsSync(path)) return 0
  const db = new DatabaseSync(path, { readOnly: true, timeout: 5_000 })
  try {
    return Number(db.prepare(COUNT).get()?.['n'])
  } finally {
    db.close()
  }
}

async function openPostgres(): Promise<SoakDatabase> {
  const server = await startPostgres()
  const url = await server.database()
  return {
    url,
    countRows: async () => {
      const client = new Client({ connectionString: url })
      await client.connect()
      try {
        const { rows } = await client.query<{ n: string }>(COUNT)
        return Number(rows[0]?.n)
      } finally {
        await client.end()
      }
    },
    close: () => server.close(),
  }
}

async function openMariadb(): Promise<SoakDatabase> {
  const server = await startMariadb()
  const url = await server.database()
  return {
    url,
    countRows: async () => {
      const connection = await createConnection(url)
      try {
        const [rows] = await connection.query<RowDataPacket[]>(COUNT)
        return Number(rows[0]?.['n'])
      } finally {
        await connection.end()
      }
    },
    close: () => server.close(),
  }
}
