/**
 * Every statement on what is kept beside the records. As in `sql.ts`, writes run one transaction
 * at a time over all processes, and what such a transaction has read stays true until it commits.
 * Limits are sums for the reason that `turn-sql.ts` gives.
 */
import { COLUMNS } from './sql.ts'

/** Left as it is where it is on record: the first step of an operation may be repeated. */
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

/** Keys are made of a record id and a phase, so there is one; a provider may repeat its ids. */
export const FIND_PHASE_BY_DOWNSTREAM_KEY = phaseBy('downstream_key', 'downstream')

export const FIND_PHASE_BY_PROVIDER_ID = phaseBy('provider_id', 'provider')

function phaseBy(column: string, index: string): string {
  return `
  SELECT ${PHASE_COLUMNS} FROM "{table}_phase" INDEXED BY "{table}_phase_${index}"
  WHERE ${column} = ? AND kind = 'external' ORDER BY rowid DESC LIMIT 1`
}

/** The one that is intended, or else the last that is done. */
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

/** Once, with the operation: it never changes. */
export const SET_RUN = `
  UPDATE "{table}" SET run_name = ?2, run_version = ?3 WHERE record_id = ?1`

/** Word for word as in the index, which is only usable so. */
export const WAITS_TO_RUN = `
  state IN ('pending', 'failed_retryable') AND reconcile_at_ms IS NOT NULL
    AND run_name IS NOT NULL`

/** What was accepted, never ran, and is past its expiry is for `reap`: nobody may take it. */
export const MAY_BE_TAKEN = `(state <> 'pending' OR expires_at_ms > ?3 OR attempt > 0)`

export const DUE = `
  SELECT ${COLUMNS}, NULL AS result FROM "{table}" INDEXED BY "{table}_due"
  WHERE ${WAITS_TO_RUN} AND run_name = ?1 AND run_version = ?2 AND reconcile_at_ms <= ?3
    AND ${MAY_BE_TAKEN}
  ORDER BY reconcile_at_ms LIMIT 0 + ?4`

/**
 * From one name and version to the next, past all records between them. Two statements: asked for
 * a pair that is greater, SQLite begins at the pair itself and walks through all of its rows.
 */
export const NEXT_VERSION = nextRun('run_name = ? AND run_version > ?')

export const NEXT_NAME = nextRun('run_name > ?')

function nextRun(isNext: string): string {
  return `
  SELECT run_name AS name, run_version AS version FROM "{table}" INDEXED BY "{table}_due"
  WHERE ${WAITS_TO_RUN} AND ${isNext} ORDER BY run_name, run_version LIMIT 1`
}

export const POSTPONE = `
  UPDATE "{table}" SET reconcile_at_ms = ?3
  WHERE record_id = ?1 AND attempt = ?2 AND state = 'unknown' AND tries = coalesce(?4, tries)`

/**
 * The head of its lane if nobody else is in it. Without a partition every message is a head. Plain
 * question marks, because it also runs on clients of the caller's that know no others.
 */
export const INSERT_MESSAGE = `
  INSERT INTO "{table}_message" (id, topic, key, partition, lane, is_head, state, attempt,
    due_at_ms, created_at_ms, errors, payload, tenant)
  VALUES (?, ?, ?, ?, ?,
    NOT EXISTS (SELECT 1 FROM "{table}_message" INDEXED BY "{table}_message_lane"
      WHERE topic = ? AND lane = ?),
    'ready', 0, ?, ?, '[]', ?, ?)`

const MESSAGE_COLUMNS = `
  number, id, topic, key, partition, lane, is_head, state, token, attempt, due_at_ms, ended_at_ms,
  created_at_ms, provider_id, errors`

/** Without the tenant too: it lies behind the payload, which SQLite would have to walk through. */
export const FIND_MESSAGE = `
  SELECT ${MESSAGE_COLUMNS}, NULL AS payload, NULL AS tenant
  FROM "{table}_message" WHERE id = ?`

export const FIND_MESSAGES = `
  SELECT ${MESSAGE_COLUMNS}, NULL AS payload, NULL AS tenant FROM "{table}_message"
  WHERE id IN (SELECT value FROM json_each(?))`

export const READ_MESSAGE = `
  SELECT ${MESSAGE_COLUMNS}, payload, tenant FROM "{table}_message" WHERE id = ?`

export const GET_MESSAGE = `
  SELECT ${MESSAGE_COLUMNS}, payload, tenant FROM "{table}_message" WHERE number = ?`

/** Those that were chosen by their numbers, in any order. */
export const GET_MESSAGES = `
  SELECT ${MESSAGE_COLUMNS}, payload, tenant FROM "{table}_message"
  WHERE number IN (SELECT value FROM json_each(?))`

export const LIST_MESSAGES = `
  SELECT ${MESSAGE_COLUMNS}, NULL AS payload, tenant FROM "{table}_message"
  INDEXED BY "{table}_message_state" WHERE state = ? ORDER BY number LIMIT 0 + ?`

/** Nothing but the index is read, until it is known which messages are taken. */
export const DUE_MESSAGES = `
  SELECT number, due_at_ms FROM "{table}_message" INDEXED BY "{table}_message_due"
  WHERE topic = ? AND is_head = 1 AND due_at_ms IS NOT NULL AND due_at_ms <= ?
  ORDER BY due_at_ms, number LIMIT 0 + ?`

/** The first topic after this one that has a message to be taken, now or later. */
export const NEXT_TOPIC = `
  SELECT topic FROM "{table}_message" INDEXED BY "{table}_message_due"
  WHERE is_head = 1 AND due_at_ms IS NOT NULL AND topic > ? ORDER BY topic LIMIT 1`

export const HELD_MESSAGES = `
  SELECT ${MESSAGE_COLUMNS}, payload, tenant
  FROM "{table}_message" INDEXED BY "{table}_message_token"
  WHERE token = ? AND state = 'held' AND due_at_ms > ? ORDER BY number`

/**
 * Neither is fenced by itself: the row was read and judged in the same write transaction. SQLite
 * writes every index anew that has a column which is set, changed or not: so a claim, which every
 * message has, sets only what it changes.
 */
export const HOLD_MESSAGE = `
  UPDATE "{table}_message" SET state = 'held', token = ?2, attempt = ?3, due_at_ms = ?4
  WHERE number = ?1`

export const UPDATE_MESSAGE = `
  UPDATE "{table}_message" SET
    lane = ?2, is_head = ?3, state = ?4, token = ?5, attempt = ?6, due_at_ms = ?7,
    ended_at_ms = ?8, provider_id = ?9, errors = ?10
  WHERE number = ?1`

/** It is found early: a lane has a head, and few are before it. */
export const FIND_HEAD = `
  SELECT number, state FROM "{table}_message" INDEXED BY "{table}_message_lane"
  WHERE topic = ? AND lane = ? AND is_head = 1 ORDER BY number LIMIT 1`

export const FIRST_OF_LANE = `
  SELECT number FROM "{table}_message" INDEXED BY "{table}_message_lane"
  WHERE topic = ? AND lane = ? ORDER BY number LIMIT 1`

export const SET_HEAD = `UPDATE "{table}_message" SET is_head = ?2 WHERE number = ?1`

/** With the size of their payloads: it is what removing them costs. */
export const ENDED_MESSAGES = `
  SELECT number, length(payload) AS bytes FROM "{table}_message"
  INDEXED BY "{table}_message_ended"
  WHERE state IN ('done', 'dropped') AND ended_at_ms < ? ORDER BY ended_at_ms LIMIT 0 + ?`

export const DELETE_MESSAGE = `DELETE FROM "{table}_message" WHERE number = ?`

export const INSERT_AUDIT = `
  INSERT INTO "{table}_audit" (at_ms, act, subject, who, why, detail) VALUES (?, ?, ?, ?, ?, ?)`

const AUDIT_COLUMNS = 'at_ms, act, subject, who, why, detail'

export const LIST_AUDIT = `
  SELECT ${AUDIT_COLUMNS} FROM "{table}_audit" ORDER BY number DESC LIMIT 0 + ?`

export const LIST_AUDIT_OF = `
  SELECT ${AUDIT_COLUMNS} FROM "{table}_audit" INDEXED BY "{table}_audit_subject"
  WHERE subject = ? ORDER BY number DESC LIMIT 0 + ?`
