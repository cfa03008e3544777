/**
 * The messages of the outbox. The rules in `functions.ts` apply here too. Claims and prune skip
 * locked rows; settlements and renewals lock in the order of ids, so they cannot deadlock. A lane
 * is the messages of one partition of a topic.
 */
import {
  CHECK_ISOLATION,
  epochMs,
  MESSAGE,
  ms,
  NOW,
  PARTITION,
  SETTINGS,
  WAITING,
} from './parts.ts'
import { MESSAGE_ERRORS_MAX } from '../../../core/store/durable-store.ts'

/** The payload of the notification about new messages. No identity has this form. */
export const NEWS = 'messages'

/**
 * The most lanes that one claim reads, so that a claim ends soon however many messages wait. The
 * next claim continues where it stopped.
 */
const LANES_MAX = 4_000

/** Due lanes that are read beyond the limit, to take those that have been due longest. */
const LANES_SPARE = 256

/** How often a call retries if the row of its partition is removed between two statements. */
const ADD_TRIES_MAX = 20

/** The message waits, is held, or is dead and blocks its lane. The predicate of the index. */
const inLane = (m: string) =>
  `${m}.partition IS NOT NULL AND (${m}.due_at IS NOT NULL OR ${m}.blocks)`

/** A due message without a partition. The predicate of the index, and the time. */
const isDue = (m: string) =>
  `${m}.partition IS NULL AND ${m}.due_at IS NOT NULL AND ${m}.due_at <= v_now`

/**
 * Runs in the caller's transaction, at its isolation level. The row of the partition is only
 * locked, so that it gets no new version and a snapshot causes no conflict. `prune` may remove it
 * between two statements; then it is inserted again.
 */
const ADD = `
CREATE FUNCTION "{schema}"."{table}_message_add" (
  p_now_ms float8, p_id uuid, p_topic text, p_key text, p_partition text, p_payload bytea,
  p_delay_ms float8
) RETURNS text LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
  BEGIN
    FOR v_try IN 1 .. CASE WHEN p_partition IS NULL THEN 0 ELSE ${ADD_TRIES_MAX} END LOOP
      PERFORM FROM ${PARTITION} p
        WHERE p.topic = p_topic AND p.partition = p_partition FOR NO KEY UPDATE;
      EXIT WHEN FOUND;
      INSERT INTO ${PARTITION} (topic, partition) VALUES (p_topic, p_partition)
        ON CONFLICT (topic, partition) DO NOTHING;
      EXIT WHEN FOUND;
      IF v_try = ${ADD_TRIES_MAX} THEN
        RAISE EXCEPTION 'the partition comes and goes' USING ERRCODE = 'serialization_failure';
      END IF;
    END LOOP;
    INSERT INTO ${MESSAGE} (id, topic, key, partition, payload, created_at, due_at)
      VALUES (p_id, p_topic, p_key, p_partition, p_payload, v_now, v_now + ${ms('p_delay_ms')});
    RETURN 'added';
  END $body$;`

const TELL = `
    PERFORM pg_notify('{channel}', '${NEWS}') FROM ${WAITING} w
      WHERE w.until > clock_timestamp();`

/**
 * Notifies waiting relays. The trigger is deferred to the commit, so that a relay that begins to
 * wait later finds the message. It notifies only while a relay waits, because transactions that
 * notify commit one after the other.
 */
const ANNOUNCE = `
CREATE FUNCTION "{schema}"."{table}_announce" () RETURNS trigger LANGUAGE plpgsql
  SET search_path = pg_catalog, pg_temp AS $body$
  BEGIN ${TELL}
    RETURN NULL;
  END $body$;
CREATE CONSTRAINT TRIGGER announced AFTER INSERT ON ${MESSAGE}
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.due_at <= NEW.created_at)
  EXECUTE FUNCTION "{schema}"."{table}_announce" ();`

const TAKEN = `m.id::text, m.topic, m.key, m.partition, m.payload, m.attempt, m.provider_id,
        ${epochMs('m.created_at')}`

/**
 * 1. Returns the messages that an earlier send of this claim has taken, if its answer was lost.
 * 2. Reads the heads of lanes, from where the last claim of the process stopped: one index lookup
 *    for each lane, however many messages it has.
 * 3. Chooses the messages that have been due longest: the heads, and a number for each topic.
 * 4. Locks the chosen messages without a partition.
 * 5. Locks the chosen heads, and reads each again in a statement that sees all commits until then:
 *    it must still be the head of its lane, and no other message of the lane may be held. A message
 *    that an operator retried may precede a held one; if the lease of the held message has lapsed,
 *    that message becomes ready again.
 * 6. Takes the locked messages.
 * 7. Notes whether a relay waits. This comes last, because other claims may wait for that row.
 *
 * `chr(1)`: no text sorts between a text and the same text with `chr(1)` appended, so a range from
 * the longer text begins after the shorter one. Rows of kind `held` are messages, `cursor` is the
 * place to continue, and `waiting` says that the note was renewed.
 */
const CLAIM = `
CREATE FUNCTION "{schema}"."{table}_message_claim" (
  p_now_ms float8, p_topic text[], p_after text[], p_limit int, p_lease_ms float8, p_token text,
  p_wait_ms float8
) RETURNS TABLE (
  out_kind text, out_id text, out_topic text, out_key text, out_partition text,
  out_payload bytea, out_attempt int, out_provider_id text, out_created_at_ms float8
) LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
    v_lanes_max int := greatest(64, ${LANES_MAX} / greatest(1, cardinality(p_topic)));
    v_looked int;
    v_due int;
    v_start text COLLATE "C";
    v_from text COLLATE "C";
    v_last text;
    v_wrapped bool;
    v_head record;
    v_ids uuid[] := '{}';
    v_dues timestamptz[] := '{}';
    v_numbers bigint[] := '{}';
    v_more uuid[];
    v_picked int[];
    v_counts int[] := array_fill(p_limit, ARRAY[cardinality(p_topic)]);
    v_until timestamptz;
  BEGIN ${CHECK_ISOLATION}
    RETURN QUERY
      SELECT 'held', ${TAKEN} FROM ${MESSAGE} m
      WHERE m.token = p_token AND m.state = 'held' AND m.due_at > v_now ORDER BY m.number;
    IF FOUND THEN RETURN; END IF;

    FOR v_topic IN 1 .. cardinality(p_topic) LOOP
      v_last := p_after[v_topic];
      v_start := coalesce(v_last || chr(1), '');
      v_from := v_start;
      v_wrapped := v_last IS NULL;
      v_looked := 0;
      v_due := 0;
      LOOP
        EXIT WHEN v_looked >= v_lanes_max OR v_due >= p_limit + ${LANES_SPARE};
        SELECT m.id, m.partition, m.due_at, m.number INTO v_head FROM ${MESSAGE} m
          WHERE m.topic = p_topic[v_topic] AND ${inLane('m')} AND m.partition >= v_from
          ORDER BY m.topic, m.partition, m.number LIMIT 1;
        v_looked := v_looked + 1;
        IF v_head.id IS NULL AND NOT v_wrapped THEN
          v_wrapped := true;
          v_from := '';
          CONTINUE;
        END IF;
        IF v_head.id IS NULL OR (v_wrapped AND v_start <> '' AND v_head.partition >= v_start) THEN
          v_last := NULL;
          EXIT;
        END IF;
        v_last := v_head.partition;
        v_from := v_last || chr(1);
        CONTINUE WHEN coalesce(v_head.due_at > v_now, true);
        v_due := v_due + 1;
        v_ids := v_ids || v_head.id;
        v_dues := v_dues || v_head.due_at;
        v_numbers := v_numbers || v_head.number;
      END LOOP;
      out_kind := 'cursor';
      out_topic := p_topic[v_topic];
      out_partition := v_last;
      IF v_last IS DISTINCT FROM p_after[v_topic] THEN RETURN NEXT; END IF;
    END LOOP;

    IF cardinality(p_topic) > 1 OR cardinality(v_ids) > 0 THEN
      SELECT array_agg(d.topic) INTO v_picked FROM (
        SELECT d.topic FROM (
          SELECT q.number::int AS topic, x.due_at, x.number
          FROM unnest(p_topic) WITH ORDINALITY AS q (topic, number)
          CROSS JOIN LATERAL (
            SELECT m.due_at, m.number FROM ${MESSAGE} m
            WHERE m.topic = q.topic AND ${isDue('m')}
            ORDER BY m.due_at, m.number LIMIT p_limit) AS x
          UNION ALL
          SELECT 0, h.due_at, h.number FROM unnest(v_dues, v_numbers) AS h (due_at, number)
        ) AS d ORDER BY d.due_at, d.number LIMIT p_limit) AS d;
      SELECT array_agg(cardinality(array_positions(v_picked, q.number::int)) ORDER BY q.number)
        INTO v_counts FROM unnest(p_topic) WITH ORDINALITY AS q (topic, number);
    END IF;

    WITH l AS MATERIALIZED (
      SELECT m.id FROM unnest(v_ids) AS q (id)
      JOIN ${MESSAGE} m ON m.id = q.id
      WHERE m.due_at <= v_now
      ORDER BY m.due_at, m.number LIMIT cardinality(array_positions(v_picked, 0))
      FOR NO KEY UPDATE OF m SKIP LOCKED)
    SELECT array_agg(l.id) INTO v_more FROM l;
    IF v_more IS NOT NULL THEN
      WITH l AS MATERIALIZED (
        SELECT o.id FROM unnest(v_more) AS q (id)
        JOIN ${MESSAGE} m ON m.id = q.id
        JOIN ${MESSAGE} o ON o.topic = m.topic AND o.partition = m.partition
        WHERE o.partition IS NOT NULL AND o.state = 'held' AND o.id <> m.id AND o.due_at <= v_now
        FOR NO KEY UPDATE OF o SKIP LOCKED)
      UPDATE ${MESSAGE} m SET state = 'ready' FROM l WHERE m.id = l.id;
    END IF;
    SELECT coalesce(array_agg(m.id), '{}'), coalesce(array_agg(m.due_at), '{}'),
        coalesce(array_agg(m.number), '{}')
      INTO v_ids, v_dues, v_numbers
      FROM unnest(v_more) AS q (id)
      JOIN ${MESSAGE} m ON m.id = q.id
      WHERE m.id = (SELECT h.id FROM ${MESSAGE} h
          WHERE h.topic = m.topic AND h.partition = m.partition AND ${inLane('h')}
          ORDER BY h.number LIMIT 1)
        AND NOT EXISTS (SELECT FROM ${MESSAGE} o
          WHERE o.topic = m.topic AND o.partition = m.partition AND o.partition IS NOT NULL
            AND o.state = 'held' AND o.id <> m.id);

    RETURN QUERY
      WITH l AS MATERIALIZED (
        SELECT x.id, x.due_at, x.number FROM unnest(p_topic, v_counts) AS q (topic, count)
        CROSS JOIN LATERAL (
          SELECT m.id, m.due_at, m.number FROM ${MESSAGE} m
          WHERE m.topic = q.topic AND ${isDue('m')}
          ORDER BY m.due_at, m.number LIMIT q.count FOR NO KEY UPDATE OF m SKIP LOCKED) AS x),
      u AS (
        UPDATE ${MESSAGE} m SET state = 'held', token = p_token, attempt = m.attempt + 1,
          due_at = v_now + ${ms('p_lease_ms')}
        FROM (SELECT * FROM l
          UNION ALL SELECT * FROM unnest(v_ids, v_dues, v_numbers)) AS q (id, due_at, number)
        WHERE m.id = q.id
        RETURNING q.due_at AS was_due_at, m.*)
      SELECT 'held', ${TAKEN} FROM u AS m ORDER BY m.was_due_at, m.number;
    IF FOUND THEN
      PERFORM FROM ${WAITING} w WHERE w.until > clock_timestamp() FOR UPDATE SKIP LOCKED;
      IF FOUND THEN UPDATE ${WAITING} SET until = '-infinity'; END IF;
      RETURN;
    END IF;
    SELECT w.until INTO v_until FROM ${WAITING} w;
    IF v_until < clock_timestamp() + ${ms('p_wait_ms / 2')} THEN
      UPDATE ${WAITING} SET until = clock_timestamp() + ${ms('p_wait_ms')};
      out_kind := 'waiting';
      RETURN NEXT;
    END IF;
  END $body$;`

/** CASE, or the planner would scan all messages held under one token for each of them. */
const IS_HELD_BY = `CASE WHEN m.token = q.token THEN m.state = 'held' ELSE false END`

const SETTLED_STATE = `CASE q.kind WHEN 'done' THEN 'done' WHEN 'note' THEN 'held'
        WHEN 'dead' THEN 'dead' ELSE 'ready' END`

/** The errors of a message with a new one; the oldest is removed beyond the limit. */
const MORE_ERRORS = `CASE WHEN jsonb_array_length(m.errors) >= ${MESSAGE_ERRORS_MAX}
          THEN m.errors - 0 ELSE m.errors END
          || jsonb_build_array(jsonb_build_array(${epochMs('v_now')}, m.attempt, l.error))`

/**
 * Returns the ids of the messages that are settled as asked: by this call, or by an earlier one
 * with the same token.
 */
const SETTLE = `
CREATE FUNCTION "{schema}"."{table}_message_settle" (
  p_now_ms float8, p_id uuid[], p_token text[], p_kind text[], p_provider_id text[],
  p_error text[], p_delay_ms float8[], p_blocks bool[]
) RETURNS TABLE (out_id text) LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
    v_count int;
  BEGIN ${CHECK_ISOLATION}
    RETURN QUERY
      WITH l AS MATERIALIZED (
        SELECT m.id, q.kind, ${SETTLED_STATE} AS state, q.provider_id, q.error, q.delay_ms,
          q.blocks
        FROM unnest(p_id, p_token, p_kind, p_provider_id, p_error, p_delay_ms, p_blocks)
          AS q (id, token, kind, provider_id, error, delay_ms, blocks)
        JOIN ${MESSAGE} m ON m.id = q.id
        WHERE ${IS_HELD_BY}
        ORDER BY m.id FOR NO KEY UPDATE OF m)
      UPDATE ${MESSAGE} m SET
        state = l.state,
        attempt = CASE l.kind WHEN 'return' THEN m.attempt - 1 ELSE m.attempt END,
        provider_id = coalesce(l.provider_id, m.provider_id),
        errors = CASE WHEN l.error IS NULL THEN m.errors ELSE ${MORE_ERRORS} END,
        due_at = CASE l.kind WHEN 'note' THEN m.due_at WHEN 'return' THEN v_now
          WHEN 'retry' THEN v_now + ${ms('l.delay_ms')} END,
        ended_at = CASE WHEN l.state IN ('done', 'dead') THEN v_now END,
        blocks = l.blocks AND m.partition IS NOT NULL
      FROM l WHERE m.id = l.id
      RETURNING m.id::text;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count = cardinality(p_id) THEN RETURN; END IF;

    RETURN QUERY
      SELECT m.id::text FROM unnest(p_id, p_token, p_kind) AS q (id, token, kind)
      JOIN ${MESSAGE} m ON m.id = q.id
      WHERE CASE WHEN m.state <> 'held' THEN m.token = q.token AND m.state = ${SETTLED_STATE}
        ELSE false END;
  END $body$;`

/** Returns the ids of the renewed messages. It waits for locks, because they are held briefly. */
const RENEW = `
CREATE FUNCTION "{schema}"."{table}_message_renew" (
  p_now_ms float8, p_id uuid[], p_token text[], p_lease_ms float8
) RETURNS TABLE (out_id text) LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
  BEGIN ${CHECK_ISOLATION}
    RETURN QUERY
      WITH l AS MATERIALIZED (
        SELECT m.id FROM unnest(p_id, p_token) AS q (id, token)
        JOIN ${MESSAGE} m ON m.id = q.id
        WHERE ${IS_HELD_BY}
        ORDER BY m.id FOR NO KEY UPDATE OF m)
      UPDATE ${MESSAGE} m SET due_at = v_now + ${ms('p_lease_ms')}
      FROM l WHERE m.id = l.id
      RETURNING m.id::text;
  END $body$;`

const MESSAGE_VIEW_TYPES = `out_id text, out_topic text, out_key text, out_partition text,
  out_payload bytea, out_state text, out_attempt int, out_errors text, out_provider_id text,
  out_created_at_ms float8, out_due_at_ms float8, out_ended_at_ms float8`

const messageView = (payload: string) => `m.id::text, m.topic, m.key, m.partition, ${payload},
        m.state, m.attempt, m.errors::text, m.provider_id, ${epochMs('m.created_at')},
        ${epochMs('m.due_at')}, ${epochMs('m.ended_at')}`

const READ = `
CREATE FUNCTION "{schema}"."{table}_message_read" (p_id uuid)
RETURNS TABLE (${MESSAGE_VIEW_TYPES}) LANGUAGE plpgsql STABLE ${SETTINGS} AS $body$
  BEGIN
    RETURN QUERY SELECT ${messageView('m.payload')} FROM ${MESSAGE} m WHERE m.id = p_id;
  END $body$;`

const LIST = `
CREATE FUNCTION "{schema}"."{table}_message_list" (p_state text, p_limit int)
RETURNS TABLE (${MESSAGE_VIEW_TYPES}) LANGUAGE plpgsql STABLE ${SETTINGS} AS $body$
  BEGIN
    RETURN QUERY SELECT ${messageView('NULL::bytea')} FROM ${MESSAGE} m
      WHERE m.state = p_state ORDER BY m.number LIMIT p_limit;
  END $body$;`

/**
 * Removes the row of a partition with its last message, unless a transaction is adding to it. The
 * next `add` inserts the row again: its only use is to be locked.
 */
const PRUNE = `
CREATE FUNCTION "{schema}"."{table}_message_prune" (
  p_now_ms float8, p_limit int, p_older_than_ms float8
) RETURNS TABLE (out_count int) LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
    v_ids uuid[];
    v_topics text[];
    v_partitions text[];
    v_lane record;
  BEGIN ${CHECK_ISOLATION}
    WITH l AS MATERIALIZED (
      SELECT m.id, m.topic, m.partition FROM ${MESSAGE} m
      WHERE m.state IN ('done', 'dropped') AND m.ended_at < v_now - ${ms('p_older_than_ms')}
      ORDER BY m.ended_at LIMIT p_limit FOR UPDATE OF m SKIP LOCKED)
    SELECT array_agg(l.id), array_agg(l.topic), array_agg(l.partition)
      INTO v_ids, v_topics, v_partitions FROM l;
    DELETE FROM ${MESSAGE} m WHERE m.id = ANY (v_ids);
    GET DIAGNOSTICS out_count = ROW_COUNT;

    FOR v_lane IN SELECT DISTINCT q.topic, q.partition
      FROM unnest(v_topics, v_partitions) AS q (topic, partition) WHERE q.partition IS NOT NULL
    LOOP
      PERFORM FROM ${PARTITION} p
        WHERE p.topic = v_lane.topic AND p.partition = v_lane.partition FOR UPDATE SKIP LOCKED;
      CONTINUE WHEN NOT FOUND;
      DELETE FROM ${PARTITION} p
        WHERE p.topic = v_lane.topic AND p.partition = v_lane.partition
          AND NOT EXISTS (SELECT FROM ${MESSAGE} m
            WHERE m.topic = v_lane.topic AND m.partition = v_lane.partition AND ${inLane('m')});
    END LOOP;
    RETURN NEXT;
  END $body$;`

/**
 * Locks a message for an operator. Also locks the head of its lane, which a running claim holds
 * locked: otherwise a retried message could be taken together with the message of that claim.
 */
const LOCK = `
CREATE FUNCTION "{schema}"."{table}_message_lock" (p_now_ms float8, p_id uuid)
RETURNS TABLE (out_state text, out_attempt int, out_now_ms float8)
LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_topic text;
    v_partition text;
  BEGIN
    SELECT m.state, m.attempt, m.topic, m.partition
      INTO out_state, out_attempt, v_topic, v_partition
      FROM ${MESSAGE} m WHERE m.id = p_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN; END IF;
    PERFORM FROM ${MESSAGE} m
      WHERE m.topic = v_topic AND m.partition = v_partition AND ${inLane('m')}
      ORDER BY m.number LIMIT 1 FOR NO KEY UPDATE;
    out_now_ms := ${epochMs(NOW)};
    RETURN NEXT;
  END $body$;`

/** Changes the state of a message that `message_lock` has locked. */
const MOVE = `
CREATE FUNCTION "{schema}"."{table}_message_move" (p_now_ms float8, p_id uuid, p_state text)
RETURNS TABLE (out_id text) LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  BEGIN ${TELL}
    RETURN QUERY
      UPDATE ${MESSAGE} m SET state = p_state, token = '', blocks = false,
        due_at = CASE p_state WHEN 'ready' THEN ${NOW} END,
        ended_at = CASE p_state WHEN 'ready' THEN NULL ELSE ${NOW} END
      WHERE m.id = p_id RETURNING m.id::text;
  END $body$;`

export const OUTBOX_FUNCTIONS: readonly string[] = [
  ADD,
  ANNOUNCE,
  CLAIM,
  SETTLE,
  RENEW,
  READ,
  LIST,
  PRUNE,
  LOCK,
  MOVE,
]
