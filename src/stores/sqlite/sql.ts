/**
 * Every statement on records. All writes run between BEGIN IMMEDIATE and COMMIT on the only writer
 * connection of a process, and SQLite runs one such transaction at a time across all processes. So
 * a row that a write transaction has read cannot change before it commits.
 *
 * `{table}` is the checked table name.
 */
export function forTable(table: string, sql: string): string {
  return sql.replaceAll('{table}', table)
}

export const COLUMNS = `
  identity, record_id, tenant, operation, key, fingerprint, state, attempt, lapses, token,
  lease_until_ms, on_lapse, after_expiry, proof, recovery_point, error_code, reconcile_at_ms, tries,
  created_at_ms, last_run_at_ms, completed_at_ms, expires_at_ms`

/**
 * The length of the current lease. A node of an older version that claims or renews writes neither
 * of the two columns; then they no longer add up to the end of the lease, and its length is
 * unknown. Not read for records in other states, because it is stored behind their results.
 */
const LEASE_MS = `
  CASE WHEN state = 'in_progress' AND lease_from_ms + lease_ms = lease_until_ms
    THEN lease_ms END AS lease_ms`

/**
 * `id_seed` has the record id in 16 bytes, then the seed, if any. Both columns count only on the
 * record with this id, because nodes of older versions write neither. They are selected last: they
 * are stored behind the result, and SQLite reads through it to reach them.
 */
const LATER_COLUMNS = 'id_seed, refuse_for_ms'

/** The columns of the history: all of a record except its state and its token. */
const HISTORY_COLUMNS = `
  identity, record_id, tenant, operation, key, fingerprint, attempt, lapses,
  lease_until_ms, on_lapse, after_expiry, proof, recovery_point, error_code, reconcile_at_ms, tries,
  created_at_ms, last_run_at_ms, completed_at_ms, expires_at_ms, result, ${LATER_COLUMNS}`

/** Takes the write lock immediately: a later lock upgrade could fail after work has been done. */
export const BEGIN = 'BEGIN IMMEDIATE'

/** Blocks no writer. Many reads within one read transaction cost as much as one read. */
export const BEGIN_READ = 'BEGIN DEFERRED'

export const COMMIT = 'COMMIT'

export const ROLLBACK = 'ROLLBACK'

/**
 * The reader sees the last commit and never waits for a writer. On the writer, within a
 * transaction, the row cannot change before the decision that is based on it commits.
 */
export const FIND = `
  SELECT ${COLUMNS}, ${LEASE_MS}, result, ${LATER_COLUMNS} FROM "{table}" WHERE identity = ?`

export const FIND_BY_RECORD_ID = `
  SELECT ${COLUMNS}, ${LEASE_MS}, result, ${LATER_COLUMNS} FROM "{table}" WHERE record_id = ?`

/**
 * Claims a free key without reading it first. No change means that the key exists: another process
 * has claimed it since the read, or an earlier request of the same batch.
 */
export const INSERT = insertAs("'in_progress', 1")

/** For accepted work that runs later: no lease, and no attempt yet. */
export const INSERT_PENDING = insertAs("'pending', 0")

/** Two statements, so that the common one binds no extra values. */
function insertAs(stateAndAttempt: string): string {
  return `
  INSERT INTO "{table}" (${COLUMNS}, lease_ms, lease_from_ms, ${LATER_COLUMNS})
  VALUES (?1, ?2, ?3, ?4, ?5, ?6, ${stateAndAttempt}, 0, ?7, ?8, ?9, ?10, NULL, NULL, NULL, NULL, 0,
    ?11, ?11, NULL, ?12, ?13, ?8 - ?13, ?14, ?15)
  ON CONFLICT (identity) DO NOTHING`
}

/**
 * Completes a held lease without reading it first, which is the common case. The token and the
 * attempt in the WHERE clause are its fence. No change means another case, such as a later expiry
 * that was already published: read the record then. A RETURNING clause would make SQLite copy every
 * page it writes to.
 */
export const COMPLETE = `
  UPDATE "{table}" SET
    state = 'completed', proof = NULL, error_code = NULL, reconcile_at_ms = NULL,
    completed_at_ms = ?4, expires_at_ms = ?5, result = ?6
  WHERE identity = ?1 AND token = ?2 AND attempt = ?3 AND state = 'in_progress'
    AND expires_at_ms <= ?5`

/** Has no fence: the same write transaction has read and checked the row. */
export const UPDATE = `
  UPDATE "{table}" SET
    state = ?2, attempt = ?3, lapses = ?4, token = ?5, lease_until_ms = ?6, on_lapse = ?7,
    after_expiry = ?8, proof = ?9, recovery_point = ?10, error_code = ?11, reconcile_at_ms = ?12,
    last_run_at_ms = ?13, completed_at_ms = ?14, expires_at_ms = ?15, result = ?16, tries = ?17,
    lease_ms = ?18, lease_from_ms = ?6 - ?18, id_seed = ?19, refuse_for_ms = ?20
  WHERE identity = ?1`

/** Also runs before a new record takes over a key, so that references to the old one are cut. */
export const DELETE = `DELETE FROM "{table}" WHERE identity = ?`

/**
 * Runs in the transaction that removes or empties the record. Copies within SQLite, so that the
 * result is never loaded into JavaScript.
 */
export const KEEP = `
  INSERT INTO "{table}_history" (${HISTORY_COLUMNS})
  SELECT ${HISTORY_COLUMNS} FROM "{table}" WHERE identity = ?`

/** Newest first, because the number grows with every row. */
export const HISTORY = historyBy('identity')

export const HISTORY_BY_RECORD_ID = historyBy('record_id')

function historyBy(column: string): string {
  return `
  SELECT ${HISTORY_COLUMNS}, 'expired' AS state, '' AS token
  FROM "{table}_history" INDEXED BY "{table}_history_${column}"
  WHERE ${column} = ? ORDER BY number DESC LIMIT ?`
}

/**
 * The literal state makes the partial index usable. INDEXED BY forces the index, so that the plan
 * depends neither on statistics nor on indexes that are added later.
 */
export const LAPSED = `
  SELECT ${COLUMNS}, result, ${LATER_COLUMNS} FROM "{table}" INDEXED BY "{table}_lease"
  WHERE state = 'in_progress' AND lease_until_ms <= ?
  ORDER BY lease_until_ms LIMIT ?`

/**
 * Leases that were granted before the clock was set back: they end later than `?1` plus their
 * length. Reads only the `?2` leases that end last. Other leases may come before them there,
 * but only longer ones, which are as far from their end.
 */
export const AHEAD = `
  SELECT * FROM (
    SELECT ${COLUMNS}, ${LEASE_MS}, result, ${LATER_COLUMNS}
    FROM "{table}" INDEXED BY "{table}_lease"
    WHERE state = 'in_progress' AND lease_until_ms > ?1
    ORDER BY lease_until_ms DESC LIMIT ?2)
  WHERE lease_until_ms > ?1 + lease_ms LIMIT ?3`

/** The exact condition of the partial index; SQLite uses the index for no other wording. */
const MAY_EXPIRE = `
  (state = 'completed' OR (state = 'failed_retryable' AND recovery_point IS NULL))`

/**
 * Without results, but with their sizes, because the size decides how long a removal takes. Without
 * the columns behind the results, too: the caller reads them of the records that it ends.
 */
export const EXPIRED = `
  SELECT ${COLUMNS}, NULL AS result, ifnull(length(result), 0) AS result_bytes
  FROM "{table}" INDEXED BY "{table}_expiry"
  WHERE ${MAY_EXPIRE} AND expires_at_ms <= ?
  ORDER BY expires_at_ms LIMIT ?`

export const FIND_LATER = `SELECT ${LATER_COLUMNS} FROM "{table}" WHERE identity = ?`

/**
 * `toTombstone` keeps the columns that are not listed here. Has no fence, like UPDATE. Moves the
 * row to the end of the table, because an update in place leaves its page as it is: a tombstone
 * would then take the space of its record, up to a page of 4 KiB. References to the record stay.
 */
export const TO_TOMBSTONE = `
  UPDATE "{table}" SET
    rowid = (SELECT max(rowid) + 1 FROM "{table}"),
    state = 'expired', key = '', fingerprint = '', token = '', proof = NULL, recovery_point = NULL,
    error_code = NULL, reconcile_at_ms = ?2, result = NULL
  WHERE identity = ?1`

/** Tombstones whose time is over. Those that are kept for ever are not in the index. */
export const TOMBSTONES = `
  SELECT ${COLUMNS}, NULL AS result FROM "{table}" INDEXED BY "{table}_tombstone"
  WHERE state = 'expired' AND reconcile_at_ms IS NOT NULL AND reconcile_at_ms <= ?
  ORDER BY reconcile_at_ms LIMIT ?`

/** Accepted records that no worker has claimed before their expiry. They have no result yet. */
export const ABANDONED = `
  SELECT ${COLUMNS}, NULL AS result, ${LATER_COLUMNS}
  FROM "{table}" INDEXED BY "{table}_pending"
  WHERE state = 'pending' AND (recovery_point IS NULL OR attempt = 0) AND expires_at_ms <= ?
  ORDER BY expires_at_ms LIMIT ?`

/**
 * Without results, which may be large. The second condition is redundant, but makes the partial
 * index usable.
 */
export const LIST = `
  SELECT ${COLUMNS}, NULL AS result, ${LATER_COLUMNS}
  FROM "{table}" INDEXED BY "{table}_list"
  WHERE state = ? AND state NOT IN ('in_progress', 'completed') ORDER BY last_run_at_ms LIMIT ?`

/** By expiry, with the index of EXPIRED, so that a completion writes one index less. */
export const LIST_COMPLETED = `
  SELECT ${COLUMNS}, NULL AS result, ${LATER_COLUMNS}
  FROM "{table}" INDEXED BY "{table}_expiry"
  WHERE state = 'completed' AND ${MAY_EXPIRE}
  ORDER BY expires_at_ms LIMIT ?`

/** Sorts the held records, so that claiming and settling a lease write one index less. */
export const LIST_IN_PROGRESS = `
  SELECT ${COLUMNS}, NULL AS result, ${LATER_COLUMNS}
  FROM "{table}" INDEXED BY "{table}_lease"
  WHERE state = 'in_progress' ORDER BY last_run_at_ms LIMIT ?`

/** In any order. */
export const GET_RECORDS = `
  SELECT rowid AS number, ${COLUMNS}, result, ${LATER_COLUMNS} FROM "{table}"
  WHERE rowid IN (SELECT value FROM json_each(?))`
