/**
 * Tables for operations, phases, messages and the audit: a part of the first migration.
 *
 * Deleting a record deletes its operation and phases. A lane is a partition with messages that have
 * not ended. One message of a lane is its head, and only the head may be claimed; an index finds
 * due heads without reading the other messages. Message numbers grow in commit order, because
 * SQLite runs one write transaction at a time, so a partition needs no counter.
 *
 * A trigger gives a lane a new head when an operator deletes its head with SQL. Triggers keep audit
 * entries from being changed or deleted.
 */
export const DURABLE = `
  CREATE TABLE "{table}_operation" (
    record_id TEXT NOT NULL PRIMARY KEY
      REFERENCES "{table}" (record_id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    input BLOB NOT NULL
  ) STRICT;

  CREATE TABLE "{table}_phase" (
    record_id TEXT NOT NULL REFERENCES "{table}_operation" (record_id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('transaction', 'external')),
    state TEXT NOT NULL CHECK (state IN ('intended', 'done')),
    downstream_key TEXT,
    provider_id TEXT,
    attempt INTEGER NOT NULL,
    first_sent_at_ms INTEGER NOT NULL,
    sent_at_ms INTEGER NOT NULL,
    done_at_ms INTEGER,
    request BLOB,
    result BLOB,
    PRIMARY KEY (record_id, name)
  ) STRICT;
  CREATE INDEX "{table}_phase_downstream" ON "{table}_phase" (downstream_key)
    WHERE downstream_key IS NOT NULL;
  CREATE INDEX "{table}_phase_provider" ON "{table}_phase" (provider_id)
    WHERE provider_id IS NOT NULL;

  CREATE TABLE "{table}_message" (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    topic TEXT NOT NULL,
    key TEXT,
    partition TEXT,
    lane TEXT,
    is_head INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state = 'ready' OR state = 'held' OR state = 'done' OR
      state = 'dead' OR state = 'dropped'),
    token TEXT,
    attempt INTEGER NOT NULL,
    due_at_ms INTEGER,
    ended_at_ms INTEGER,
    created_at_ms INTEGER NOT NULL,
    provider_id TEXT,
    errors TEXT NOT NULL,
    payload BLOB NOT NULL
  ) STRICT;
  CREATE UNIQUE INDEX "{table}_message_id" ON "{table}_message" (id);
  CREATE INDEX "{table}_message_due" ON "{table}_message" (topic, due_at_ms)
    WHERE is_head = 1 AND due_at_ms IS NOT NULL;
  CREATE INDEX "{table}_message_lane" ON "{table}_message" (topic, lane, number)
    WHERE lane IS NOT NULL;
  CREATE INDEX "{table}_message_token" ON "{table}_message" (token) WHERE state = 'held';
  CREATE INDEX "{table}_message_state" ON "{table}_message" (state, number);
  CREATE INDEX "{table}_message_ended" ON "{table}_message" (ended_at_ms)
    WHERE state IN ('done', 'dropped');
  CREATE TRIGGER "{table}_message_removed" AFTER DELETE ON "{table}_message"
    WHEN old.lane IS NOT NULL AND old.is_head = 1
  BEGIN
    UPDATE "{table}_message" SET is_head = 1 WHERE number = (
      SELECT min(number) FROM "{table}_message" WHERE topic = old.topic AND lane = old.lane);
  END;

  CREATE TABLE "{table}_audit" (
    number INTEGER PRIMARY KEY,
    at_ms INTEGER NOT NULL,
    act TEXT NOT NULL,
    subject TEXT NOT NULL,
    who TEXT NOT NULL,
    why TEXT NOT NULL,
    detail TEXT NOT NULL
  ) STRICT;
  CREATE INDEX "{table}_audit_subject" ON "{table}_audit" (subject);
  CREATE TRIGGER "{table}_audit_unchanged" BEFORE UPDATE ON "{table}_audit"
  BEGIN
    SELECT RAISE(ABORT, 'the audit of oncekey is append-only');
  END;
  CREATE TRIGGER "{table}_audit_kept" BEFORE DELETE ON "{table}_audit"
  BEGIN
    SELECT RAISE(ABORT, 'the audit of oncekey is append-only');
  END;
  `
