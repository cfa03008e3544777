/** Reads and writes the record table with SQL, in PostgreSQL and SQLite. */
import { DatabaseSync } from 'node:sqlite'
import type pg from 'pg'
import { onTestFinished } from 'vitest'

export interface Records {
  readonly identities: () => Promise<unknown[]>
  /** Tries to insert a copy of every record, each with a new id. */
  readonly copy: () => Promise<void>
}

const TWIN = 'CREATE TABLE twin AS SELECT * FROM oncekey_record'
const COPY = 'INSERT INTO oncekey_record SELECT * FROM twin'

export function recordsOf(pool: pg.Pool): Records {
  return {
    identities: async () => {
      const { rows } = await pool.query<{ id: string }>(
        `SELECT encode(identity, 'hex') AS id FROM oncekey_record ORDER BY id`,
      )
      return rows.map(({ id }) => id)
    },
    copy: async () => {
      await pool.query(`${TWIN}; UPDATE twin SET record_id = gen_random_uuid(); ${COPY}`)
    },
  }
}

export function openRecords(path: string) {
  const file = new DatabaseSync(path)
  onTestFinished(() => file.close())
  const ids = 'SELECT lower(hex(identity)) AS id FROM oncekey_record ORDER BY id'
  const newIds = 'UPDATE twin SET record_id = hex(randomblob(16))'
  return {
    file,
    identities: async () =>
      file
        .prepare(ids)
        .all()
        .map(({ id }) => id),
    copy: async () => file.exec(`${TWIN}; ${newIds}; ${COPY}`),
    /** Makes all records expired, and adds `more` copies of each. */
    expire: (more: number) =>
      file.exec(`UPDATE oncekey_record SET expires_at_ms = 1;
        ${TWIN} WHERE false;
        WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ${more})
          INSERT INTO twin SELECT r.* FROM oncekey_record r, n;
        UPDATE twin SET identity = randomblob(16); ${newIds}; ${COPY}`),
  } satisfies Records & Record<string, unknown>
}

/** Locks a record, as a transaction in progress does. Returns the function that releases it. */
export async function lockRecord(pool: pg.Pool, key: string): Promise<() => Promise<void>> {
  const client = await pool.connect()
  await client.query('BEGIN')
  await client.query('SELECT FROM oncekey_record WHERE key = $1 FOR UPDATE', [key])
  return async () => {
    await client.query('COMMIT')
    client.release()
  }
}

/** Removes expired records like a reaper, in a transaction that stays open. */
export async function beginReap(pool: pg.Pool) {
  const client = await pool.connect()
  await client.query('BEGIN')
  const reaped = await client.query<{ out_removed: number }>(
    'SELECT * FROM oncekey_record_reap_4(NULL, 100, false, NULL, NULL)',
  )
  const locks = await client.query<{ mode: string }>(`SELECT DISTINCT mode FROM pg_locks
    WHERE relation = 'oncekey_record'::regclass AND pid = pg_backend_pid() ORDER BY mode`)
  return {
    removed: reaped.rows[0]!.out_removed,
    locks: locks.rows.map(({ mode }) => mode),
    commit: async () => {
      await client.query('COMMIT')
      client.release()
    },
  }
}
