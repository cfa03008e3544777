import type { Pool } from 'mysql2/promise'
import { runAs } from '../../../../src/stores/mysql/durable/phase-sql.ts'
import { OPERATION } from '../../../../src/testing/durable-cases/durable-case.ts'

/** Records that wait for a worker. Texts are SQL with `seq` as the row number, except `state`. */
export interface WaitingRows {
  readonly rows: number
  readonly tenant: string
  readonly atMs: string
  readonly state?: 'pending' | 'failed_retryable'
  readonly attempt?: number
  readonly expiresAtMs?: string
}

let fills = 0

/** Inserts records of the operation `pay` with one statement. */
export async function fillRecords(app: Pool, fill: WaitingRows): Promise<void> {
  const { rows, tenant, atMs, state = 'failed_retryable', attempt = 1, expiresAtMs = '9e12' } = fill
  const number = runAs(OPERATION)
  await app.query(`
    INSERT INTO oncekey_record (identity, record_id, tenant, operation, \`key\`, fingerprint, state,
      attempt, lapses, token, lease_until_ms, on_lapse, after_expiry, recovery_point,
      reconcile_at_ms, created_at_ms, last_run_at_ms, expires_at_ms, run_as, to_run, due_at_ms)
    SELECT UNHEX(MD5(CONCAT('${fills++} ', seq))), UUID(), ${tenant}, 'o', seq, 'f', '${state}',
      ${attempt}, 0, '', 0, 'resume', 'new', 'started', ${atMs}, 0, 0, ${expiresAtMs},
      ${number}, ${number}, ${atMs}
    FROM seq_1_to_${rows}`)
  await app.query(`INSERT IGNORE INTO oncekey_record_operation (record_id, name, version, input)
    SELECT record_id, '${OPERATION.name}', ${OPERATION.version}, 'x' FROM oncekey_record`)
}

export interface PartitionRows {
  readonly topic: string
  readonly partitions: number
  /** SQL with `seq` as the number of the partition. */
  readonly tenant: string
  /** Messages in each partition. */
  readonly each: number
  /** Prefix of the names of the partitions. */
  readonly name?: string
  readonly isDead?: boolean
  readonly dueAtMs?: number
}

/** Inserts partitions with due messages. */
export async function fillPartitions(app: Pool, fill: PartitionRows): Promise<void> {
  const { topic, partitions, tenant, each, name = 'p', isDead = false, dueAtMs = 1000 } = fill
  const lane = `CONCAT('/${name}', LPAD(seq, 5, '0'))`
  await app.query(`
    INSERT INTO oncekey_record_partition (topic, lane, sequence, is_open, tenant)
    SELECT '${topic}', ${lane}, ${each}, 1, ${tenant} FROM seq_1_to_${partitions}`)
  await app.query(`
    INSERT INTO oncekey_record_message (id, topic, lane, place, sequence, state, token, attempt,
      created_at_ms, added_at_us, due_at_ms, \`partition\`, tenant, errors, payload)
    SELECT UUID(), '${topic}', ${lane}, place.n, place.n, '${isDead ? 'dead' : 'ready'}', '', 0, 0,
      1000, ${isDead ? 'NULL' : dueAtMs}, SUBSTR(${lane}, 2), ${tenant}, '[]', 'x'
    FROM seq_1_to_${partitions}, (SELECT seq AS n FROM seq_1_to_${each}) AS place`)
}

export function countBy(keys: readonly string[]): Map<string, number> {
  const counts = new Map<string, number>()
  for (const key of keys) counts.set(key, (counts.get(key) ?? 0) + 1)
  return counts
}
