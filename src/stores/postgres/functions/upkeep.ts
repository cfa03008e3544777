/** Sweeping lapsed records, reaping expired ones, and reading records. */
import { LEASE_AHEAD_MS } from '../../../core/record/shorten-lease.ts'
import {
  CHECK_ISOLATION,
  epochMs,
  HISTORY,
  IS_BEGUN,
  IS_TOMBSTONE,
  isAhead,
  keepHistory,
  keepHistory4,
  MAY_EXPIRE,
  ms,
  NOW,
  OPERATION,
  PROOF,
  RECORD,
  resumeAt,
  SETTINGS,
  shortened,
  STATE,
  VIEW_1,
  VIEW_4,
  wake,
  type View,
} from './parts.ts'

/**
 * Shortens leases that began before the clock was set back. Only the leases that end last are read,
 * so that a sweep does not read all held records. Leases that began later may come before them, but
 * only longer ones, which are as far from their end.
 */
const SHORTEN = `

    WITH last AS MATERIALIZED (
      SELECT r.identity AS id, r.lease_from
      FROM ${RECORD} r
      WHERE r.state = 'in_progress' AND r.lease_until > v_now + ${ms(String(LEASE_AHEAD_MS))}
      ORDER BY r.lease_until DESC LIMIT p_limit),
    l AS MATERIALIZED (
      SELECT r.identity AS id
      FROM last JOIN ${RECORD} r ON r.identity = last.id
      WHERE last.lease_from > v_now AND ${isAhead('v_now')}
      ORDER BY r.identity FOR NO KEY UPDATE OF r SKIP LOCKED)
    UPDATE ${RECORD} r SET ${shortened('v_now')} FROM l WHERE r.identity = l.id;`

/** Settles lapsed records by the policy that their claim has stored in them. */
const sweep = (suffix: string, more: string) => `
CREATE FUNCTION "{schema}"."{table}_sweep${suffix}" (p_now_ms float8, p_limit int)
RETURNS TABLE (
  out_identity text, out_record_id text, out_tenant text, out_operation text, out_attempt int,
  out_state text, out_done bool
) LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
  BEGIN ${CHECK_ISOLATION}
    RETURN QUERY
      WITH l AS MATERIALIZED (
        SELECT r.identity AS id, r.watched, r.on_lapse = 'unknown' AS doubt
        FROM ${RECORD} r
        WHERE r.state = 'in_progress' AND r.lease_until <= v_now
        ORDER BY r.lease_until LIMIT p_limit FOR NO KEY UPDATE OF r SKIP LOCKED)
      UPDATE ${RECORD} r SET
        state = CASE WHEN l.doubt THEN 'unknown'::${STATE} ELSE 'failed_retryable' END,
        lapses = r.lapses + (NOT l.doubt)::int,
        proof = CASE WHEN l.doubt THEN NULL ELSE 'proven'::${PROOF} END,
        error_code = 'lease_lapsed',
        watched = false,
        reconcile_at = CASE WHEN l.doubt THEN v_now ELSE ${resumeAt('v_now')} END,
        tries = CASE WHEN l.doubt THEN 0 ELSE r.tries END,
        expires_at = CASE WHEN l.doubt THEN r.expires_at
          ELSE greatest(r.expires_at, v_now + (r.expires_at - r.last_run_at)) END
      FROM l WHERE r.identity = l.id
      RETURNING encode(r.identity, 'hex'), r.record_id::text, r.tenant, r.operation, r.attempt,
        r.state::text, ${wake('l.watched')};${more}
  END $body$;`

/** Completes records that were accepted and never taken, with the result that the caller passes. */
const COMPLETE_ABANDONED = `
    out_abandoned := 0;
    IF p_retention_ms IS NOT NULL THEN
      WITH l AS MATERIALIZED (
        SELECT r.identity AS id, r.watched
        FROM ${RECORD} r
        WHERE r.state = 'pending' AND NOT ${IS_BEGUN} AND r.expires_at <= v_now
        ORDER BY r.expires_at LIMIT p_limit FOR NO KEY UPDATE OF r SKIP LOCKED),
      u AS (
        UPDATE ${RECORD} r SET
          state = 'completed', result = p_result, token = '', proof = NULL, error_code = NULL,
          reconcile_at = NULL, watched = false, completed_at = v_now,
          expires_at = greatest(r.expires_at, v_now + ${ms('p_retention_ms')})
        FROM l WHERE r.identity = l.id RETURNING ${wake('l.watched')} AS done)
      SELECT count(u.done)::int INTO out_abandoned FROM u;
    END IF;
`

interface Expired {
  /** Further columns of the records that expire, and what is selected of them. */
  readonly more?: string
  readonly select?: string
  readonly into?: string
}

/** Locks expired records: those that are removed, and those whose keys stay refused. */
const lockExpired = ({ more = '', select = '', into = '' }: Expired = {}) => `
    WITH l AS MATERIALIZED (
      SELECT r.ctid AS place, r.after_expiry = 'refuse' AS kept${more}
      FROM ${RECORD} r
      WHERE ${MAY_EXPIRE} AND r.expires_at <= v_now
      ORDER BY r.expires_at LIMIT p_limit - out_abandoned FOR UPDATE OF r SKIP LOCKED)
    SELECT coalesce(array_agg(l.place) FILTER (WHERE NOT l.kept), '{}'),
        coalesce(array_agg(l.place) FILTER (WHERE l.kept), '{}')${select}
      INTO v_gone, v_kept${into} FROM l;`

/**
 * 1. Completes abandoned records. This comes first, because clients wait for these records, and
 *    they rarely use up the limit.
 * 2. Removes expired records, or marks them `expired`. FOR UPDATE skips records to which a row of
 *    an open transaction refers; the next call gets them. The rows are then addressed by ctid,
 *    which cannot change while they are locked: each identity would cost a random page of the
 *    largest index.
 */
const REAP = `
CREATE FUNCTION "{schema}"."{table}_reap" (
  p_now_ms float8, p_limit int, p_history bool, p_result bytea, p_retention_ms float8
) RETURNS TABLE (out_removed int, out_expired int, out_abandoned int)
LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
    v_gone tid[];
    v_kept tid[];
  BEGIN ${CHECK_ISOLATION}${COMPLETE_ABANDONED}${lockExpired()} ${keepHistory(
    'r.ctid = ANY (v_gone || v_kept)',
  )}
    DELETE FROM ${RECORD} r WHERE r.ctid = ANY (v_gone);
    UPDATE ${RECORD} r SET state = 'expired', result = NULL, token = ''
      WHERE r.ctid = ANY (v_kept);
    out_removed := cardinality(v_gone);
    out_expired := cardinality(v_kept);
    RETURN NEXT;
  END $body$;`

/**
 * Like `reap`, but a record whose key stays refused becomes a tombstone: it keeps neither its
 * operation nor anything that `toTombstone` of the core removes. With what is left of the limit,
 * tombstones whose time is over are removed. Tombstones come last, because expired records are
 * larger. Those that are kept for ever have no `reconcile_at`, so no index here contains them.
 */
const REAP_4 = `
CREATE FUNCTION "{schema}"."{table}_reap_4" (
  p_now_ms float8, p_limit int, p_history bool, p_result bytea, p_retention_ms float8
) RETURNS TABLE (out_removed int, out_expired int, out_abandoned int)
LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
    v_gone tid[];
    v_kept tid[];
    v_operations uuid[];
  BEGIN ${CHECK_ISOLATION}${COMPLETE_ABANDONED}${lockExpired({
    more: `,
        CASE WHEN r.recovery_point IS NOT NULL THEN r.record_id END AS operation`,
    select: `,
        array_agg(l.operation) FILTER (WHERE l.kept AND l.operation IS NOT NULL)`,
    into: ', v_operations',
  })} ${keepHistory4('r.ctid = ANY (v_gone || v_kept)')}

    WITH l AS MATERIALIZED (
      SELECT r.ctid AS place
      FROM ${RECORD} r
      WHERE ${IS_TOMBSTONE} AND r.reconcile_at <= v_now
      ORDER BY r.reconcile_at
      LIMIT p_limit - out_abandoned - cardinality(v_gone) - cardinality(v_kept)
      FOR UPDATE OF r SKIP LOCKED)
    SELECT v_gone || coalesce(array_agg(l.place), '{}') INTO v_gone FROM l;

    DELETE FROM ${RECORD} r WHERE r.ctid = ANY (v_gone);
    IF v_operations IS NOT NULL THEN
      DELETE FROM ${OPERATION} o WHERE o.record_id = ANY (v_operations);
    END IF;
    UPDATE ${RECORD} r SET state = 'expired', key = '', fingerprint = '', token = '', proof = NULL,
        recovery_point = NULL, run_name = NULL, run_version = NULL, result = NULL,
        error_code = NULL, watched = false, lease_ms = NULL, lease_from = NULL,
        reconcile_at = r.expires_at + ${ms('r.refuse_for_ms')}
      WHERE r.ctid = ANY (v_kept);
    out_removed := cardinality(v_gone);
    out_expired := cardinality(v_kept);
    RETURN NEXT;
  END $body$;`

/** Reads each state from an index that other functions need. The literal makes it usable. */
const list = (suffix: string, view: View) => `
CREATE FUNCTION "{schema}"."{table}_list${suffix}" (p_state text, p_limit int)
RETURNS TABLE (
  ${view.types}
) LANGUAGE plpgsql STABLE ${SETTINGS} AS $body$
  BEGIN
    CASE p_state
      WHEN 'in_progress' THEN
        RETURN QUERY SELECT ${view.columns} FROM ${RECORD} r
          WHERE r.state = 'in_progress' ORDER BY r.last_run_at LIMIT p_limit;
      WHEN 'completed' THEN
        RETURN QUERY SELECT ${view.columns} FROM ${RECORD} r
          WHERE r.state = 'completed'
          ORDER BY r.expires_at LIMIT p_limit;
      ELSE
        RETURN QUERY SELECT ${view.columns} FROM ${RECORD} r
          WHERE r.state = p_state::${STATE} AND r.state NOT IN ('in_progress', 'completed')
          ORDER BY r.last_run_at LIMIT p_limit;
    END CASE;
  END $body$;`

/** Reads the history of one key or one record, newest first. */
const listHistory = (suffix: string, view: View) => `
CREATE FUNCTION "{schema}"."{table}_history${suffix}" (
  p_identity bytea, p_record_id uuid, p_limit int
) RETURNS TABLE (
  ${view.types}, out_result bytea
) LANGUAGE plpgsql STABLE ${SETTINGS} AS $body$
  BEGIN
    IF p_identity IS NULL THEN
      RETURN QUERY SELECT ${view.historyColumns}, r.result FROM ${HISTORY} r
        WHERE r.record_id = p_record_id LIMIT p_limit;
    ELSE
      RETURN QUERY SELECT ${view.historyColumns}, r.result FROM ${HISTORY} r
        WHERE r.identity = p_identity ORDER BY r.created_at DESC LIMIT p_limit;
    END IF;
  END $body$;`

/**
 * Reads the records of look-ups (`find`), with the time at which they are judged. Takes no lock and
 * waits for no lock.
 */
const FIND = `
CREATE FUNCTION "{schema}"."{table}_find" (p_now_ms float8, p_identity bytea[])
RETURNS TABLE (
  ${VIEW_4.types}, out_result bytea, out_now_ms float8
) LANGUAGE plpgsql STABLE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
  BEGIN
    RETURN QUERY SELECT ${VIEW_4.columns}, r.result, ${epochMs('v_now')}
      FROM unnest(p_identity) AS q (identity)
      JOIN ${RECORD} r ON r.identity = q.identity;
  END $body$;`

/**
 * Marks records, so that the call that settles them sends a notification. `watched`: the record was
 * marked while it was held, so the settlement comes later and sees the mark. `locked`: a call that
 * has not seen the mark may be settling the record, so the caller must mark it again. A record that
 * is missing in the answer is not held any more.
 */
const WATCH = `
CREATE FUNCTION "{schema}"."{table}_watch" (p_identity bytea[])
RETURNS TABLE (out_identity text, out_how text)
LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  BEGIN ${CHECK_ISOLATION}
    WITH l AS MATERIALIZED (
      SELECT r.identity AS id
      FROM unnest(p_identity) AS q (identity)
      JOIN ${RECORD} r ON r.identity = q.identity
      WHERE NOT r.watched
        AND CASE r.state WHEN 'in_progress' THEN true WHEN 'pending' THEN true ELSE false END
      ORDER BY r.identity FOR NO KEY UPDATE OF r SKIP LOCKED)
    UPDATE ${RECORD} r SET watched = true FROM l WHERE r.identity = l.id;

    RETURN QUERY
      SELECT encode(r.identity, 'hex'), CASE WHEN r.watched THEN 'watched' ELSE 'locked' END
      FROM unnest(p_identity) AS q (identity)
      JOIN ${RECORD} r ON r.identity = q.identity
      WHERE CASE r.state WHEN 'in_progress' THEN true WHEN 'pending' THEN true ELSE false END;
  END $body$;`

export const UPKEEP_FUNCTIONS: readonly string[] = [
  sweep('', ''),
  REAP,
  list('', VIEW_1),
  listHistory('', VIEW_1),
  WATCH,
]

/** The functions of migration 2. */
export const UPKEEP_FUNCTIONS_2: readonly string[] = [sweep('_2', SHORTEN)]

/** The functions of migration 4. */
export const UPKEEP_FUNCTIONS_4: readonly string[] = [
  REAP_4,
  list('_4', VIEW_4),
  listHistory('_4', VIEW_4),
  FIND,
]
