import { UNRELAYED_HEADS_MAX, UNRELAYED_TOPICS_MAX } from '../../core/durable-store.ts'
import { epochMs, MESSAGE } from './function-parts.ts'
import { call, VIEW } from './sql.ts'

export const STEP = call(
  'step',
  [
    'float8',
    'text::bool',
    'text::bytea',
    'text',
    'int',
    'text',
    'int',
    'text::bytea',
    'text',
    'text',
    'int',
    'text::bytea',
    'text::bytea',
    'text',
    'text',
    'text',
    'text::bytea',
    'float8',
  ],
  ['kind', 'written', 'own', 'state', 'result', 'expires_at_ms'],
)

export const LOAD = call(
  'load',
  ['uuid[]'],
  [
    'record_id',
    'name',
    'number',
    'kind',
    'state',
    'request',
    'result',
    'downstream_key',
    'provider_id',
    'attempt',
    'first_sent_at_ms',
    'sent_at_ms',
    'done_at_ms',
  ],
)

const TURN = ['kind', 'name', 'version', ...VIEW]

export const DUE = call(
  'due_3',
  ['float8', 'text[]', 'int[]', 'text[]', 'text::bool', 'int', 'text[]'],
  TURN,
)

export const ORPHANS = call(
  'orphans',
  ['float8', 'text[]', 'int[]', 'int'],
  ['name', 'version', 'record_id'],
)

/** Called with literals, in a transaction of any kind: `add-in.ts` has the rest. */
export const ADD = '"{schema}"."{table}_message_add_3"({values})'

export const CLAIM_MESSAGES = call(
  'message_take_3',
  [
    'float8',
    'text[]',
    'int[]',
    'text[]',
    'text::bool',
    'text[]',
    'text::jsonb',
    'text[]',
    'int',
    'float8',
    'text',
    'float8',
  ],
  [
    'kind',
    'id',
    'topic',
    'tenant',
    'key',
    'partition',
    'payload',
    'attempt',
    'provider_id',
    'created_at_ms',
  ],
)

export const SETTLE_MESSAGES = call(
  'message_settle',
  ['float8', 'uuid[]', 'text[]', 'text[]', 'text[]', 'text[]', 'float8[]', 'text[]::bool[]'],
  ['id'],
)

export const RENEW_MESSAGES = call(
  'message_renew',
  ['float8', 'uuid[]', 'text[]', 'float8'],
  ['id'],
)

const MESSAGE_VIEW = [
  'id',
  'topic',
  'tenant',
  'key',
  'partition',
  'payload',
  'state',
  'attempt',
  'errors',
  'provider_id',
  'created_at_ms',
  'due_at_ms',
  'ended_at_ms',
]

export const READ_MESSAGE = call('message_read_3', ['uuid'], MESSAGE_VIEW)

export const LIST_MESSAGES = call('message_list_3', ['text', 'int'], MESSAGE_VIEW)

export const PRUNE_MESSAGES = call('message_prune', ['float8', 'int', 'float8'], ['count'])

const IS_FREE = 'm.partition IS NULL AND m.due_at IS NOT NULL'
const IN_LANE = 'm.partition IS NOT NULL AND (m.due_at IS NOT NULL OR m.blocks)'

/** Walks from topic to topic in the index with this predicate, one look for each. */
const topicsWith = (walk: string, predicate: string) => `${walk} (topic) AS (
    (SELECT m.topic FROM ${MESSAGE} m WHERE ${predicate} ORDER BY m.topic LIMIT 1)
    UNION ALL
    SELECT n.topic FROM ${walk} CROSS JOIN LATERAL (
      SELECT m.topic FROM ${MESSAGE} m WHERE ${predicate} AND m.topic > ${walk}.topic
      ORDER BY m.topic LIMIT 1) AS n)`

const head = (more: string) => `
      SELECT m.id, m.due_at, m.partition FROM ${MESSAGE} m
      WHERE m.topic = t.topic AND ${IN_LANE} ${more} ORDER BY m.partition, m.number LIMIT 1`

/**
 * Not a function of the migrations, so that it works on tables that an older version has made. Each
 * look has the order of an index and ends with its first row, so that a table that was never
 * analysed is not read through.
 */
export const UNRELAYED_MESSAGES = `
  WITH RECURSIVE ${topicsWith('free', IS_FREE)}, ${topicsWith('lanes', IN_LANE)}
  SELECT t.topic, x.id::text, ${epochMs('x.due_at')}
  FROM (
    (SELECT topic FROM free LIMIT ${UNRELAYED_TOPICS_MAX})
    UNION (SELECT topic FROM lanes LIMIT ${UNRELAYED_TOPICS_MAX})) AS t
  CROSS JOIN LATERAL (
    SELECT y.id, y.due_at FROM (
      (SELECT m.id, m.due_at FROM ${MESSAGE} m WHERE m.topic = t.topic AND ${IS_FREE}
        ORDER BY m.due_at, m.number LIMIT 1)
      UNION ALL
      (WITH RECURSIVE heads AS (
          (${head('')})
          UNION ALL
          SELECT h.* FROM heads CROSS JOIN LATERAL (
            ${head('AND m.partition > heads.partition')}) AS h)
        SELECT heads.id, heads.due_at FROM heads LIMIT ${UNRELAYED_HEADS_MAX})) AS y
    WHERE y.due_at <= coalesce(to_timestamp($1::float8 / 1000), clock_timestamp())
      - $3::float8 * interval '1 millisecond'
    ORDER BY y.due_at LIMIT 1) AS x
  WHERE t.topic <> ALL ($2::text[])
  ORDER BY t.topic LIMIT $4::int`

export const LOCK_MESSAGE = call('message_lock', ['float8', 'uuid'], ['state', 'attempt', 'now_ms'])

export const MOVE_MESSAGE = call('message_move', ['float8', 'uuid', 'text'], ['id'])

export const TAKE_UNKNOWN = call(
  'take_unknown_3',
  [
    'float8',
    'int',
    'float8',
    'text',
    'int',
    'text[]',
    'int[]',
    'text[]',
    'text[]',
    'int[]',
    'text[]',
  ],
  TURN,
)

export const POSTPONE = call('postpone', ['float8', 'uuid', 'int', 'int', 'float8'], ['done'])

export const ACT_READ = call(
  'act_read',
  ['float8', 'text::bytea', 'uuid', 'text', 'text'],
  [
    'now_ms',
    'phase_name',
    'phase_number',
    'phase_kind',
    'phase_state',
    'phase_request',
    'phase_result',
    'phase_downstream_key',
    'phase_provider_id',
    'phase_attempt',
    'phase_first_sent_at_ms',
    'phase_sent_at_ms',
    'phase_done_at_ms',
    ...VIEW,
    'result',
  ],
)

export const ACT_WRITE = call(
  'act_write',
  ['text::bool', 'text::bytea', 'text::jsonb', 'text::jsonb', 'text::jsonb'],
  ['done'],
)

export const LIST_AUDIT = call(
  'audit_list',
  ['text', 'int'],
  ['at_ms', 'act', 'subject', 'who', 'why', 'detail'],
)
