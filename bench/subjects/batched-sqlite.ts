/**
 * The limit on SQLite: one file, synchronous FULL, one transaction for each batch, with the same
 * columns and guarantees as the limit on PostgreSQL.
 */
import { randomUUID } from 'node:crypto'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import type { Places } from '../run/contract.ts'
import type { Counter, Subject } from '../run/subject.ts'
import { FINGERPRINT, REPLY_BYTES } from '../run/work.ts'
import { Batches } from './batches.ts'
import { idOf } from './batched-postgres.ts'

const SCHEMA = `
  PRAGMA journal_mode = WAL;
  PRAGMA synchronous = FULL;
  CREATE TABLE limit_record (
    id BLOB NOT NULL UNIQUE,
    token TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    state INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    result BLOB
  );
  CREATE INDEX limit_lease ON limit_record (lease_until) WHERE state = 0;
  CREATE INDEX limit_expiry ON limit_record (expires_at) WHERE state = 1;`

const CLAIM = `INSERT INTO limit_record VALUES (?, ?, ?, 0, ?, ?, NULL) ON CONFLICT DO NOTHING`
const READ = `SELECT fingerprint, result FROM limit_record WHERE id = ?`
const COMPLETE = `
  UPDATE limit_record SET state = 1, result = ?, expires_at = ?
  WHERE id = ? AND token = ? AND state = 0`

const MINUTE_MS = 60_000
const DAY_MS = 86_400_000
const LIMITS = { rowsMax: 128, callsMax: 1 } as const

interface Claim {
  readonly id: Uint8Array
  readonly token: string
}

export async function openBatchedSqlite(places: Places, counter: Counter): Promise<Subject> {
  const database = new DatabaseSync(join(places.folder, 'limit.db'))
  database.exec(SCHEMA)
  const insert = database.prepare(CLAIM)
  const read = database.prepare(READ)
  const update = database.prepare(COMPLETE)

  const claims = new Batches(async (items: readonly Claim[]) => {
    const found = items.map(({ id }) => read.get(id))
    // A batch of replays writes nothing, so it needs no commit.
    if (found.every((row) => row !== undefined)) return found.map(replyOf)
    const nowMs = Date.now()
    return committed(database, () =>
      items.map(({ id, token }) => {
        const leaseUntil = nowMs + MINUTE_MS
        const { changes } = insert.run(id, token, FINGERPRINT, leaseUntil, nowMs + DAY_MS)
        return changes === 1 ? undefined : replyOf(read.get(id))
      }),
    )
  }, LIMITS)
  const completions = new Batches(async (items: readonly Claim[]) => {
    const expiresAt = Date.now() + DAY_MS
    return committed(database, () =>
      items.map(({ id, token }) => update.run(REPLY_BYTES, expiresAt, id, token).changes === 1),
    )
  }, LIMITS)

  return {
    async run(key) {
      const held = { id: Buffer.from(idOf(key), 'hex'), token: randomUUID() }
      const known = await claims.ask(held)
      if (known !== undefined) return known
      counter.runs++
      if (!(await completions.ask(held))) throw new Error('the lease was lost')
      return REPLY_BYTES
    },
    close: async () => database.close(),
  }
}

function committed<Answer>(database: DatabaseSync, work: () => Answer): Answer {
  database.exec('BEGIN IMMEDIATE')
  const answer = work()
  database.exec('COMMIT')
  return answer
}

function replyOf(row: Record<string, unknown> | undefined): Uint8Array {
  if (row?.['fingerprint'] !== FINGERPRINT) throw new Error('the key was used for another request')
  if (!(row['result'] instanceof Uint8Array)) throw new Error('the key is in progress')
  return row['result']
}
