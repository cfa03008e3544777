/** Hands out due operations and unknown records in turns: see `turn-parts.ts`. */
import { CHECK_ISOLATION, ms, NOW, RECORD, VIEW_1, VIEW_4, type View } from './parts.ts'
import {
  afterAFewLeaps,
  LEAPS_MAX,
  LEAPS_OF_PICK,
  moreOfTenants,
  pickOfLane,
  shareTurns,
  stopsOfLanes,
  TURN_SETTINGS,
  WALK_VARIABLES,
  type TurnIndex,
} from './turn-parts.ts'

const TURN_VARIABLES = `${WALK_VARIABLES}
    v_leaves_out bool := p_without <> '{}';
    v_id bytea;
    v_at timestamptz;
    v_is_fit bool;
    v_ids bytea[] := '{}';
    v_lanes int[];
    v_tenants text[];`

/** The predicate of the index `_due`. */
const WAITS = `x.state IN ('pending', 'failed_retryable') AND x.reconcile_at IS NOT NULL`

/** A pending record that has expired is left for `reap`: no worker may take it. */
const IS_FRESH = `CASE x.state WHEN 'pending' THEN x.expires_at > v_now OR x.attempt > 0
            ELSE true END`

const DUE_TURN: TurnIndex = {
  predicate: `${WAITS} AND x.attempt >= 0`,
  inLane: (lane) => `x.run_name = p_name[${lane}] AND x.run_version = p_version[${lane}]`,
  isFit: IS_FRESH,
}

/** The records of each operation that have been due longest. */
const longest = (columns: string, limit: string) => `
        FROM unnest(p_name, p_version) AS q (name, version)
        CROSS JOIN LATERAL (
          SELECT ${columns} FROM ${RECORD} x
          WHERE x.run_name = q.name AND x.run_version = q.version AND ${WAITS}
            AND x.reconcile_at <= v_now AND ${IS_FRESH}
          ORDER BY x.reconcile_at LIMIT ${limit}) AS r`

/** The only operation has a second tenant beside that of the last call, so it needs turns. */
const isBeside = (than: '<' | '>=', tenant: string) => `(SELECT true FROM ${RECORD} x
          WHERE ${DUE_TURN.inLane('1')} AND ${DUE_TURN.predicate}
            AND x.tenant COLLATE "C" ${than} ${tenant}
          ORDER BY x.tenant COLLATE "C", x.reconcile_at LIMIT 1)`

const HOW_MUCH_IS_DUE = `
            SELECT count(*), count(DISTINCT d.tenant) INTO v_due_all, v_due_of FROM (
              SELECT r.tenant ${longest('x.tenant, x.reconcile_at', 'p_limit + 1')}
              ORDER BY r.reconcile_at LIMIT p_limit + 1) AS d;${shareTurns(
                'v_due_all <= p_limit',
                'cardinality(p_name) = 1',
              )}`

/**
 * 1. Takes turns, one record of each operation after the other. An operation without due records is
 *    not walked.
 * 2. If the turns give fewer records than the limit, adds the records due longest. If tenants are
 *    excluded, it reads at most twice the limit for that, and the tenants that were reached give
 *    the rest.
 *
 * Rows of kind `due` are records; `cursor` has the tenant at which an operation stopped; `turn`
 * names the last operation that was examined; `cut` says that the walk ended at its bound without a
 * record; `turn-parts.ts` explains `mixed`. Takes no lock.
 */
const due = (suffix: string, view: View) => `
CREATE FUNCTION "{schema}"."{table}_due${suffix}" (
  p_now_ms float8, p_name text[], p_version int[], p_from text[], p_walks bool, p_limit int,
  p_without text[]
) RETURNS TABLE (
  out_kind text, out_name text, out_version int, ${view.types}
) LANGUAGE plpgsql STABLE ${TURN_SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
    v_due_all int;
    v_due_of int;${TURN_VARIABLES}
  BEGIN
    IF p_walks AND cardinality(p_name) = 1 AND p_from[1] <> '' AND NOT v_leaves_out THEN
      p_walks := coalesce(${isBeside('>=', 'p_from[1]')},
        ${isBeside('<', 'left(p_from[1], -1)')}, false);
    END IF;
    IF p_walks THEN
      v_leaps_max := ${LEAPS_OF_PICK};
      v_from := p_from;
      IF cardinality(p_name) > 1 THEN
        SELECT array_agg(h.is_over ORDER BY h.lane), count(*) FILTER (WHERE h.is_over)
          INTO v_is_over, v_overs FROM (
            SELECT q.lane, coalesce((SELECT x.reconcile_at FROM ${RECORD} x
                WHERE x.run_name = q.name AND x.run_version = q.version AND ${WAITS}
                ORDER BY x.reconcile_at LIMIT 1) > v_now, true) AS is_over
            FROM unnest(p_name, p_version) WITH ORDINALITY AS q (name, version, lane)) AS h;
      END IF;
      WHILE v_count < v_walked AND v_overs < cardinality(p_name) LOOP
        FOR v_place IN 1 .. cardinality(p_name) LOOP
          v_lane := v_place;
          CONTINUE WHEN v_is_over[v_lane];
          EXIT WHEN v_count >= v_walked;${pickOfLane(DUE_TURN, {
            start: 'p_from',
            check: afterAFewLeaps(HOW_MUCH_IS_DUE),
          })}
        END LOOP;
      END LOOP;
      IF v_from <> p_from THEN
        out_kind := 'cursor';${stopsOfLanes({
          count: 'cardinality(p_name)',
          start: 'p_from',
          name: 'out_name := p_name[v_each]; out_version := p_version[v_each];',
        })}
      END IF;
      IF v_turn IS NOT NULL AND cardinality(p_name) > 1 THEN
        out_kind := 'turn';
        out_name := p_name[v_turn];
        out_version := p_version[v_turn];
        RETURN NEXT;
      END IF;${moreOfTenants(DUE_TURN)}
      IF v_count > 0 THEN
        RETURN QUERY
          SELECT 'due', r.run_name, r.run_version, ${view.columns}
          FROM unnest(v_ids) WITH ORDINALITY AS q (identity, number)
          JOIN ${RECORD} r ON r.identity = q.identity ORDER BY q.number;
        IF v_count >= p_limit THEN RETURN; END IF;
      END IF;
    END IF;
    RETURN QUERY
      SELECT 'due', r.run_name, r.run_version, ${view.columns}
        ${longest('x.*', `p_limit + CASE WHEN v_leaves_out THEN p_limit ELSE 0 END`)}
      WHERE r.tenant <> ALL (p_without) AND r.identity <> ALL (v_ids)
      ORDER BY r.reconcile_at LIMIT p_limit - v_count;
    IF NOT FOUND AND v_count = 0 AND v_leaves_out AND v_leaps >= ${LEAPS_MAX} THEN
      out_kind := 'cut';
      RETURN NEXT;
    END IF;
  END $body$;`

/** The version of a group that is named by the operation of the scope. No operation has it. */
export const NO_VERSION = -1

/** Groups unknown records by their stored operation, or else by the operation of the scope. */
const groupName = (r: string) => `coalesce(${r}run_name, ${r}operation)`
export const groupVersion = (r: string) => `coalesce(${r}run_version, ${NO_VERSION})`

/**
 * Names are indexed by a digest: the name in a scope may have 3,072 bytes, and an index entry at
 * most 2,704. A server in FIPS mode rejects MD5, so it is SHA-256. SHA-256 takes bytes, and
 * `decode` is the only conversion to bytes that an index allows; it reads a doubled backslash as
 * one.
 */
const digestOf = (name: string) =>
  `substr(sha256(decode(replace(${name}, chr(92), chr(92) || chr(92)), 'escape')), 1, 16)`
export const groupDigest = (r: string) => digestOf(groupName(r))

/** The predicate of the index `_unknown_turn`. */
const IS_UNKNOWN = `x.state = 'unknown' AND x.reconcile_at IS NOT NULL AND x.attempt >= 0`

const UNKNOWN_TURN: TurnIndex = {
  predicate: IS_UNKNOWN,
  inLane: (lane) => `${groupDigest('x.')} = v_digests[${lane}]
              AND ${groupVersion('x.')} = v_versions[${lane}]`,
  isFit: 'true',
}

/** CASE, or the planner would scan all unknown records for each of them. */
const STILL_UNKNOWN = `CASE WHEN r.state = 'unknown' THEN r.reconcile_at <= v_now ELSE false END`

/**
 * Leaps to the next operation that has unknown records, and begins with its tenants. A NULL name
 * stands for the place before the first operation.
 */
const NEXT_GROUP = `
          EXIT WHEN v_is_all;
          v_is_all := v_groups >= CASE WHEN v_leaves_out AND v_count = 0 THEN ${LEAPS_MAX}
            ELSE v_leaps_max END;
          EXIT WHEN v_is_all;
          v_groups := v_groups + 1;
          SELECT ${groupName('x.')} AS name, ${groupDigest('x.')} AS digest,
              ${groupVersion('x.')} AS version INTO v_group
            FROM ${RECORD} x
            WHERE ${IS_UNKNOWN}
              AND (${groupDigest('x.')}, ${groupVersion('x.')}) > (v_digest, v_version)
            ORDER BY ${groupDigest('x.')}, ${groupVersion('x.')} LIMIT 1;
          IF v_group.name IS NULL AND NOT v_is_back THEN
            v_is_back := true;
            v_name := NULL;
            v_digest := '';
            CONTINUE;
          END IF;
          IF v_group.name IS NULL OR (v_is_back
              AND (v_group.digest, v_group.version) > (v_last_digest, p_last_version)) THEN
            v_is_all := true;
            v_is_whole := true;
            EXIT;
          END IF;
          v_name := v_group.name;
          v_digest := v_group.digest;
          v_version := v_group.version;
          CONTINUE WHEN EXISTS (SELECT FROM unnest(p_without_name, p_without_version)
            AS q (name, version) WHERE q.name = v_name AND q.version = v_version);
          v_names := v_names || v_name;
          v_digests := array_append(v_digests, v_digest);
          v_versions := v_versions || v_version;
          v_starts := array_append(v_starts, coalesce((SELECT q.start
            FROM unnest(p_name, p_version, p_from) AS q (name, version, start)
            WHERE q.name = v_name AND q.version = v_version), ''));
          v_from := array_append(v_from, v_starts[cardinality(v_starts)]);`

/** Takes turns, if more records are due than the call may take. */
const WALK_UNKNOWN = `    IF (SELECT count(*) FROM (SELECT FROM ${RECORD} x
        WHERE x.state = 'unknown' AND x.reconcile_at <= v_now
        ORDER BY x.reconcile_at LIMIT p_limit + 1) AS c) > p_limit THEN
      v_leaps_max := ${LEAPS_OF_PICK};
      LOOP
        v_lane := 0;
        LOOP
          EXIT WHEN v_count >= p_limit OR v_leaps >= ${LEAPS_MAX};
          IF v_lane >= cardinality(v_names) THEN ${NEXT_GROUP}
          END IF;
          v_lane := v_lane + 1;
          CONTINUE WHEN v_is_over[v_lane];${pickOfLane(UNKNOWN_TURN, { start: 'v_starts' })}
        END LOOP;
        EXIT WHEN v_count >= p_limit OR v_leaps >= ${LEAPS_MAX}
          OR v_overs >= cardinality(v_names);
      END LOOP;
      out_kind := 'cursor';${stopsOfLanes({
        count: 'cardinality(v_names)',
        start: 'v_starts',
        name: 'out_name := v_names[v_each]; out_version := v_versions[v_each];',
      })}
      IF NOT v_is_whole OR v_turn IS NOT NULL THEN
        out_kind := 'turn';
        out_name := CASE WHEN v_is_whole THEN v_names[v_turn] ELSE v_name END;
        out_version := CASE WHEN v_is_whole THEN v_versions[v_turn] ELSE v_version END;
        RETURN NEXT;
      END IF;
    END IF;`

/** Locks the records of the turns, and then those due longest. */
const LOCK_UNKNOWN = `    ${moreOfTenants(UNKNOWN_TURN)}
    IF v_count > 0 THEN
      WITH l AS MATERIALIZED (
        SELECT r.identity, q.number FROM unnest(v_ids) WITH ORDINALITY AS q (identity, number)
        JOIN ${RECORD} r ON r.identity = q.identity
        WHERE ${STILL_UNKNOWN}
        ORDER BY q.number FOR NO KEY UPDATE OF r SKIP LOCKED)
      SELECT coalesce(array_agg(l.identity ORDER BY l.number), '{}') INTO v_ids FROM l;
    END IF;
    v_count := cardinality(v_ids);
    IF v_count < p_limit THEN
      WITH l AS MATERIALIZED (
        SELECT x.identity, x.reconcile_at, x.tenant, ${groupName('x.')} AS name,
          ${groupVersion('x.')} AS version
        FROM ${RECORD} x WHERE x.state = 'unknown' AND x.reconcile_at <= v_now
        ORDER BY x.reconcile_at LIMIT v_read FOR NO KEY UPDATE OF x SKIP LOCKED)
      SELECT v_ids || coalesce(array_agg(m.identity ORDER BY m.reconcile_at), '{}') INTO v_ids
        FROM (
          SELECT l.identity, l.reconcile_at FROM l
          WHERE l.identity <> ALL (v_ids) AND l.tenant <> ALL (p_without)
            AND NOT EXISTS (SELECT FROM unnest(p_without_name, p_without_version)
              AS q (name, version) WHERE q.name = l.name AND q.version = l.version)
          ORDER BY l.reconcile_at LIMIT p_limit - v_count) AS m;
    END IF;`

/**
 * Like `due`, but the operations are not known in advance: the function leaps from one operation
 * with unknown records to the next. It makes each returned record due later, so that no other node
 * reconciles it at the same time. It skips records that another node has locked, and takes the ones
 * due longest instead.
 */
const takeUnknown = (suffix: string, view: View) => `
CREATE FUNCTION "{schema}"."{table}_take_unknown${suffix}" (
  p_now_ms float8, p_limit int, p_again_ms float8, p_last_name text, p_last_version int,
  p_name text[], p_version int[], p_from text[],
  p_without_name text[], p_without_version int[], p_without text[]
) RETURNS TABLE (
  out_kind text, out_name text, out_version int, ${view.types}
) LANGUAGE plpgsql VOLATILE ${TURN_SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};${TURN_VARIABLES}
    v_names text[] := '{}';
    v_digests bytea[] := '{}';
    v_versions int[] := '{}';
    v_starts text[] := '{}';
    v_name text;
    v_last_digest bytea := ${digestOf('p_last_name')};
    v_digest bytea := coalesce(v_last_digest, '');
    v_version int := coalesce(p_last_version, ${NO_VERSION});
    v_group record;
    v_groups int := 0;
    v_is_back bool := p_last_name IS NULL;
    v_is_all bool := false;
    v_is_whole bool := false;
    v_read int;
  BEGIN ${CHECK_ISOLATION}
    v_leaves_out := v_leaves_out OR cardinality(p_without_name) > 0;
    v_read := p_limit + CASE WHEN v_leaves_out THEN p_limit ELSE 0 END;
${WALK_UNKNOWN}

${LOCK_UNKNOWN}
    UPDATE ${RECORD} r SET tries = r.tries + 1, reconcile_at = v_now + ${ms('p_again_ms')}
      WHERE r.identity = ANY (v_ids);
    RETURN QUERY
      SELECT 'due', NULL::text, NULL::int, ${view.columns}
      FROM unnest(v_ids) WITH ORDINALITY AS q (identity, number)
      JOIN ${RECORD} r ON r.identity = q.identity ORDER BY q.number;
    IF v_ids = '{}' AND v_leaves_out AND greatest(v_leaps, v_groups) >= ${LEAPS_MAX} THEN
      out_kind := 'cut';
      RETURN NEXT;
    END IF;
  END $body$;`

export const TURN_FUNCTIONS_3: readonly string[] = [due('_3', VIEW_1), takeUnknown('_3', VIEW_1)]

export const TURN_FUNCTIONS_4: readonly string[] = [due('_4', VIEW_4), takeUnknown('_4', VIEW_4)]
