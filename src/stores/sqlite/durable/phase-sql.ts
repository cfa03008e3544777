/**
 * Statements on operations, their phases and the records that are due. As in `../sql.ts`, write
 * transactions run one at a time across all processes, so a row that such a transaction has read
 * cannot change before it commits. `../turns/sql.ts` says why limits are written as sums.
 */
import { COLUMNS } from '../sql.ts'

/** Keeps an existing row, because the first step of an operation may be repeated. */
export const INSERT_OPERATION = `
  INSERT INTO "{table}_operation" (record_id, name, version, input) VALUES (?, ?, ?, ?)
  ON CONFLICT (record_id) DO NOTHING`

export const FIND_OPERATION = `
  SELECT name, version, input FROM "{table}_operation" WHERE record_id = ?`

const PHASE_COLUMNS = `
  record_id, name, number, kind, state, downstream_key, provider_id, attempt, first_sent_at_ms,
  sent_at_ms, done_at_ms, request, result`

export const LIST_PHASES = `
  SELECT ${PHASE_COLUMNS} FROM "{table}_phase" WHERE record_id = ? ORDER BY number`

export const FIND_PHASE = `
  SELECT ${PHASE_COLUMNS} FROM "{table}_phase" WHERE record_id = ? AND name = ?`

/** A downstream key contains its record id and phase, so it is unique; a provider id may repeat. */
export const FIND_PHASE_BY_DOWNSTREAM_KEY = phaseBy('downstream_key', 'downstream')

export const FIND_PHASE_BY_PROVIDER_ID = phaseBy('provider_id', 'provider')

function phaseBy(column: string, index: string): string {
  return `
  SELECT ${PHASE_COLUMNS} FROM "{table}_phase" INDEXED BY "{table}_phase_${index}"
  WHERE ${column} = ? AND kind = 'external' ORDER BY rowid DESC LIMIT 1`
}

/** The intended phase, or the last phase that is done. */
export const FIND_OPEN_PHASE = `
  SELECT ${PHASE_COLUMNS} FROM "{table}_phase"
  WHERE record_id = ? AND kind = 'external' ORDER BY state = 'intended' DESC, number DESC LIMIT 1`

export const PUT_PHASE = `
  INSERT INTO "{table}_phase" (${PHASE_COLUMNS})
  VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
  ON CONFLICT (record_id, name) DO UPDATE SET
    number = ?3, kind = ?4, state = ?5, downstream_key = ?6, provider_id = ?7, attempt = ?8,
    first_sent_at_ms = ?9, sent_at_ms = ?10, done_at_ms = ?11, request = ?12, result = ?13`

export const DELETE_PHASE = `DELETE FROM "{table}_phase" WHERE record_id = ? AND name = ?`

/** Removes the phases, too: they refer to the operation. */
export const DELETE_OPERATION = `DELETE FROM "{table}_operation" WHERE record_id = ?`

/** Runs with INSERT_OPERATION and DELETE_OPERATION: in between, name and version never change. */
export const SET_RUN = `
  UPDATE "{table}" SET run_name = ?2, run_version = ?3 WHERE record_id = ?1`

/** The exact condition of the partial index; SQLite uses the index for no other wording. */
export const WAITS_TO_RUN = `
  state IN ('pending', 'failed_retryable') AND reconcile_at_ms IS NOT NULL
    AND run_name IS NOT NULL`

/** Excludes accepted records that expired before their first run: only `reap` ends those. */
export const MAY_BE_TAKEN = `(state <> 'pending' OR expires_at_ms > ?3 OR attempt > 0)`

export const DUE = `
  SELECT ${COLUMNS}, NULL AS result FROM "{table}" INDEXED BY "{table}_due"
  WHERE ${WAITS_TO_RUN} AND run_name = ?1 AND run_version = ?2 AND reconcile_at_ms <= ?3
    AND ${MAY_BE_TAKEN}
  ORDER BY reconcile_at_ms LIMIT 0 + ?4`

/**
 * Jumps from one name and version to the next, past all records of the first. Two statements,
 * because for a row-value comparison SQLite starts at the pair itself and reads all of its rows.
 */
export const NEXT_VERSION = nextRun('run_name = ? AND run_version > ?')

export const NEXT_NAME = nextRun('run_name > ?')

function nextRun(isNext: string): string {
  return `
  SELECT run_name AS name, run_version AS version FROM "{table}" INDEXED BY "{table}_due"
  WHERE ${WAITS_TO_RUN} AND ${isNext} ORDER BY run_name, run_version LIMIT 1`
}
