/**
 * The limit on PostgreSQL: the least SQL that is as safe as ours, in batches as large as ours, and
 * nothing else. A claim commits before the work runs, with a token and a lease; the completion is
 * fenced by the token and commits before the reply; a fingerprint is compared; the indexes for
 * lapsed and expired records exist. Left out: takeover of lapsed leases, renewal, errors, waiting,
 * tenants, history, everything else.
 */
import { createHash, randomUUID } from 'node:crypto'
import type { Pool } from 'pg'
import type { Places } from '../run/contract.ts'
import type { Counter, Subject } from '../run/subject.ts'
import { FINGERPRINT, REPLY_BYTES } from '../run/work.ts'
import { Batches } from './batches.ts'
import { openPool } from './stores.ts'

const SCHEMA = `
  CREATE TABLE IF NOT EXISTS limit_record (
    id bytea PRIMARY KEY,
    token uuid NOT NULL,
    fingerprint text NOT NULL,
    state smallint NOT NULL,
    lease_until timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    result bytea
  ) WITH (fillfactor = 60);
  CREATE INDEX IF NOT EXISTS limit_lease ON limit_record (lease_until) WHERE state = 0;
  CREATE INDEX IF NOT EXISTS limit_expiry ON limit_record (expires_at) WHERE state = 1;`

/**
 * Takes the free keys and reads the others, in one statement. A key that is inserted between its
 * snapshot and its insert is in neither part, and is claimed again. Inserts in the order of the
 * ids, so that two batches cannot deadlock.
 */
const CLAIM = `
  WITH wanted AS (
    SELECT id, token, fingerprint FROM unnest($1::bytea[], $2::uuid[], $3::text[])
      AS w (id, token, fingerprint) ORDER BY id
  ), taken AS (
    INSERT INTO limit_record (id, token, fingerprint, state, lease_until, expires_at)
    SELECT id, token, fingerprint, 0, now() + interval '1 minute', now() + interval '1 day'
      FROM wanted
    ON CONFLICT (id) DO NOTHING RETURNING id
  )
  SELECT encode(id, 'hex') AS id, NULL AS fingerprint, NULL AS result FROM taken
  UNION ALL
  SELECT encode(r.id, 'hex'), r.fingerprint, r.result
    FROM wanted w JOIN limit_record r ON r.id = w.id`

/** Locks in the order of the ids, then writes only rows that still have the holder's token. */
const COMPLETE = `
  WITH held AS MATERIALIZED (
    SELECT r.id, w.result FROM unnest($1::bytea[], $2::uuid[], $3::bytea[])
      AS w (id, token, result)
    JOIN limit_record r ON r.id = w.id
    WHERE r.token = w.token AND r.state = 0
    ORDER BY r.id FOR NO KEY UPDATE OF r
  )
  UPDATE limit_record r SET state = 1, result = held.result,
    expires_at = now() + interval '1 day'
  FROM held WHERE r.id = held.id RETURNING encode(r.id, 'hex') AS id`

/** Forces a plan that does not depend on statistics, which a new table does not have. */
const PLANNER =
  '-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off ' +
  '-c enable_bitmapscan=off -c plan_cache_mode=force_generic_plan'

const LIMITS = { rowsMax: 128, callsMax: 2 } as const

interface Claim {
  readonly id: string
  readonly token: string
}

interface Completion extends Claim {
  readonly result: Uint8Array
}

interface Row {
  readonly id: string
  readonly fingerprint: string | null
  readonly result: Uint8Array | null
}

export async function openBatchedPostgres(places: Places, counter: Counter): Promise<Subject> {
  const pool = openPool(places, { options: PLANNER })
  await pool.query(SCHEMA)
  const claims = new Batches((items: readonly Claim[]) => claim(pool, items), LIMITS)
  const completions = new Batches((items: readonly Completion[]) => complete(pool, items), LIMITS)
  return {
    async run(key) {
      const held = { id: idOf(key), token: randomUUID() }
      const known = await claims.ask(held)
      if (known !== undefined) return known
      counter.runs++
      const isHeld = await completions.ask({ ...held, result: REPLY_BYTES })
      if (!isHeld) throw new Error('the lease was lost')
      return REPLY_BYTES
    },
    close: () => pool.end(),
  }
}

/** `undefined` if the caller has claimed the key. */
async function claim(pool: Pool, items: readonly Claim[]): Promise<(Uint8Array | undefined)[]> {
  const { rows } = await pool.query<Row>({
    name: 'limit_claim',
    text: CLAIM,
    values: [
      items.map(({ id }) => bytea(id)),
      items.map(({ token }) => token),
      items.map(() => FINGERPRINT),
    ],
  })
  const found = new Map(rows.map((row) => [row.id, row]))
  return items.map(({ id }) => {
    const row = found.get(id)
    if (row === undefined) throw new Error('another claim took the key')
    if (row.fingerprint === null) return undefined
    if (row.fingerprint !== FINGERPRINT) throw new Error('the key was used for another request')
    if (row.result === null) throw new Error('the key is in progress')
    return row.result
  })
}

async function complete(pool: Pool, items: readonly Completion[]): Promise<boolean[]> {
  const { rows } = await pool.query<{ id: string }>({
    name: 'limit_complete',
    text: COMPLETE,
    values: [
      items.map(({ id }) => bytea(id)),
      items.map(({ token }) => token),
      items.map(({ result }) => bytea(Buffer.from(result).toString('hex'))),
    ],
  })
  const settled = new Set(rows.map(({ id }) => id))
  return items.map(({ id }) => settled.has(id))
}

const bytea = (hex: string): string => `\\x${hex}`

export function idOf(key: string): string {
  return createHash('sha256').update(key).digest('hex').slice(0, 32)
}
