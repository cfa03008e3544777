/**
 * The functions that decide, in the database, what `core/decide.ts` says. One call is one round
 * trip and one transaction. Under READ COMMITTED each statement of a function sees what was
 * committed before that statement began, which a single statement with many parts would not.
 *
 * Rules that hold for all of them:
 * - Rows that several calls may want are locked in the order of their identity in a materialised
 *   CTE and updated after that: the order of the input alone does not keep an UPDATE from
 *   deadlocking. Only `settle` does without.
 * - FOR NO KEY UPDATE, because a row of the application that refers to a record holds a key share
 *   lock on it, and a renewal or a takeover need not wait for that.
 * - What nobody has to wait for skips locked rows; only `settle` and `resolve` wait.
 * - Whatever ends a wait (a result, a release, doubt, a lapse, a verdict) tells those who watch the
 *   record, and only then. A claim that takes the record on leaves the watch as it is.
 * - The settings keep the plans from depending on statistics. A table that was never analysed is
 *   everybody's first week.
 *
 * A function's parameters and columns never change after a release: connections keep prepared
 * calls. A changed function gets a new name, with the number of its migration behind, and the old
 * one stays: see `docs/internals/schema-changes.md`.
 */
import { CLAIM_FUNCTIONS, CLAIM_FUNCTIONS_2 } from './claim-functions.ts'
import {
  CHECK_ISOLATION,
  CHECK_ISOLATION_UNLESS_JOINED,
  epochMs,
  ms,
  NOW,
  PROOF,
  RECORD,
  resumeAt,
  SETTINGS,
  shared,
  STATE,
  VIEW_COLUMNS,
  VIEW_TYPES,
  wake,
} from './function-parts.ts'
import { UPKEEP_FUNCTIONS, UPKEEP_FUNCTIONS_2 } from './upkeep-functions.ts'

/**
 * Ends leases. The token and the attempt in the WHERE clause are the fence, and PostgreSQL checks
 * them again where it had to wait for a row. Rows that were not written are read after that.
 *
 * Without a lock before it, which would cost a quarter: two calls have a row in common only where
 * one repeats the other, and both go through their rows in the same order, as the subselect gives
 * them to the join. Where a plan should ever do otherwise, a deadlock is rolled back and repeated.
 * The mark of those who watch stays, or it could not be told from the row whether there are some;
 * whoever it tells once more than needed looks, and finds nothing new.
 */
const settleRows = (settlements: string) => `
      UPDATE ${RECORD} r SET
        state = CASE l.kind WHEN 'complete' THEN 'completed'::${STATE}
          WHEN 'release' THEN 'failed_retryable' ELSE 'unknown' END,
        result = CASE l.kind WHEN 'complete' THEN l.result ELSE r.result END,
        proof = CASE l.kind WHEN 'doubt' THEN r.proof ELSE l.proof::${PROOF} END,
        error_code = l.error_code,
        reconcile_at = CASE l.kind WHEN 'doubt' THEN v_now + ${ms('l.reconcile_after_ms')}
          WHEN 'release' THEN ${resumeAt(`v_now + ${ms('l.resume_after_ms')}`)} END,
        tries = CASE l.kind WHEN 'doubt' THEN 0 ELSE r.tries END,
        completed_at = CASE l.kind WHEN 'complete' THEN v_now ELSE r.completed_at END,
        expires_at = CASE l.kind WHEN 'doubt' THEN r.expires_at
          ELSE greatest(r.expires_at, v_now + ${ms('l.retention_ms')}) END
      FROM ${settlements} AS l
      WHERE r.identity = l.identity AND r.token = l.token
        AND CASE WHEN l.kind = 'release' AND l.attempt = 0 THEN true
          ELSE r.attempt = l.attempt END
        AND CASE r.state
          WHEN 'in_progress' THEN true
          WHEN 'unknown' THEN l.kind = 'complete' OR (l.kind = 'release' AND l.proof = 'proven')
          WHEN 'failed_retryable' THEN l.kind = 'complete'
          ELSE false END`

/** What has become of those that were not written. */
const readRows = (settlements: string) => `
      SELECT encode(r.identity, 'hex'), false,
        r.token = q.token AND CASE WHEN q.kind = 'release' AND q.attempt = 0 THEN true
          ELSE r.attempt = q.attempt END,
        r.state::text, ${epochMs('r.expires_at')}
      FROM ${settlements}
      JOIN ${RECORD} r ON r.identity = q.identity`

const SETTLED = `TABLE (
  out_identity text, out_done bool, out_own bool, out_state text, out_expires_at_ms float8
)`

/** One row for all, where all were written and none expires later than was asked for. */
const SETTLE = `
CREATE FUNCTION "{schema}"."{table}_settle" (
  p_now_ms float8, p_identity bytea[], p_token text[], p_attempt int[], p_kind text[],
  p_result bytea[], p_proof text[], p_error_code text[], p_retention_ms float8[],
  p_reconcile_after_ms float8[], p_resume_after_ms float8[]
) RETURNS ${SETTLED} LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
    v_count int;
    v_as_asked bool;
  BEGIN ${CHECK_ISOLATION_UNLESS_JOINED}
    WITH written AS (${settleRows(`(
        SELECT u.identity, u.token, ${shared('attempt')}, ${shared('kind')}, u.result,
          ${shared('proof')}, ${shared('error_code')}, ${shared('retention_ms')},
          ${shared('reconcile_after_ms')}, ${shared('resume_after_ms')}
        FROM unnest(p_identity, p_token, p_attempt, p_kind, p_result, p_proof,
            p_error_code, p_retention_ms, p_reconcile_after_ms, p_resume_after_ms)
          AS u (identity, token, attempt, kind, result, proof, error_code, retention_ms,
            reconcile_after_ms, resume_after_ms)
        ORDER BY u.identity OFFSET 0)`)}
      RETURNING ${wake('r.watched')}
        AND coalesce(r.expires_at = v_now + ${ms('l.retention_ms')}, false) AS as_asked)
    SELECT count(*), bool_and(as_asked) INTO v_count, v_as_asked FROM written;
    IF v_count = cardinality(p_identity) AND v_as_asked THEN
      out_done := true;
      out_expires_at_ms := ${epochMs('v_now')};
      RETURN NEXT;
      RETURN;
    END IF;
    RETURN QUERY ${readRows(`(
        SELECT u.identity, u.token, ${shared('attempt')}, ${shared('kind')}
        FROM unnest(p_identity, p_token, p_attempt, p_kind)
          AS u (identity, token, attempt, kind)) AS q`)};
  END $body$;`

/**
 * The same for a single one: no set to open, to sort and to join, and a text as the answer, without
 * the identity. Null where there is no record.
 */
const SETTLE_ONE = `
CREATE FUNCTION "{schema}"."{table}_settle_one" (
  p_now_ms float8, p_identity bytea, p_token text, p_attempt int, p_kind text, p_result bytea,
  p_proof text, p_error_code text, p_retention_ms float8, p_reconcile_after_ms float8,
  p_resume_after_ms float8
) RETURNS text LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
    v_answer text;
  BEGIN ${CHECK_ISOLATION_UNLESS_JOINED}
    ${settleRows(`(
        SELECT p_identity AS identity, p_token AS token, p_attempt AS attempt, p_kind AS kind,
          p_result AS result, p_proof AS proof, p_error_code AS error_code,
          p_retention_ms AS retention_ms, p_reconcile_after_ms AS reconcile_after_ms,
          p_resume_after_ms AS resume_after_ms)`)}
      RETURNING CASE WHEN ${wake('r.watched')}
        THEN '[true,true,"' || r.state::text || '",' || ${epochMs('r.expires_at')} || ']' END
      INTO v_answer;
    IF FOUND THEN RETURN v_answer; END IF;

    SELECT json_build_array(f.done, f.own, f.state, f.expires_at_ms)::text INTO v_answer
      FROM (${readRows(`(SELECT p_identity AS identity, p_token AS token, p_attempt AS attempt,
        p_kind AS kind) AS q`)}) AS f (identity, done, own, state, expires_at_ms);
    RETURN v_answer;
  END $body$;`

/**
 * Prolongs leases. Skips locked rows, or one commit under way would hold up the renewals of all
 * others; tells those apart from the lost ones.
 */
const renew = (suffix: string, more: string) => `
CREATE FUNCTION "{schema}"."{table}_renew${suffix}" (
  p_now_ms float8, p_identity bytea[], p_token text[], p_attempt int[], p_lease_ms float8[]
) RETURNS TABLE (out_identity text, out_how text)
LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
    v_count int;
  BEGIN ${CHECK_ISOLATION}
    RETURN QUERY
      WITH l AS MATERIALIZED (
        SELECT r.identity AS id, q.lease_ms
        FROM unnest(p_identity, p_token, p_attempt, p_lease_ms)
          AS q (identity, token, attempt, lease_ms)
        JOIN ${RECORD} r ON r.identity = q.identity
        WHERE r.token = q.token AND r.attempt = q.attempt AND r.state = 'in_progress'
        ORDER BY r.identity FOR NO KEY UPDATE OF r SKIP LOCKED)
      UPDATE ${RECORD} r SET lease_until = v_now + ${ms('l.lease_ms')}${more}
      FROM l WHERE r.identity = l.id
      RETURNING encode(r.identity, 'hex'), 'renewed';
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count = cardinality(p_identity) THEN RETURN; END IF;

    RETURN QUERY
      SELECT encode(r.identity, 'hex'),
        CASE WHEN r.lease_until > v_now THEN 'locked' ELSE 'locked_lapsed' END
      FROM unnest(p_identity, p_token, p_attempt) AS q (identity, token, attempt)
      JOIN ${RECORD} r ON r.identity = q.identity
      WHERE r.token = q.token AND r.attempt = q.attempt AND r.state = 'in_progress';
  END $body$;`

/**
 * A verdict that completes takes the token away: a late holder must read it, not repeat itself. Of
 * several on one record, by its identity and by its id, the first of the batch counts.
 */
const RESOLVE = `
CREATE FUNCTION "{schema}"."{table}_resolve" (
  p_now_ms float8, p_number int[], p_identity bytea[], p_record_id uuid[], p_attempt int[],
  p_kind text[], p_result bytea[], p_retention_ms float8[]
) RETURNS TABLE (
  out_number int, out_done bool, ${VIEW_TYPES}, out_result bytea
) LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
    v_identity bytea[];
  BEGIN ${CHECK_ISOLATION}
    SELECT array_agg(coalesce(q.identity,
        (SELECT x.identity FROM ${RECORD} x WHERE x.record_id = q.record_id)) ORDER BY q.number)
      INTO v_identity
      FROM unnest(p_number, p_identity, p_record_id) AS q (number, identity, record_id);

    RETURN QUERY
      WITH l AS MATERIALIZED (
        SELECT r.identity AS id, r.watched, q.number, q.kind, q.result, q.retention_ms
        FROM unnest(p_number, v_identity, p_attempt, p_kind, p_result, p_retention_ms)
          AS q (number, identity, attempt, kind, result, retention_ms)
        JOIN ${RECORD} r ON r.identity = q.identity
        WHERE r.state = 'unknown' AND r.attempt = coalesce(q.attempt, r.attempt)
        ORDER BY r.identity FOR NO KEY UPDATE OF r)
      UPDATE ${RECORD} r SET
        state = l.kind::${STATE},
        result = CASE l.kind WHEN 'completed' THEN l.result ELSE r.result END,
        token = CASE l.kind WHEN 'completed' THEN '' ELSE r.token END,
        proof = CASE l.kind WHEN 'completed' THEN NULL ELSE 'proven'::${PROOF} END,
        error_code = CASE l.kind WHEN 'completed' THEN NULL ELSE r.error_code END,
        reconcile_at = CASE l.kind WHEN 'completed' THEN NULL ELSE ${resumeAt('v_now')} END,
        watched = false,
        completed_at = CASE l.kind WHEN 'completed' THEN v_now ELSE r.completed_at END,
        expires_at = greatest(r.expires_at, v_now + ${ms('l.retention_ms')})
      FROM (SELECT DISTINCT ON (l.id) * FROM l ORDER BY l.id, l.number) AS l
      WHERE r.identity = l.id
      RETURNING l.number, ${wake('l.watched')}, ${VIEW_COLUMNS}, r.result;

    RETURN QUERY
      SELECT q.number, false, ${VIEW_COLUMNS}, NULL::bytea
      FROM unnest(p_number, v_identity) AS q (number, identity)
      JOIN ${RECORD} r ON r.identity = q.identity;
  END $body$;`

export const FUNCTIONS: readonly string[] = [
  ...CLAIM_FUNCTIONS,
  SETTLE,
  SETTLE_ONE,
  renew('', ''),
  RESOLVE,
  ...UPKEEP_FUNCTIONS,
]

/** From migration 2 on: with the length of the lease. */
export const FUNCTIONS_2: readonly string[] = [
  ...CLAIM_FUNCTIONS_2,
  renew('_2', ', lease_ms = l.lease_ms, lease_from = v_now'),
  ...UPKEEP_FUNCTIONS_2,
]
