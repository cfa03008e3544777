/**
 * Claims messages in turns: by topic, by tenant, and by partition within a tenant. The locking
 * rules of `outbox.ts` apply here too, and `turn-parts.ts` explains turns.
 */
import { CHECK_ISOLATION, epochMs, MESSAGE, ms, NOW, WAITING } from './parts.ts'
import {
  afterAFewLeaps,
  behind,
  leapInLane,
  LEAPS_OF_PICK,
  shareTurns,
  stopsOfLanes,
  TURN_SETTINGS,
  WALK_VARIABLES,
} from './turn-parts.ts'

/**
 * The most partitions that one claim reads beyond those of the turns. If tenants are excluded, the
 * claim also reads their partitions without use, so the bound is lower. The next claim continues.
 */
const PARTITIONS_MAX = 4_000
const PARTITIONS_LEFT_OUT_MAX = 256

/** Due partitions that are read beyond the limit, to take those that have been due longest. */
const PARTITIONS_SPARE = 256

/** Partitions of one tenant that are read in its turn. */
const PARTITIONS_OF_TENANT = 8

/** A message is claimed in the turn of this tenant. The indexes have the same expression. */
const tenantOf = (m: string) => `coalesce(${m}.tenant, '')`

/** The message waits, is held, or is dead and blocks. The predicate of `_message_lane`. */
const inPartition = (m: string) =>
  `${m}.partition IS NOT NULL AND (${m}.due_at IS NOT NULL OR ${m}.blocks)`

/** A message without a partition. The predicate of `_message_due`. */
const isFree = (m: string) => `${m}.partition IS NULL AND ${m}.due_at IS NOT NULL`

/** The predicates of `_message_turn` and `_lane_turn`. */
const isFreeTurn = (m: string) => `${isFree(m)} AND ${m}.attempt >= 0`
const inPartitionTurn = (m: string) => `${inPartition(m)} AND ${m}.attempt >= 0`

/** The due messages of one tenant without a partition, in the order of `_message_turn`. */
const ofTenant = (tenant: string) => `${isFreeTurn('m')} AND ${tenantOf('m')} >= ${tenant}
              AND (${tenantOf('m')}, m.due_at) <= (${tenant}, v_now)`

const TAKEN = `m.id::text, m.topic, m.tenant, m.key, m.partition, m.payload, m.attempt,
        m.provider_id, ${epochMs('m.created_at')}`

/** Finds the topics with due messages without a partition, and the topics with partitions. */
const LOOK_AROUND = `
    SELECT array_agg(coalesce((SELECT m.due_at FROM ${MESSAGE} m
          WHERE m.topic = q.topic AND ${isFree('m')}
          ORDER BY m.due_at, m.number LIMIT 1) <= v_now, false) ORDER BY q.lane),
        array_agg(EXISTS (SELECT FROM ${MESSAGE} m
          WHERE m.topic = q.topic AND ${inPartition('m')}) ORDER BY q.lane)
      INTO v_free, v_parted FROM unnest(p_topic) WITH ORDINALITY AS q (topic, lane);
    v_has_parts := true = ANY (v_parted);`

/** The only topic has a second tenant beside that of the last claim, so it needs turns. */
const isBeside = (than: '<' | '>=', tenant: string) => `(SELECT true FROM ${MESSAGE} m
          WHERE m.topic = p_topic[1] AND ${isFreeTurn('m')} AND ${tenantOf('m')} ${than} ${tenant}
          ORDER BY ${tenantOf('m')}, m.due_at, m.number LIMIT 1)`

const HOW_MUCH_IS_DUE = afterAFewLeaps(`
            IF NOT v_has_parts THEN
              SELECT sum(c.due) <= p_limit AND bool_and(c.due <= q.max), min(c.due_of)
                INTO v_fits, v_due_of FROM unnest(p_topic, p_max) AS q (topic, max)
                CROSS JOIN LATERAL (
                  SELECT count(*) AS due, count(DISTINCT ${tenantOf('d')}) AS due_of FROM (
                    SELECT m.tenant FROM ${MESSAGE} m
                    WHERE m.topic = q.topic AND ${isFree('m')} AND m.due_at <= v_now
                    ORDER BY m.due_at, m.number LIMIT p_limit + 1) AS d) AS c;${shareTurns(
                      'v_fits',
                      'cardinality(p_topic) = 1',
                    )}
            END IF;`)

/**
 * Finds the partition of the tenant whose head has been due longest, among the next few partitions.
 * The head may be a message of another tenant; then it is taken in the turn of that tenant. If all
 * partitions were read, the next turn begins with the first.
 */
const PARTITION_OF_TENANT = `
            v_part_last := (p_parts -> p_topic[v_lane]) ->> v_tenant;
            v_part_start := coalesce(${behind('v_part_last')}, '');
            v_part_from := v_part_start;
            v_is_back := v_part_last IS NULL;
            FOR v_look IN 1 .. ${PARTITIONS_OF_TENANT} LOOP
              SELECT m.id, m.partition, m.due_at, m.number, ${tenantOf('m')} AS tenant
                INTO v_head FROM ${MESSAGE} m
                WHERE m.topic = p_topic[v_lane] AND ${inPartitionTurn('m')}
                  AND (${tenantOf('m')}, m.partition) >= (v_tenant, v_part_from)
                ORDER BY ${tenantOf('m')}, m.partition, m.number LIMIT 1;
              IF v_head.tenant IS DISTINCT FROM v_tenant OR (v_is_back AND v_part_start <> ''
                  AND v_head.partition COLLATE "C" >= v_part_start) THEN
                v_part_last := NULL;
                EXIT WHEN v_is_back;
                v_is_back := true;
                v_part_from := '';
                CONTINUE;
              END IF;
              v_part_last := v_head.partition;
              v_part_from := ${behind('v_head.partition')};
              CONTINUE WHEN coalesce(v_head.due_at > v_now, true)
                OR (v_head.due_at, v_head.number) > (v_part_due, v_part_number)
                OR v_head.id <> (SELECT h.id FROM ${MESSAGE} h
                  WHERE h.topic = p_topic[v_lane] AND h.partition = v_head.partition
                    AND ${inPartition('h')} ORDER BY h.number LIMIT 1);
              v_part_id := v_head.id;
              v_part_due := v_head.due_at;
              v_part_number := v_head.number;
            END LOOP;
            IF v_part_last IS DISTINCT FROM (p_parts -> p_topic[v_lane]) ->> v_tenant THEN
              out_kind := 'partition';
              out_topic := p_topic[v_lane];
              out_tenant := v_tenant;
              out_partition := v_part_last;
              RETURN NEXT;
            END IF;`

const LOOK_AT_TENANT = `
          v_tenant := NULL;
          IF v_free[v_lane] THEN
            SELECT ${tenantOf('m')}, m.due_at, m.number INTO v_tenant, v_due, v_number
              FROM ${MESSAGE} m
              WHERE m.topic = p_topic[v_lane] AND ${isFreeTurn('m')}
                AND ${tenantOf('m')} >= v_from[v_lane]
              ORDER BY ${tenantOf('m')}, m.due_at, m.number LIMIT 1;
          END IF;
          IF v_parted[v_lane] THEN
            v_free_tenant := v_tenant;
            v_parted_tenant := (SELECT ${tenantOf('m')} FROM ${MESSAGE} m
              WHERE m.topic = p_topic[v_lane] AND ${inPartitionTurn('m')}
                AND ${tenantOf('m')} >= v_from[v_lane]
              ORDER BY ${tenantOf('m')}, m.partition, m.number LIMIT 1);
            v_tenant := least(v_tenant, v_parted_tenant);
          END IF;`

/** Picks the message of a tenant that has been due longest: without a partition, or a head. */
const PICK_OF_TENANT = `
          IF v_due > v_now THEN v_due := NULL; END IF;
          v_part_id := NULL;
          v_part_due := NULL;
          IF v_parted[v_lane] THEN
            IF v_free_tenant IS DISTINCT FROM v_tenant THEN v_due := NULL; END IF;
            IF v_parted_tenant = v_tenant THEN ${PARTITION_OF_TENANT}
            END IF;
          END IF;
          CONTINUE WHEN v_due IS NULL AND v_part_id IS NULL;
          IF v_part_id IS NULL OR (v_part_due, v_part_number) > (v_due, v_number) THEN
            v_lanes := array_append(v_lanes, v_lane);
            v_tenants := array_append(v_tenants, v_tenant::text);
          ELSE
            v_ids := v_ids || v_part_id;
          END IF;
          IF v_leaves_out THEN
            v_seen_lanes := array_append(v_seen_lanes, v_lane);
            v_seen := array_append(v_seen, v_tenant::text);
          END IF;
          v_room[v_lane] := v_room[v_lane] - 1;`

/** Picks one message of each topic, then the second of each, up to the limit. */
const WALK_TOPICS = `
      v_leaps_max := ${LEAPS_OF_PICK};
      v_from := p_from;
      WHILE v_count < v_walked AND v_overs < cardinality(p_topic) LOOP
        FOR v_place IN 1 .. cardinality(p_topic) LOOP
          v_lane := v_place;
          CONTINUE WHEN v_is_over[v_lane];
          EXIT WHEN v_count >= v_walked;
          IF v_room[v_lane] <= 0 OR NOT (v_free[v_lane] OR v_parted[v_lane]) THEN
            v_is_over[v_lane] := true;
            v_overs := v_overs + 1;
            CONTINUE;
          END IF;${leapInLane({
            start: 'p_from',
            check: HOW_MUCH_IS_DUE,
            look: LOOK_AT_TENANT,
            pick: PICK_OF_TENANT,
          })}
        END LOOP;
      END LOOP;
      IF v_from <> p_from THEN
        out_kind := 'tenant';
        out_partition := NULL;${stopsOfLanes({
          count: 'cardinality(p_topic)',
          start: 'p_from',
          name: 'out_topic := p_topic[v_each];',
        })}
      END IF;
      out_tenant := NULL;
      IF v_turn IS NOT NULL AND cardinality(p_topic) > 1 THEN
        out_kind := 'turn';
        out_topic := p_topic[v_turn];
        RETURN NEXT;
      END IF;
      v_left := p_limit - v_count;`

/** Locks the message due longest of each picked tenant. Skips messages of other claims. */
const LOCK_PICKED = `
      IF v_lanes IS NOT NULL THEN
        WITH l AS MATERIALIZED (
          SELECT x.id, x.due_at, x.number, q.lane
          FROM unnest(v_lanes, v_tenants) AS q (lane, tenant)
          CROSS JOIN LATERAL (
            SELECT m.id, m.due_at, m.number FROM ${MESSAGE} m
            WHERE m.topic = p_topic[q.lane] AND ${ofTenant('q.tenant')}
            ORDER BY ${tenantOf('m')}, m.due_at, m.number LIMIT 1
            FOR NO KEY UPDATE OF m SKIP LOCKED) AS x)
        SELECT coalesce(array_agg(l.id), '{}'), coalesce(array_agg(l.due_at), '{}'),
            coalesce(array_agg(l.number), '{}'), coalesce(array_agg(l.lane), '{}')
          INTO v_free_ids, v_free_dues, v_free_numbers, v_free_lanes FROM l;
        IF cardinality(v_free_ids) < cardinality(v_lanes) THEN
          v_left := p_limit - cardinality(v_ids) - cardinality(v_free_ids);
          FOR v_pick IN 1 .. cardinality(v_lanes) LOOP
            v_room[v_lanes[v_pick]] := v_room[v_lanes[v_pick]] + 1;
          END LOOP;
          FOR v_pick IN 1 .. cardinality(v_free_lanes) LOOP
            v_room[v_free_lanes[v_pick]] := v_room[v_free_lanes[v_pick]] - 1;
          END LOOP;
        END IF;
      END IF;`

/**
 * Reads the heads of partitions of all tenants, from where the last claim stopped: one index lookup
 * for each partition, however many messages it has.
 */
const WALK_PARTITIONS = `
      FOR v_lane IN 1 .. cardinality(p_topic) LOOP
        CONTINUE WHEN NOT v_parted[v_lane] OR v_room[v_lane] <= 0;
        v_part_last := p_part[v_lane];
        v_part_start := coalesce(${behind('v_part_last')}, '');
        v_part_from := v_part_start;
        v_is_back := v_part_last IS NULL;
        v_looked := 0;
        v_found := 0;
        LOOP
          EXIT WHEN v_looked >= v_parts_max OR v_found >= v_left + ${PARTITIONS_SPARE};
          SELECT m.id, m.partition, m.due_at, m.number, ${tenantOf('m')} AS tenant
            INTO v_head FROM ${MESSAGE} m
            WHERE m.topic = p_topic[v_lane] AND ${inPartition('m')} AND m.partition >= v_part_from
            ORDER BY m.topic, m.partition, m.number LIMIT 1;
          v_looked := v_looked + 1;
          IF v_head.id IS NULL AND NOT v_is_back THEN
            v_is_back := true;
            v_part_from := '';
            CONTINUE;
          END IF;
          IF v_head.id IS NULL OR (v_is_back AND v_part_start <> ''
              AND v_head.partition COLLATE "C" >= v_part_start) THEN
            v_part_last := NULL;
            EXIT;
          END IF;
          v_part_last := v_head.partition;
          v_part_from := ${behind('v_part_last')};
          CONTINUE WHEN coalesce(v_head.due_at > v_now, true) OR v_head.id = ANY (v_ids)
            OR v_head.tenant = ANY (p_without);
          v_found := v_found + 1;
          v_more_ids := v_more_ids || v_head.id;
          v_more_dues := array_append(v_more_dues, v_head.due_at);
          v_more_numbers := array_append(v_more_numbers, v_head.number);
          v_more_lanes := array_append(v_more_lanes, v_lane);
        END LOOP;
        out_kind := 'cursor';
        out_topic := p_topic[v_lane];
        out_partition := v_part_last;
        IF v_part_last IS DISTINCT FROM p_part[v_lane] THEN RETURN NEXT; END IF;
      END LOOP;`

/** Chooses the messages due longest, at most as many of each topic as its limit allows. */
const chosen = (free: string) => `(
            SELECT d.id, d.lane, d.is_free FROM (
              SELECT d.*, row_number() OVER (PARTITION BY d.lane ORDER BY d.due_at, d.number)
                AS place
              FROM (${free}
                UNION ALL
                SELECT h.lane, h.id, h.due_at, h.number, false
                FROM unnest(v_more_lanes, v_more_ids, v_more_dues, v_more_numbers)
                  AS h (lane, id, due_at, number)
              ) AS d) AS d
            WHERE d.place <= v_room[d.lane] ORDER BY d.due_at, d.number LIMIT v_left)`

const longestFree = (limit: string) => `
                SELECT q.lane::int, x.id, x.due_at, x.number, true AS is_free
                FROM unnest(p_topic) WITH ORDINALITY AS q (topic, lane)
                CROSS JOIN LATERAL (
                  SELECT m.id, m.due_at, m.number, m.tenant FROM ${MESSAGE} m
                  WHERE m.topic = q.topic AND ${isFree('m')} AND m.due_at <= v_now
                  ORDER BY m.due_at, m.number LIMIT ${limit}) AS x`

/**
 * Adds the messages due longest to those of the turns: certain heads of partitions, and a number of
 * other messages for each topic. The statement that locks those finds them.
 */
const FILL_OF_ALL = `
      IF cardinality(p_topic) = 1 AND cardinality(v_more_ids) = 0 THEN
        v_counts := ARRAY[least(v_left, v_room[1])];
      ELSE
        SELECT v_ids || coalesce(array_agg(d.id) FILTER (WHERE NOT d.is_free), '{}'),
            coalesce(array_agg(d.lane) FILTER (WHERE d.is_free), '{}')
          INTO v_ids, v_picked FROM ${chosen(`
                ${longestFree('v_left + cardinality(v_free_ids)')}
                WHERE x.id <> ALL (v_free_ids)`)} AS d;
        SELECT array_agg(cardinality(array_positions(v_picked, q.lane::int)) ORDER BY q.lane)
          INTO v_counts FROM unnest(p_topic) WITH ORDINALITY AS q (topic, lane);
      END IF;`

/**
 * If tenants are excluded, the messages due longest may all be theirs. So the tenants that were
 * reached give more messages, and at most twice the limit is read of the messages due longest.
 */
const FILL_OF_SOME = `
        SELECT v_ids || coalesce(array_agg(d.id) FILTER (WHERE NOT d.is_free), '{}'),
            array_agg(d.id) FILTER (WHERE d.is_free)
          INTO v_ids, v_picked_ids FROM ${chosen(`
                SELECT q.lane, x.id, x.due_at, x.number, true AS is_free
                FROM unnest(v_seen_lanes, v_seen) AS q (lane, tenant)
                CROSS JOIN LATERAL (
                  SELECT m.id, m.due_at, m.number FROM ${MESSAGE} m
                  WHERE m.topic = p_topic[q.lane] AND ${ofTenant('q.tenant')}
                  ORDER BY ${tenantOf('m')}, m.due_at, m.number LIMIT v_left + 1) AS x
                WHERE x.id <> ALL (v_free_ids)
                UNION
                ${longestFree('2 * p_limit')}
                WHERE ${tenantOf('x')} <> ALL (p_without) AND x.id <> ALL (v_free_ids)`)} AS d;
        WITH l AS MATERIALIZED (
          SELECT m.id, m.due_at, m.number FROM unnest(v_picked_ids) AS q (id)
          JOIN ${MESSAGE} m ON m.id = q.id
          WHERE CASE WHEN m.partition IS NULL THEN m.due_at <= v_now ELSE false END
          FOR NO KEY UPDATE OF m SKIP LOCKED)
        SELECT v_free_ids || coalesce(array_agg(l.id), '{}'),
            v_free_dues || coalesce(array_agg(l.due_at), '{}'),
            v_free_numbers || coalesce(array_agg(l.number), '{}')
          INTO v_free_ids, v_free_dues, v_free_numbers FROM l;`

const FILL = `
    IF v_left > 0 THEN
      IF v_has_parts THEN
        v_parts_max := CASE WHEN v_leaves_out THEN ${PARTITIONS_LEFT_OUT_MAX}
          ELSE greatest(64, ${PARTITIONS_MAX} / greatest(1, cardinality(p_topic))) END;
        ${WALK_PARTITIONS}
      END IF;
      IF v_leaves_out THEN ${FILL_OF_SOME}
      ELSE ${FILL_OF_ALL}
      END IF;
    END IF;`

/**
 * Locks heads, and reads each again in a statement that sees all commits until then: it must still
 * be the head of its partition, and no other message of the partition may be held. A message that
 * an operator retried may precede a held one; if the lease of the held message has lapsed, that
 * message becomes ready again.
 */
const LOCK_HEADS = `
    IF cardinality(v_ids) > 0 THEN
      WITH l AS MATERIALIZED (
        SELECT m.id FROM unnest(v_ids) AS q (id)
        JOIN ${MESSAGE} m ON m.id = q.id
        WHERE m.due_at <= v_now
        ORDER BY m.due_at, m.number
        FOR NO KEY UPDATE OF m SKIP LOCKED)
      SELECT coalesce(array_agg(l.id), '{}') INTO v_ids FROM l;
      WITH l AS MATERIALIZED (
        SELECT o.id FROM unnest(v_ids) AS q (id)
        JOIN ${MESSAGE} m ON m.id = q.id
        JOIN ${MESSAGE} o ON o.topic = m.topic AND o.partition = m.partition
        WHERE o.partition IS NOT NULL AND o.state = 'held' AND o.id <> m.id AND o.due_at <= v_now
        FOR NO KEY UPDATE OF o SKIP LOCKED)
      UPDATE ${MESSAGE} m SET state = 'ready' FROM l WHERE m.id = l.id;
      SELECT v_free_ids || coalesce(array_agg(m.id), '{}'),
          v_free_dues || coalesce(array_agg(m.due_at), '{}'),
          v_free_numbers || coalesce(array_agg(m.number), '{}')
        INTO v_free_ids, v_free_dues, v_free_numbers
        FROM unnest(v_ids) AS q (id)
        JOIN ${MESSAGE} m ON m.id = q.id
        WHERE m.id = (SELECT h.id FROM ${MESSAGE} h
            WHERE h.topic = m.topic AND h.partition = m.partition AND ${inPartition('h')}
            ORDER BY h.number LIMIT 1)
          AND NOT EXISTS (SELECT FROM ${MESSAGE} o
            WHERE o.topic = m.topic AND o.partition = m.partition AND o.partition IS NOT NULL
              AND o.state = 'held' AND o.id <> m.id);
    END IF;`

/** Takes the locked messages, and for each topic the number that is left to take. */
const TAKE = `
    RETURN QUERY
      WITH l AS MATERIALIZED (
        SELECT x.id, x.due_at, x.number FROM unnest(p_topic, v_counts) AS q (topic, count)
        CROSS JOIN LATERAL (
          SELECT m.id, m.due_at, m.number FROM ${MESSAGE} m
          WHERE m.topic = q.topic AND ${isFree('m')} AND m.due_at <= v_now
            AND m.id <> ALL (v_free_ids)
          ORDER BY m.due_at, m.number LIMIT q.count FOR NO KEY UPDATE OF m SKIP LOCKED) AS x),
      u AS (
        UPDATE ${MESSAGE} m SET state = 'held', token = p_token, attempt = m.attempt + 1,
          due_at = v_now + ${ms('p_lease_ms')}
        FROM (SELECT * FROM l
          UNION ALL SELECT * FROM unnest(v_free_ids, v_free_dues, v_free_numbers))
          AS q (id, due_at, number)
        WHERE m.id = q.id
        RETURNING q.due_at AS was_due_at, m.*)
      SELECT 'held', ${TAKEN} FROM u AS m ORDER BY m.was_due_at, m.number;`

/**
 * 1. Returns the messages that an earlier send of this claim has taken, if its answer was lost.
 * 2. Takes turns, if more messages are due than the limit.
 * 3. If the turns give fewer than the limit, adds the messages due longest.
 * 4. Locks and takes the messages.
 * 5. Notes whether a relay waits. This comes last, because other claims may wait for that row.
 *
 * Rows of kind `held` are messages. The others say where the turns stopped: `tenant` in a topic,
 * `partition` in a tenant, `cursor` in the walk over partitions, and `turn` names the last topic.
 * `waiting` says that a relay waits.
 */
const TAKE_3 = `
CREATE FUNCTION "{schema}"."{table}_message_take_3" (
  p_now_ms float8, p_topic text[], p_max int[], p_from text[], p_walks bool, p_part text[],
  p_parts jsonb, p_without text[], p_limit int, p_lease_ms float8, p_token text, p_wait_ms float8
) RETURNS TABLE (
  out_kind text, out_id text, out_topic text, out_tenant text, out_key text, out_partition text,
  out_payload bytea, out_attempt int, out_provider_id text, out_created_at_ms float8
) LANGUAGE plpgsql VOLATILE ${TURN_SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
    v_leaves_out bool := p_without <> '{}';
    v_parts_max int;
    v_left int := p_limit;
    v_room int[] := p_max;
    v_free bool[];
    v_parted bool[];
    v_has_parts bool;
    v_fits bool;
    v_due_of int;${WALK_VARIABLES}
    v_parted_tenant text COLLATE "C";
    v_free_tenant text COLLATE "C";
    v_due timestamptz;
    v_number bigint;
    v_part_id uuid;
    v_part_due timestamptz;
    v_part_number bigint;
    v_head record;
    v_part_last text;
    v_part_start text;
    v_part_from text;
    v_is_back bool;
    v_looked int;
    v_found int;
    v_lanes int[];
    v_tenants text[];
    v_seen_lanes int[];
    v_seen text[];
    v_ids uuid[] := '{}';
    v_free_ids uuid[] := '{}';
    v_free_dues timestamptz[] := '{}';
    v_free_numbers bigint[] := '{}';
    v_free_lanes int[];
    v_more_ids uuid[] := '{}';
    v_more_dues timestamptz[];
    v_more_numbers bigint[];
    v_more_lanes int[];
    v_picked int[];
    v_picked_ids uuid[];
    v_counts int[] := array_fill(0, ARRAY[cardinality(p_topic)]);
    v_until timestamptz;
  BEGIN ${CHECK_ISOLATION}
    RETURN QUERY
      WITH l AS MATERIALIZED (SELECT m.* FROM ${MESSAGE} m
        WHERE m.token = p_token AND m.state = 'held' AND m.due_at > v_now)
      SELECT 'held', ${TAKEN} FROM l AS m ORDER BY m.number;
    IF FOUND THEN RETURN; END IF;

    IF p_walks OR EXISTS (SELECT FROM ${MESSAGE} m
        WHERE m.topic = p_topic[1] AND ${inPartition('m')}) THEN ${LOOK_AROUND}
      p_walks := true;
      IF cardinality(p_topic) = 1 AND p_from[1] <> '' AND NOT v_has_parts
          AND NOT v_leaves_out THEN
        p_walks := coalesce(${isBeside('>=', 'p_from[1]')},
          ${isBeside('<', 'left(p_from[1], -1)')}, false);
      END IF;
    END IF;
    IF p_walks THEN ${WALK_TOPICS}${LOCK_PICKED}
    END IF;${FILL}${LOCK_HEADS}${TAKE}
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

export const MESSAGE_TURN_FUNCTIONS_3: readonly string[] = [TAKE_3]
