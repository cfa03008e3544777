/**
 * Every statement on records. All writes run between BEGIN IMMEDIATE and COMMIT on the one writer
 * connection of a process; SQLite lets one such transaction run at a time over all processes. So
 * what a write transaction has read stays true until it commits.
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
 * The length of the lease that a record is under. A node of an older version that claims or renews
 * writes neither of the two columns; then they do not add up to the end of the lease any more, and
 * its length is not known. Of other records it is not asked for: it lies behind their results.
 */
const LEASE_MS = `
  CASE WHEN state = 'in_progress' AND lease_from_ms + lease_ms = lease_until_ms
    THEN lease_ms END AS lease_ms`

/** What the history has of a record: all but its state, which is over, and its token. */
const HISTORY_COLUMNS = `
  identity, record_id, tenant, operation, key, fingerprint, attempt, lapses,
  lease_until_ms, on_lapse, after_expiry, proof, recovery_point, error_code, reconcile_at_ms, tries,
  created_at_ms, last_run_at_ms, completed_at_ms, expires_at_ms, result`

/** Takes the write lock at once: a lock upgraded later could fail after work has been done. */
export const BEGIN = 'BEGIN IMMEDIATE'

/** Takes no lock that a writer would wait for. Many reads within it cost the price of one. */
export const BEGIN_READ = 'BEGIN DEFERRED'

export const COMMIT = 'COMMIT'

export const ROLLBACK = 'ROLLBACK'

/**
 * On the reader it sees the last commit, and no writer can make it wait. On the writer, inside a
 * transaction, it is the truth that the decision is based on.
 */
export const FIND = `SELECT ${COLUMNS}, ${LEASE_MS}, result FROM "{table}" WHERE identity = ?`

export const FIND_BY_RECORD_ID = `
  SELECT ${COLUMNS}, ${LEASE_MS}, result FROM "{table}" WHERE record_id = ?`

/**
 * Takes a free key without reading it first. No change means that somebody has it: another
 * process since the reader looked, or an earlier request of the same batch.
 */
export const INSERT = insertAs("'in_progress', 1")

/** The same for a later run: nobody holds the key, and it has not run. */
export const INSERT_PENDING = insertAs("'pending', 0")

/** Two statements, so that the ordinary one has nothing more to bind. */
function insertAs(stateAndAttempt: string): string {
  return `
  INSERT INTO "{table}" (${COLUMNS}, lease_ms, lease_from_ms)
  VALUES (?1, ?2, ?3, ?4, ?5, ?6, ${stateAndAttempt}, 0, ?7, ?8, ?9, ?10, NULL, NULL, NULL, NULL, 0,
    ?11, ?11, NULL, ?12, ?13, ?8 - ?13)
  ON CONFLICT (identity) DO NOTHING`
}

/**
 * Ends a lease that is held, without reading it first: the ordinary case, and the token and the
 * attempt in the WHERE clause are its fence. No change means that it is another case (a longer
 * expiry was published, say): read it. A RETURNING clause would make SQLite keep a copy of every
 * page it touches.
 */
export const COMPLETE = `
  UPDATE "{table}" SET
    state = 'completed', proof = NULL, error_code = NULL, reconcile_at_ms = NULL,
    completed_at_ms = ?4, expires_at_ms = ?5, result = ?6
  WHERE identity = ?1 AND token = ?2 AND attempt = ?3 AND state = 'in_progress'
    AND expires_at_ms <= ?5`

/** Not fenced by itself: the row was read and judged in the same write transaction. */
export const UPDATE = `
  UPDATE "{table}" SET
    state = ?2, attempt = ?3, lapses = ?4, token = ?5, lease_until_ms = ?6, on_lapse = ?7,
    after_expiry = ?8, proof = ?9, recovery_point = ?10, error_code = ?11, reconcile_at_ms = ?12,
    last_run_at_ms = ?13, completed_at_ms = ?14, expires_at_ms = ?15, result = ?16, tries = ?17,
    lease_ms = ?18, lease_from_ms = ?6 - ?18
  WHERE identity = ?1`

/** A record that gives way to a new one goes by DELETE, so that references to it are set null. */
export const DELETE = `DELETE FROM "{table}" WHERE identity = ?`

/**
 * In the same transaction that removes or empties the record. It copies within SQLite, so that a
 * result never passes through this process.
 */
export const KEEP = `
  INSERT INTO "{table}_history" (${HISTORY_COLUMNS})
  SELECT ${HISTORY_COLUMNS} FROM "{table}" WHERE identity = ?`

/** Newest first: the number grows with every row. */
export const HISTORY = historyBy('identity')

export const HISTORY_BY_RECORD_ID = historyBy('record_id')

function historyBy(column: string): string {
  return `
  SELECT ${HISTORY_COLUMNS}, 'expired' AS state, '' AS token
  FROM "{table}_history" INDEXED BY "{table}_history_${column}"
  WHERE ${column} = ? ORDER BY number DESC LIMIT ?`
}

/**
 * The literal state is what makes the partial index usable. The planner is told to use it, so that
 * the plan depends neither on statistics nor on what other index is added one day.
 */
export const LAPSED = `
  SELECT ${COLUMNS}, result FROM "{table}" INDEXED BY "{table}_lease"
  WHERE state = 'in_progress' AND lease_until_ms <= ?
  ORDER BY lease_until_ms LIMIT ?`

/**
 * Leases from before the clock was set back: those that end later than their length after `?1`. Of
 * the `?2` that end last. Leases of other lengths may stand before them there, but only longer
 * ones, which are as far from their end.
 */
export const AHEAD = `
  SELECT * FROM (
    SELECT ${COLUMNS}, ${LEASE_MS}, result FROM "{table}" INDEXED BY "{table}_lease"
    WHERE state = 'in_progress' AND lease_until_ms > ?1
    ORDER BY lease_until_ms DESC LIMIT ?2)
  WHERE lease_until_ms > ?1 + lease_ms LIMIT ?3`

/** What may expire, word for word as in the index, which is only usable so. */
const MAY_EXPIRE = `
  (state = 'completed' OR (state = 'failed_retryable' AND recovery_point IS NULL))`

/** Without the results, which are about to be removed; their size is what removing them costs. */
export const EXPIRED = `
  SELECT ${COLUMNS}, NULL AS result, ifnull(length(result), 0) AS result_bytes
  FROM "{table}" INDEXED BY "{table}_expiry"
  WHERE ${MAY_EXPIRE} AND expires_at_ms <= ?
  ORDER BY expires_at_ms LIMIT ?`

/** Accepted, and not taken by anybody in time. These have no result yet. */
export const ABANDONED = `
  SELECT ${COLUMNS}, NULL AS result FROM "{table}" INDEXED BY "{table}_pending"
  WHERE state = 'pending' AND (recovery_point IS NULL OR attempt = 0) AND expires_at_ms <= ?
  ORDER BY expires_at_ms LIMIT ?`

/**
 * Without the results, which may be large. The second condition says nothing new; it is what makes
 * the partial index usable.
 */
export const LIST = `
  SELECT ${COLUMNS}, NULL AS result FROM "{table}" INDEXED BY "{table}_list"
  WHERE state = ? AND state NOT IN ('in_progress', 'completed') ORDER BY last_run_at_ms LIMIT ?`

/** By expiry, from the index that reaping needs: a completion then writes one index less. */
export const LIST_COMPLETED = `
  SELECT ${COLUMNS}, NULL AS result FROM "{table}" INDEXED BY "{table}_expiry"
  WHERE state = 'completed' AND ${MAY_EXPIRE}
  ORDER BY expires_at_ms LIMIT ?`

/** Sorts what is held at the moment, so that taking and ending a lease need one index less. */
export const LIST_IN_PROGRESS = `
  SELECT ${COLUMNS}, NULL AS result FROM "{table}" INDEXED BY "{table}_lease"
  WHERE state = 'in_progress' ORDER BY last_run_at_ms LIMIT ?`

/** Those that were chosen by their rowids, in any order. */
export const GET_RECORDS = `
  SELECT rowid AS number, ${COLUMNS}, result FROM "{table}"
  WHERE rowid IN (SELECT value FROM json_each(?))`
