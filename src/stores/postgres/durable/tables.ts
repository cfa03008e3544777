/**
 * The tables of operations, messages and the audit: a part of the first migration.
 *
 * Operations and phases are deleted with their record, by the foreign keys. The record also has the
 * name and the version of its operation, next to its due time, so that one index finds the
 * operations that a worker can run without reading those it cannot run.
 *
 * Messages have numbers. A transaction that adds to a partition locks the row of the partition
 * until it commits, and takes the number after that lock: within a partition, the order of numbers
 * is the order of commits. The head of a partition is its first message that is open, or that is
 * dead and blocks. The claim holds only one message of a partition, and a unique index guarantees
 * it in any case.
 *
 * A claim and a settlement each write a new version of a message, so every index costs a write. The
 * indexes of due messages contain only open messages, and those of held messages only held ones.
 */
export const DURABLE_TABLES = `
CREATE TABLE "{schema}"."{table}_operation" (
  record_id uuid NOT NULL,
  name text NOT NULL,
  version int NOT NULL,
  input bytea NOT NULL,
  CONSTRAINT "{table}_operation_pkey" PRIMARY KEY (record_id),
  CONSTRAINT "{table}_operation_of" FOREIGN KEY (record_id)
    REFERENCES "{schema}"."{table}" (record_id) ON DELETE CASCADE
);
CREATE TABLE "{schema}"."{table}_phase" (
  record_id uuid NOT NULL,
  number int NOT NULL,
  attempt int NOT NULL,
  first_sent_at timestamptz NOT NULL,
  sent_at timestamptz NOT NULL,
  done_at timestamptz,
  name text NOT NULL,
  kind text NOT NULL CHECK (kind IN ('transaction', 'external')),
  state text NOT NULL CHECK (state IN ('intended', 'done')),
  downstream_key text,
  provider_id text,
  request bytea,
  result bytea,
  CONSTRAINT "{table}_phase_pkey" PRIMARY KEY (record_id, name),
  CONSTRAINT "{table}_phase_of" FOREIGN KEY (record_id)
    REFERENCES "{schema}"."{table}_operation" (record_id) ON DELETE CASCADE
);
CREATE INDEX "{table}_phase_sent" ON "{schema}"."{table}_phase" (downstream_key)
  WHERE downstream_key IS NOT NULL;
CREATE INDEX "{table}_phase_known" ON "{schema}"."{table}_phase" (provider_id)
  WHERE provider_id IS NOT NULL;
CREATE TABLE "{schema}"."{table}_message" (
  id uuid NOT NULL,
  number bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
  created_at timestamptz NOT NULL,
  due_at timestamptz,
  ended_at timestamptz,
  attempt int NOT NULL DEFAULT 0,
  blocks boolean NOT NULL DEFAULT false,
  state text NOT NULL DEFAULT 'ready'
    CHECK (state IN ('ready', 'held', 'done', 'dead', 'dropped')),
  token text NOT NULL DEFAULT '',
  topic text COLLATE "C" NOT NULL,
  partition text COLLATE "C",
  key text,
  provider_id text,
  errors jsonb NOT NULL DEFAULT '[]',
  payload bytea NOT NULL,
  CONSTRAINT "{table}_message_pkey" PRIMARY KEY (id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);
CREATE INDEX "{table}_message_due" ON "{schema}"."{table}_message" (topic, due_at, number)
  WHERE partition IS NULL AND due_at IS NOT NULL;
CREATE INDEX "{table}_message_lane" ON "{schema}"."{table}_message" (topic, partition, number)
  WHERE partition IS NOT NULL AND (due_at IS NOT NULL OR blocks);
CREATE UNIQUE INDEX "{table}_message_held" ON "{schema}"."{table}_message" (topic, partition)
  WHERE partition IS NOT NULL AND state = 'held';
CREATE INDEX "{table}_message_token" ON "{schema}"."{table}_message" (token)
  WHERE state = 'held';
CREATE INDEX "{table}_message_list" ON "{schema}"."{table}_message" (state, number);
CREATE INDEX "{table}_message_over" ON "{schema}"."{table}_message" (ended_at)
  WHERE state IN ('done', 'dropped');
CREATE TABLE "{schema}"."{table}_partition" (
  topic text COLLATE "C" NOT NULL,
  partition text COLLATE "C" NOT NULL,
  CONSTRAINT "{table}_partition_pkey" PRIMARY KEY (topic, partition)
);
CREATE TABLE "{schema}"."{table}_waiting" (
  until timestamptz NOT NULL
);
INSERT INTO "{schema}"."{table}_waiting" VALUES ('-infinity');
CREATE TABLE "{schema}"."{table}_audit" (
  number bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
  at timestamptz NOT NULL,
  act text NOT NULL,
  subject text NOT NULL,
  who text NOT NULL,
  why text NOT NULL,
  detail text NOT NULL,
  CONSTRAINT "{table}_audit_pkey" PRIMARY KEY (number)
);
CREATE INDEX "{table}_audit_about" ON "{schema}"."{table}_audit" (subject, number);
CREATE FUNCTION "{schema}"."{table}_audit_kept" () RETURNS trigger LANGUAGE plpgsql AS $body$
  BEGIN
    RAISE EXCEPTION 'the audit of oncekey is append-only';
  END $body$;
CREATE TRIGGER unchanged BEFORE UPDATE OR DELETE OR TRUNCATE
  ON "{schema}"."{table}_audit" FOR EACH STATEMENT
  EXECUTE FUNCTION "{schema}"."{table}_audit_kept" ();
`

/**
 * Results that operators have discarded, with the operation and its phases as bytes: a part of
 * migration 4. They are for people, and stay when their record is removed. Two discards of one
 * record may have the same attempt, so each has a number; the second constraint makes the index for
 * removing old ones.
 */
export const DISCARDED_TABLE = `
CREATE TABLE "{schema}"."{table}_discarded" (
  number bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
  record_id uuid NOT NULL,
  identity bytea NOT NULL,
  attempt int NOT NULL,
  discarded_at timestamptz NOT NULL,
  tenant text NOT NULL,
  result bytea NOT NULL,
  operation bytea,
  CONSTRAINT "{table}_discarded_pkey" PRIMARY KEY (record_id, number),
  CONSTRAINT "{table}_discarded_at" UNIQUE (discarded_at, number)
);
`
