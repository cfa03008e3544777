/**
 * Tables for operations and their phases, the outbox and the audit; and the columns and indexes for
 * the turns of tenants.
 *
 * Rows of operations and phases are deleted with their record by statements, and not by a foreign
 * key. For a foreign key the server searches referring rows with gap locks in every isolation
 * level, so the reaping of one key would block the first step of another. The search would also run
 * for every record, and most records have no operation.
 *
 * Columns that are compared are binary, because text collations ignore trailing spaces. Lengths are
 * counted in UTF-16 code units of JavaScript strings, each of which takes at most three bytes.
 *
 * A message that can still be relayed has a `lane`, and a `place` in it. Without a partition the
 * lane is empty and the place is the due time, so that one index finds due messages. Each partition
 * is a separate lane, in which the place is the number of the message. While a message is held, its
 * place is the negative number: it stays the first of its lane, and no other message of the lane is
 * taken. The first message of a lane is its head.
 *
 * Messages that are due at the same time are ordered by the microsecond in which they were added.
 * An AUTO_INCREMENT number would serve as well, but it would change LAST_INSERT_ID, which belongs
 * to the caller in whose transaction the message is added.
 *
 * Neither database can be made to skip from lane to lane in that index reliably: the plan depends
 * on the statistics. So the table of partition counters records which lanes contain messages.
 * Adding a message needs the counter row in any case, and closing a lane needs it as a lock.
 *
 * None of these indexes can be partial. A trigger that protects the audit from changes is not
 * possible: on a server with a binary log it needs rights that applications do not get. Grant only
 * SELECT and INSERT on that table.
 */

export const WORD = 'CHARACTER SET ascii COLLATE ascii_bin'
export const TEXT = 'CHARACTER SET utf8mb4 COLLATE utf8mb4_bin'

export const ENGINE = 'ENGINE = InnoDB ROW_FORMAT = DYNAMIC'

export const DURABLE_TABLES: readonly string[] = [
  `
CREATE TABLE IF NOT EXISTS {operation} (
  record_id CHAR(36) ${WORD} NOT NULL,
  name VARBINARY(765) NOT NULL,
  version BIGINT NOT NULL,
  input LONGBLOB NOT NULL,
  PRIMARY KEY (record_id)
) ${ENGINE}`,
  `
CREATE TABLE IF NOT EXISTS {phase} (
  record_id CHAR(36) ${WORD} NOT NULL,
  name VARBINARY(765) NOT NULL,
  number INT NOT NULL,
  kind VARCHAR(16) ${WORD} NOT NULL,
  state VARCHAR(16) ${WORD} NOT NULL,
  attempt INT NOT NULL,
  first_sent_at_ms BIGINT NOT NULL,
  sent_at_ms BIGINT NOT NULL,
  done_at_ms BIGINT,
  downstream_key VARBINARY(765),
  provider_id MEDIUMBLOB,
  request LONGBLOB,
  result LONGBLOB,
  PRIMARY KEY (record_id, name),
  KEY downstream_key (downstream_key),
  KEY provider_id (provider_id(128)),
  CHECK (kind IN ('transaction', 'external')),
  CHECK (state IN ('intended', 'done'))
) ${ENGINE}`,
  `
CREATE TABLE IF NOT EXISTS {message} (
  id CHAR(36) ${WORD} NOT NULL,
  topic VARBINARY(765) NOT NULL,
  lane VARBINARY(766),
  place BIGINT NOT NULL,
  sequence BIGINT NOT NULL,
  state VARCHAR(16) ${WORD} NOT NULL,
  token VARBINARY(192) NOT NULL,
  attempt INT NOT NULL,
  created_at_ms BIGINT NOT NULL,
  added_at_us BIGINT NOT NULL,
  due_at_ms BIGINT,
  ended_at_ms BIGINT,
  \`partition\` VARBINARY(765),
  \`key\` MEDIUMTEXT ${TEXT},
  provider_id MEDIUMTEXT ${TEXT},
  errors MEDIUMTEXT ${TEXT} NOT NULL,
  payload LONGBLOB NOT NULL,
  PRIMARY KEY (id),
  KEY line (topic, lane, place, added_at_us),
  KEY state (state, ended_at_ms, token, added_at_us),
  CHECK (state IN ('ready', 'held', 'done', 'dead', 'dropped'))
) ${ENGINE}`,
  `
CREATE TABLE IF NOT EXISTS {partition} (
  topic VARBINARY(765) NOT NULL,
  lane VARBINARY(766) NOT NULL,
  sequence BIGINT NOT NULL,
  is_open TINYINT NOT NULL,
  PRIMARY KEY (topic, lane),
  KEY open (topic, is_open, lane)
) ${ENGINE}`,
  `
CREATE TABLE IF NOT EXISTS {audit} (
  number BIGINT NOT NULL AUTO_INCREMENT,
  at_ms BIGINT NOT NULL,
  act VARCHAR(32) ${WORD} NOT NULL,
  subject CHAR(36) ${WORD} NOT NULL,
  who MEDIUMTEXT ${TEXT} NOT NULL,
  why MEDIUMTEXT ${TEXT} NOT NULL,
  detail MEDIUMTEXT ${TEXT} NOT NULL,
  PRIMARY KEY (number),
  KEY subject (subject)
) ${ENGINE}`,
]

/**
 * Columns and indexes for the turns of tenants.
 *
 * An index on records must not cost a write with each claim and each completion, and none can be
 * partial. So these columns are NULL for all records except those that wait for a worker or for a
 * reconciler, and an entry of NULLs does not move. The columns are computed from columns that nodes
 * of every version write, and are stored only in the index.
 *
 * `turn_of` is `to_run` for a record that waits for a worker. Unknown records come after those:
 * first the ones with a stored operation, then the others, by the operation of their scope. Two
 * operations with the same number share their turns.
 *
 * A message without a partition is in the index while it has a place in the empty lane. A partition
 * has the tenant of the message that was added last, and the time of that; a node of the first
 * version changes neither. No turn depends on that tenant alone, because the head of the partition
 * has the tenant that counts. The time only protects partitions in use from being pruned.
 */
const IS_WAITING = `to_run > 1 OR state = _ascii'unknown'`
const IS_FREE = `lane = _binary''`

/** First `turn_of` of unknown records with a stored operation, and of the other unknown records. */
export const UNKNOWN_RUN = 2 ** 32
export const UNKNOWN_SCOPE = 2 ** 33

export const ADD_TURN_INDEX = `
ALTER TABLE {record}
  ADD INDEX /*M! IF NOT EXISTS */ turn (turn_of, turn_tenant, turn_at_ms),
  ALGORITHM = INPLACE, LOCK = NONE`

/**
 * MariaDB adds no column at once to a table with an index on virtual columns: it copies the table,
 * and blocks every write meanwhile. So the index is dropped before, and built again after. Until
 * then, statements that name it fail at once: a worker or reconciler that is behind looks again
 * later. Claims do not use it.
 */
export const DROP_TURN_INDEX = `
ALTER TABLE {record} DROP INDEX /*M! IF EXISTS */ turn, ALGORITHM = INPLACE, LOCK = NONE`

export const TURN_STATEMENTS: readonly string[] = [
  `
ALTER TABLE {record}
  ADD COLUMN /*M! IF NOT EXISTS */ turn_of BIGINT UNSIGNED AS (
    CASE WHEN to_run > 1 THEN to_run
      WHEN state = _ascii'unknown' AND run_as > 1 THEN ${UNKNOWN_RUN} + run_as
      WHEN state = _ascii'unknown' THEN ${UNKNOWN_SCOPE} + CRC32(operation) END) VIRTUAL,
  ADD COLUMN /*M! IF NOT EXISTS */ turn_tenant VARBINARY(1020) AS (
    CASE WHEN ${IS_WAITING} THEN CAST(tenant AS BINARY) END) VIRTUAL,
  ADD COLUMN /*M! IF NOT EXISTS */ turn_at_ms BIGINT AS (
    CASE WHEN ${IS_WAITING} THEN due_at_ms END) VIRTUAL,
  ALGORITHM = INSTANT`,
  ADD_TURN_INDEX,
  `
ALTER TABLE {message}
  ADD COLUMN /*M! IF NOT EXISTS */ tenant VARBINARY(765), ALGORITHM = INSTANT`,
  `
ALTER TABLE {message}
  ADD COLUMN /*M! IF NOT EXISTS */ turn_tenant VARBINARY(765) AS (
    CASE WHEN ${IS_FREE} THEN COALESCE(tenant, _binary'') END) VIRTUAL,
  ADD COLUMN /*M! IF NOT EXISTS */ turn_at_ms BIGINT AS (
    CASE WHEN ${IS_FREE} THEN place END) VIRTUAL,
  ALGORITHM = INSTANT`,
  `
ALTER TABLE {message}
  ADD INDEX /*M! IF NOT EXISTS */ turn (topic, turn_tenant, turn_at_ms, added_at_us),
  ALGORITHM = INPLACE, LOCK = NONE`,
  `
ALTER TABLE {partition}
  ADD COLUMN /*M! IF NOT EXISTS */ tenant VARBINARY(765),
  ADD COLUMN /*M! IF NOT EXISTS */ used_at_ms BIGINT, ALGORITHM = INSTANT`,
  `
ALTER TABLE {partition}
  ADD COLUMN /*M! IF NOT EXISTS */ turn_tenant VARBINARY(765) AS (
    CASE WHEN is_open = 1 THEN COALESCE(tenant, _binary'') END) VIRTUAL,
  ALGORITHM = INSTANT`,
  `
ALTER TABLE {partition}
  ADD INDEX /*M! IF NOT EXISTS */ turn (topic, turn_tenant, lane),
  ALGORITHM = INPLACE, LOCK = NONE`,
]

/**
 * Replies that operators have discarded, which outlive their records. Rows are only inserted, so
 * SELECT and INSERT are enough, as for the audit.
 *
 * An operation with its phases may be larger than the largest packet, so it is divided into pieces:
 * one row each, with increasing numbers. The row of piece 0 also has the result.
 */
export const DISCARDED_TABLE = `
CREATE TABLE IF NOT EXISTS {discarded} (
  number BIGINT NOT NULL AUTO_INCREMENT,
  record_id CHAR(36) ${WORD} NOT NULL,
  identity BINARY(16) NOT NULL,
  tenant VARCHAR(255) ${TEXT} NOT NULL,
  attempt INT NOT NULL,
  discarded_at_ms BIGINT NOT NULL,
  piece INT NOT NULL,
  result LONGBLOB,
  operation LONGBLOB,
  PRIMARY KEY (number),
  KEY record_id (record_id),
  KEY discarded_at_ms (discarded_at_ms)
) ${ENGINE}`
