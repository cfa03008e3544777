/**
 * The tables beside the records: operations and their phases, the outbox, the audit.
 *
 * Rows of operations and phases go with their record, by statements and not by a foreign key: the
 * server looks for rows that refer to a record with gap locks whatever the isolation, so that the
 * reaping of one key would hold up the first step of another. They would also be looked for with
 * every record, and most have none.
 *
 * What is compared is binary: text collations ignore trailing spaces. A character takes at most
 * three bytes for each unit of a JavaScript string, by which lengths are counted here.
 *
 * Messages that may be relayed some day have a `lane`, and a `place` in it. Without a partition the
 * lane is empty and the place is the time when the message is due, so that one index finds those
 * that are due. A partition is a lane of its own, in which the place is the number of the message;
 * of one that is held, that number is negative, so that nobody takes another one beside it. The
 * first in the lane is its head.
 *
 * Messages that are due at the same time go by the microsecond in which they were added. A number
 * that the table counts would be as good, but LAST_INSERT_ID belongs to the caller, in whose
 * transaction they are added.
 *
 * Neither database can be made to leap from lane to lane in that index, whatever the statistics. So
 * the counters of the partitions say which lanes have something in them: who adds a message has
 * that row anyway, and who closes a lane needs it.
 *
 * Nothing here can be partial, and a trigger that refuses to change the audit could not be made: on
 * a server with a binary log that takes rights which nobody gives to an application. Grant no more
 * than SELECT and INSERT on that table.
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
