/**
 * SQL fragments of the functions that hand out due work in turns. A lane is an operation or a
 * topic. In a lane, the tenants take turns in the order of their names.
 *
 * A function leaps from tenant to tenant. A leap is one index lookup, however many rows a tenant
 * has waiting. The walk begins after the tenant at which the last call stopped, and continues at
 * the first tenant after the last one, once around. Each lane gives one candidate before any lane
 * gives its second.
 */
import { RECORD, SETTINGS } from './parts.ts'

/**
 * Each lookup follows the order of one index. With sorting disabled, the planner cannot choose
 * another index, even on a table that was never analyzed.
 */
export const TURN_SETTINGS = `${SETTINGS}
  SET enable_sort = off`

/**
 * The most leaps that one call makes for one candidate, and for all of them. The next call
 * continues after the last lane and, in each lane, after the last tenant that was examined.
 *
 * If tenants are excluded and nothing was found yet, the lanes continue up to the larger bound. The
 * rows due longest, which otherwise fill the rest of the limit, may all belong to excluded tenants.
 * `turns/walk.ts` says how often such a call is repeated.
 */
export const LEAPS_OF_PICK = 'greatest(64, 2 * p_limit)'
export const LEAPS_MAX = 4_000

/** After this many leaps, a call counts how many rows are due. */
const LEAPS_FEW = 2

/** From this limit on, calls that walk may alternate with calls for the rows due longest. */
const MIXED_MIN = 8

/** No text sorts between `text` and this, so a range from this begins after `text`. */
export const behind = (text: string) => `${text} || chr(1)`

/**
 * The variables of a walk, by the number of the lane. Few have an initial value: every expression
 * that is used costs a microsecond in each transaction.
 */
export const WALK_VARIABLES = `
    v_from text[];
    v_is_around bool[];
    v_is_over bool[];
    v_overs int := 0;
    v_leaps int := 0;
    v_leaps_max int;
    v_walked int := p_limit;
    v_count int := 0;
    v_lane int;
    v_turn int;
    v_tenant text COLLATE "C";`

export interface LeapParts {
  /** The array of the places where the lanes began; an empty text: with the first tenant. */
  readonly start: string
  /** SQL of `afterAFewLeaps`. */
  readonly check?: string
  /** Finds `v_tenant` from `v_from[v_lane]` on. */
  readonly look: string
  /** Reads what the tenant has due. Continues with the next tenant, or picks a row. */
  readonly pick: string
  /** A condition: a lane that was cut short gets another turn. By default no lane does. */
  readonly walksOn?: string
}

/** If tenants are excluded, the walk of a lane continues until a row is found. */
const WHILE_NONE_IS_FOUND = 'v_leaves_out AND v_count = 0'

/** Leaps from tenant to tenant of a lane until a tenant has a row due. */
export const leapInLane = ({ start, check = '', look, pick, walksOn = 'false' }: LeapParts) => `
        v_is_over[v_lane] := true;
        IF v_leaps < ${LEAPS_MAX} THEN v_turn := v_lane; END IF;
        FOR v_leap IN 1 .. v_leaps_max + 1 LOOP
          EXIT WHEN v_is_around[v_lane] AND v_from[v_lane] COLLATE "C" >= ${start}[v_lane];
          IF v_leap > v_leaps_max OR v_leaps >= ${LEAPS_MAX} THEN
            v_is_over[v_lane] := NOT (v_leaps < ${LEAPS_MAX} AND ${walksOn});
            EXIT;
          END IF;
          v_leaps := v_leaps + 1;
          ${check}${look}
          IF v_tenant IS NULL THEN
            EXIT WHEN v_is_around[v_lane] OR ${start}[v_lane] = '';
            v_is_around[v_lane] := true;
            v_from[v_lane] := '';
            CONTINUE;
          END IF;
          EXIT WHEN v_is_around[v_lane] AND v_tenant >= ${start}[v_lane];
          v_from[v_lane] := ${behind('v_tenant')};
          CONTINUE WHEN v_leaves_out AND v_tenant = ANY (p_without);${pick}
          v_is_over[v_lane] := false;
          v_count := v_count + 1;
          EXIT;
        END LOOP;
        IF v_is_over[v_lane] THEN v_overs := v_overs + 1; END IF;`

/**
 * Returns a row for each lane whose tenants were walked. If the walk stopped at the last tenant,
 * the row has no tenant, and the next walk begins with the first.
 */
export const stopsOfLanes = (lanes: { count: string; start: string; name: string }) => `
        FOR v_each IN 1 .. ${lanes.count} LOOP
          CONTINUE WHEN v_from[v_each] = ${lanes.start}[v_each];
          ${lanes.name}
          out_tenant := CASE WHEN v_from[v_each] <> '' THEN left(v_from[v_each], -1) END;
          RETURN NEXT;
        END LOOP;
        out_tenant := NULL;`

/** Runs a check after a few leaps, which may set `v_walked`. */
export const afterAFewLeaps = (check: string) => `IF v_leaps = ${LEAPS_FEW} + 1 THEN ${check}
            EXIT WHEN v_count >= v_walked;
          END IF;`

/**
 * A leap costs as much as five rows that are read in index order. If all due rows fit into the
 * limit, no turns are needed. If the rows due longest belong to as many tenants as the limit, a row
 * of kind `mixed` tells the caller that its next call may skip the turns.
 */
export const shareTurns = (fits: string, isOneLane: string) => `
            IF ${fits} THEN
              v_walked := 0;
            ELSIF p_limit >= ${MIXED_MIN} AND v_due_of >= p_limit AND ${isOneLane} THEN
              out_kind := 'mixed';
              RETURN NEXT;
            END IF;`

/** The index of turns for one kind of record. */
export interface TurnIndex {
  /** The predicate of the index, on the record `x`. */
  readonly predicate: string
  /** A condition on the first columns of the index: the record is in the lane of this number. */
  readonly inLane: (lane: string) => string
  /** Further conditions, beyond the due time. */
  readonly isFit: string
}

/** The fit records of a tenant, longest due first. */
const fittest = ({ predicate, inLane, isFit }: TurnIndex, lane: string, tenant: string) => `
            SELECT x.identity, x.reconcile_at FROM ${RECORD} x
            WHERE ${inLane(lane)} AND ${predicate} AND x.tenant COLLATE "C" >= ${tenant}
              AND (x.tenant COLLATE "C", x.reconcile_at) <= (${tenant}, v_now) AND ${isFit}
            ORDER BY x.tenant COLLATE "C", x.reconcile_at`

/** Leaps to the next tenant of the lane that has a record due, and picks that record. */
export const pickOfLane = (index: TurnIndex, parts: Pick<LeapParts, 'start' | 'check'>) =>
  leapInLane({
    ...parts,
    walksOn: WHILE_NONE_IS_FOUND,
    look: `
          SELECT x.identity, x.tenant, x.reconcile_at, ${index.isFit}
            INTO v_id, v_tenant, v_at, v_is_fit FROM ${RECORD} x
            WHERE ${index.inLane('v_lane')} AND ${index.predicate}
              AND x.tenant COLLATE "C" >= v_from[v_lane]
            ORDER BY x.tenant COLLATE "C", x.reconcile_at LIMIT 1;`,
    pick: `
          CONTINUE WHEN v_at > v_now;
          IF NOT v_is_fit THEN
            v_id := (SELECT y.identity FROM (
              ${fittest(index, 'v_lane', 'v_tenant')} LIMIT 1) AS y);
            CONTINUE WHEN v_id IS NULL;
          END IF;
          v_ids := array_append(v_ids, v_id);
          v_lanes := array_append(v_lanes, v_lane);
          v_tenants := array_append(v_tenants, v_tenant::text);`,
  })

/**
 * Picks more records of the tenants that were reached if others are excluded: the records due
 * longest may all belong to excluded tenants.
 */
export const moreOfTenants = (index: TurnIndex) => `
      IF v_leaves_out AND v_count > 0 AND v_count < p_limit THEN
        SELECT v_ids || coalesce(array_agg(m.identity ORDER BY m.reconcile_at), '{}') INTO v_ids
          FROM (
            SELECT y.identity, y.reconcile_at FROM unnest(v_lanes, v_tenants) AS q (lane, tenant)
            CROSS JOIN LATERAL (${fittest(index, 'q.lane', 'q.tenant')}
              LIMIT 1 + p_limit / v_count) AS y
            WHERE y.identity <> ALL (v_ids)
            ORDER BY y.reconcile_at LIMIT p_limit - v_count) AS m;
        v_count := cardinality(v_ids);
      END IF;`
