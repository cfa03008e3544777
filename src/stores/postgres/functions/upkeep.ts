/** Sweeping lapsed records, reaping expired ones, and reading records. */
import { LEASE_AHEAD_MS } from '../../../core/record/shorten-lease.ts'
import {
  CHECK_ISOLATION,
  HISTORY,
  HISTORY_VIEW_COLUMNS,
  IS_BEGUN,
  isAhead,
  keepHistory,
  MAY_EXPIRE,
  ms,
  NOW,
  PROOF,
  RECORD,
  resumeAt,
  SETTINGS,
  shortened,
  STATE,
  VIEW_COLUMNS,
  VIEW_TYPES,
  wake,
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

/**
 * 1. Completes records that were accepted and never taken, with the result that the caller passes.
 *    This comes first, because clients wait for these records, and they rarely use up the limit.
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
  BEGIN ${CHECK_ISOLATION}
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

    WITH l AS MATERIALIZED (
      SELECT r.ctid AS place, r.after_expiry = 'refuse' AS kept
      FROM ${RECORD} r
      WHERE ${MAY_EXPIRE} AND r.expires_at <= v_now
      ORDER BY r.expires_at LIMIT p_limit - out_abandoned FOR UPDATE OF r SKIP LOCKED)
    SELECT coalesce(array_agg(l.place) FILTER (WHERE NOT l.kept), '{}'),
        coalesce(array_agg(l.place) FILTER (WHERE l.kept), '{}')
      INTO v_gone, v_kept FROM l; ${keepHistory('r.ctid = ANY (v_gone || v_kept)')}
    DELETE FROM ${RECORD} r WHERE r.ctid = ANY (v_gone);
    UPDATE ${RECORD} r SET state = 'expired', result = NULL, token = ''
      WHERE r.ctid = ANY (v_kept);
    out_removed := cardinality(v_gone);
    out_expired := cardinality(v_kept);
    RETURN NEXT;
  END $body$;`

/** Reads each state from an index that other functions need. The literal makes it usable. */
const LIST = `
CREATE FUNCTION "{schema}"."{table}_list" (p_state text, p_limit int)
RETURNS TABLE (
  ${VIEW_TYPES}
) LANGUAGE plpgsql STABLE ${SETTINGS} AS $body$
  BEGIN
    CASE p_state
      WHEN 'in_progress' THEN
        RETURN QUERY SELECT ${VIEW_COLUMNS} FROM ${RECORD} r
          WHERE r.state = 'in_progress' ORDER BY r.last_run_at LIMIT p_limit;
      WHEN 'completed' THEN
        RETURN QUERY SELECT ${VIEW_COLUMNS} FROM ${RECORD} r
          WHERE r.state = 'completed'
          ORDER BY r.expires_at LIMIT p_limit;
      ELSE
        RETURN QUERY SELECT ${VIEW_COLUMNS} FROM ${RECORD} r
          WHERE r.state = p_state::${STATE} AND r.state NOT IN ('in_progress', 'completed')
          ORDER BY r.last_run_at LIMIT p_limit;
    END CASE;
  END $body$;`

/** Reads the history of one key or one record, newest first. */
const LIST_HISTORY = `
CREATE FUNCTION "{schema}"."{table}_history" (
  p_identity bytea, p_record_id uuid, p_limit int
) RETURNS TABLE (
  ${VIEW_TYPES}, out_result bytea
) LANGUAGE plpgsql STABLE ${SETTINGS} AS $body$
  BEGIN
    IF p_identity IS NULL THEN
      RETURN QUERY SELECT ${HISTORY_VIEW_COLUMNS}, r.result FROM ${HISTORY} r
        WHERE r.record_id = p_record_id LIMIT p_limit;
    ELSE
      RETURN QUERY SELECT ${HISTORY_VIEW_COLUMNS}, r.result FROM ${HISTORY} r
        WHERE r.identity = p_identity ORDER BY r.created_at DESC LIMIT p_limit;
    END IF;
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

export const UPKEEP_FUNCTIONS: readonly string[] = [sweep('', ''), REAP, LIST, LIST_HISTORY, WATCH]

/** The functions of migration 2. */
export const UPKEEP_FUNCTIONS_2: readonly string[] = [sweep('_2', SHORTEN)]
