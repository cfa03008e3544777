import { UNRELAYED_HEADS_MAX, UNRELAYED_TOPICS_MAX } from '../../../core/store/durable-store.ts'
import { epochMs, MESSAGE } from '../functions/parts.ts'
import { call } from '../sql.ts'

/** Called with literals, in a transaction of the caller or of the store. */
export const ADD = '"{schema}"."{table}_message_add_3"({values})'

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

/** Walks from topic to topic in the index with this predicate, one lookup for each topic. */
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
 * A statement and not a function of the migrations, so that it works on tables of an older version.
 * Each subquery follows the order of an index and stops at its first row, so that the database does
 * not read a whole table that was never analyzed.
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
