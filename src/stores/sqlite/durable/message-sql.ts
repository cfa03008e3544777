/** Statements on outbox messages. `../turns/sql.ts` says why limits are written as sums. */
/**
 * The message becomes the head of its lane if the lane is empty. A message without a partition is
 * always a head. Plain question marks, because the statement also runs on the caller's clients, and
 * some of them support no numbered parameters.
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

/** Also omits the tenant: it is stored behind the payload, so SQLite would read through that. */
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

/** In any order. */
export const GET_MESSAGES = `
  SELECT ${MESSAGE_COLUMNS}, payload, tenant FROM "{table}_message"
  WHERE number IN (SELECT value FROM json_each(?))`

export const LIST_MESSAGES = `
  SELECT ${MESSAGE_COLUMNS}, NULL AS payload, tenant FROM "{table}_message"
  INDEXED BY "{table}_message_state" WHERE state = ? ORDER BY number LIMIT 0 + ?`

/** Reads only the index; a message row is read after it was chosen. */
export const DUE_MESSAGES = `
  SELECT number, due_at_ms FROM "{table}_message" INDEXED BY "{table}_message_due"
  WHERE topic = ? AND is_head = 1 AND due_at_ms IS NOT NULL AND due_at_ms <= ?
  ORDER BY due_at_ms, number LIMIT 0 + ?`

/** The first topic after this one that has a message to relay, now or later. */
export const NEXT_TOPIC = `
  SELECT topic FROM "{table}_message" INDEXED BY "{table}_message_due"
  WHERE is_head = 1 AND due_at_ms IS NOT NULL AND topic > ? ORDER BY topic LIMIT 1`

export const HELD_MESSAGES = `
  SELECT ${MESSAGE_COLUMNS}, payload, tenant
  FROM "{table}_message" INDEXED BY "{table}_message_token"
  WHERE token = ? AND state = 'held' AND due_at_ms > ? ORDER BY number`

/**
 * HOLD_MESSAGE and UPDATE_MESSAGE have no fence in their WHERE clause: the same write transaction
 * has read and checked the row. SQLite rewrites every index on a column that is set, even to the
 * same value, so a claim, which every message goes through, sets only the columns that change.
 */
export const HOLD_MESSAGE = `
  UPDATE "{table}_message" SET state = 'held', token = ?2, attempt = ?3, due_at_ms = ?4
  WHERE number = ?1`

export const UPDATE_MESSAGE = `
  UPDATE "{table}_message" SET
    lane = ?2, is_head = ?3, state = ?4, token = ?5, attempt = ?6, due_at_ms = ?7,
    ended_at_ms = ?8, provider_id = ?9, errors = ?10
  WHERE number = ?1`

/** Reads few rows: a lane has one head, and few messages are before it. */
export const FIND_HEAD = `
  SELECT number, state FROM "{table}_message" INDEXED BY "{table}_message_lane"
  WHERE topic = ? AND lane = ? AND is_head = 1 ORDER BY number LIMIT 1`

export const FIRST_OF_LANE = `
  SELECT number FROM "{table}_message" INDEXED BY "{table}_message_lane"
  WHERE topic = ? AND lane = ? ORDER BY number LIMIT 1`

export const SET_HEAD = `UPDATE "{table}_message" SET is_head = ?2 WHERE number = ?1`

/** With payload sizes, because the size decides how long a DELETE takes. */
export const ENDED_MESSAGES = `
  SELECT number, length(payload) AS bytes FROM "{table}_message"
  INDEXED BY "{table}_message_ended"
  WHERE state IN ('done', 'dropped') AND ended_at_ms < ? ORDER BY ended_at_ms LIMIT 0 + ?`

export const DELETE_MESSAGE = `DELETE FROM "{table}_message" WHERE number = ?`
