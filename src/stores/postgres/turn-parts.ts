/**
 * What the functions that hand out due work in turns are made of. A lane is an operation or a
 * topic. In a lane the tenants take turns, in the order of their names.
 *
 * A function leaps from tenant to tenant, one look into an index for each, however much a tenant
 * has waiting. It begins behind the tenant at which the last call stopped and comes around once.
 * Each lane gives one candidate before any gives its second.
 */
import { RECORD, SETTINGS } from './function-parts.ts'

/**
 * Each look has the order of one index. Without sorting no other index can be taken for it, not
 * even on a table that was never analysed.
 */
export const TURN_SETTINGS = `${SETTINGS}
  SET enable_sort = off`

/**
 * Leaps that one call makes for one candidate, and for all of them. The next call goes on behind
 * the last lane and, in each lane, behind the last tenant that was examined.
 *
 * Where tenants are left out and nothing was found yet, the lanes go on in turns up to the larger
 * bound: the longest due, which replace the turns otherwise, may be nothing but those of a tenant
 * that is left out. Each leap is one look into an index. `turns.ts` says how often such a call is
 * repeated.
 */
export const LEAPS_OF_PICK = 'greatest(64, 2 * p_limit)'
export const LEAPS_MAX = 4_000

/** After so many leaps it is worth a look how much is due at all. */
const LEAPS_FEW = 2

/** From so many on, calls that walk may alternate with calls for the longest due. */
const MIXED_MIN = 8

/** No text is between another one and this after it, so that "from here" says "behind". */
export const behind = (text: string) => `${text} || chr(1)`

/**
 * What the tenants of the lanes are walked with, by the number of the lane. Few have a value to
 * begin with: in each transaction every expression that is used costs a microsecond.
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
  /** The array of where the lanes began; an empty text: with the first tenant. */
  readonly start: string
  /** `afterAFewLeaps`. */
  readonly check?: string
  /** Finds `v_tenant` from `v_from[v_lane]` on. */
  readonly look: string
  /** Looks at what the tenant has due. Goes on to the next one, or picks. */
  readonly pick: string
  /** In SQL: a lane that was cut short gets another turn. By default none does. */
  readonly walksOn?: string
}

/** Where tenants are left out, a lane is walked on until anything is found. */
const WHILE_NONE_IS_FOUND = 'v_leaves_out AND v_count = 0'

/** Leaps from tenant to tenant of a lane until one has something due. */
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
 * A row for each lane whose tenants were walked. Where the walk has come to the last tenant and no
 * further, it has no tenant: the next one begins with the first.
 */
export const stopsOfLanes = (lanes: { count: string; start: string; name: string }) => `
        FOR v_each IN 1 .. ${lanes.count} LOOP
          CONTINUE WHEN v_from[v_each] = ${lanes.start}[v_each];
          ${lanes.name}
          out_tenant := CASE WHEN v_from[v_each] <> '' THEN left(v_from[v_each], -1) END;
          RETURN NEXT;
        END LOOP;
        out_tenant := NULL;`

/** What is worth a look after a few leaps. May set `v_walked`. */
export const afterAFewLeaps = (check: string) => `IF v_leaps = ${LEAPS_FEW} + 1 THEN ${check}
            EXIT WHEN v_count >= v_walked;
          END IF;`

/**
 * A leap costs as much as five rows that are read one after the other. Where everything that is due
 * fits, no turns are needed. Where the longest due are of as many tenants as asked for, the caller
 * is told that its next call may do without turns.
 */
export const shareTurns = (fits: string, isOneLane: string) => `
            IF ${fits} THEN
              v_walked := 0;
            ELSIF p_limit >= ${MIXED_MIN} AND v_due_of >= p_limit AND ${isOneLane} THEN
              out_kind := 'mixed';
              RETURN NEXT;
            END IF;`

/** One kind of record that is handed out: where it is in the index of its turns. */
export interface TurnIndex {
  /** The predicate of the index, of the record `x`. */
  readonly predicate: string
  /** Of the lane, by its number; the first columns of the index. */
  readonly inLane: (lane: string) => string
  /** Beyond its due time. */
  readonly isFit: string
}

/** The record of a tenant that is the longest due, and fit. */
const fittest = ({ predicate, inLane, isFit }: TurnIndex, lane: string, tenant: string) => `
            SELECT x.identity, x.reconcile_at FROM ${RECORD} x
            WHERE ${inLane(lane)} AND ${predicate} AND x.tenant COLLATE "C" >= ${tenant}
              AND (x.tenant COLLATE "C", x.reconcile_at) <= (${tenant}, v_now) AND ${isFit}
            ORDER BY x.tenant COLLATE "C", x.reconcile_at`

/** Leaps to the next tenant of the lane that has a record due, and picks that. */
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
 * More of the tenants that were reached, where others are left out: what is the longest due of all
 * may then be nothing but theirs.
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
