/** Inserts many records by SQL, as a service has after weeks. */
import pg from 'pg'
import { FINGERPRINT, REPLY_BYTES } from './work.ts'

export interface Fill {
  /** The first number: no two fills of one table may share a number. */
  readonly from: number
  readonly rows: number
  readonly kind: 'kept' | 'expired' | 'lapsed'
}

const FILL_ROWS = 250_000
const WRITERS = 2

const INSERT = `
  INSERT INTO oncekey_record (identity, record_id, attempt, lapses, lease_until, created_at,
    last_run_at, completed_at, expires_at, state, on_lapse, after_expiry, token, fingerprint,
    tenant, operation, key, result)
  SELECT decode(md5(n::text), 'hex'), gen_random_uuid(), 1, 0, now() + $3::interval, now(), now(),
    CASE WHEN $5::text = 'completed' THEN now() END,
    now() + $4::interval + n * interval '1 microsecond', $5::text::oncekey_record_state,
    'unknown', 'new', md5((-n)::text), $6, 'bench', 'POST /payments', gen_random_uuid()::text,
    CASE WHEN $5::text = 'completed' THEN $7::bytea END
  FROM generate_series($1::int, $2::int) n`

/** Random identities in insertion order, as requests arrive. */
export async function insertRows(pool: pg.Pool, { from, rows, kind }: Fill): Promise<void> {
  const isLapsed = kind === 'lapsed'
  await pool.query(INSERT, [
    from,
    from + rows - 1,
    isLapsed ? '-1 hour' : '0',
    kind === 'expired' ? '-1 day' : '1 day',
    isLapsed ? 'in_progress' : 'completed',
    FINGERPRINT,
    Buffer.from(REPLY_BYTES),
  ])
}

/**
 * Fills a new table. Its indexes are disabled during the fill and rebuilt at the end, with a third
 * free space, as after random inserts. Row by row this would take many times as long.
 */
export async function fillTable(
  url: string,
  fills: readonly Fill[],
  say: (text: string) => void,
): Promise<void> {
  const pool = new pg.Pool({ connectionString: url, max: WRITERS })
  const total = fills.reduce((sum, { rows }) => sum + rows, 0)
  let done = 0
  const chunks = fills.flatMap(inChunks)
  const write = async () => {
    for (let chunk = chunks.shift(); chunk !== undefined; chunk = chunks.shift()) {
      await insertRows(pool, chunk)
      done += chunk.rows
      say(`filling: ${done.toLocaleString('en')} of ${total.toLocaleString('en')} records`)
    }
  }
  await pool.query(INDEXES_ASIDE)
  await Promise.all(Array.from({ length: WRITERS }, write))
  say(`indexing ${total.toLocaleString('en')} records`)
  const { rows } = await pool.query<{ name: string }>(INDEXES)
  for (const { name } of rows) await pool.query(`ALTER INDEX ${name} SET (fillfactor = 67)`)
  await pool.query('REINDEX TABLE oncekey_record')
  await pool.query('VACUUM (ANALYZE) oncekey_record')
  await pool.query('CHECKPOINT')
  await pool.end()
}

/** PostgreSQL does not write to an index that is not ready; REINDEX rebuilds it. */
const INDEXES_ASIDE = `
  UPDATE pg_index SET indisready = false, indisvalid = false
  WHERE indrelid = 'oncekey_record'::regclass`
const INDEXES = `
  SELECT indexrelid::regclass::text AS name FROM pg_index
  WHERE indrelid = 'oncekey_record'::regclass`

function inChunks({ from, rows, kind }: Fill): Fill[] {
  return Array.from({ length: Math.ceil(rows / FILL_ROWS) }, (_, index) => {
    const start = index * FILL_ROWS
    return { from: from + start, rows: Math.min(FILL_ROWS, rows - start), kind }
  })
}
