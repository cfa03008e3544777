/**
 * The functions that implement `core/record/decide.ts` in the database. One call is one round trip
 * and one transaction. Under READ COMMITTED, each statement of a function sees all commits before
 * that statement began; the parts of one large statement would not.
 *
 * Rules for all functions:
 * - Rows that several calls may change are locked in the order of their identity in a materialized
 *   CTE and updated after that: the order of the input alone does not prevent deadlocks of UPDATEs.
 *   Only `settle` has no such lock.
 * - The lock is FOR NO KEY UPDATE, because a row of the application with a foreign key to a record
 *   holds a key share lock on it, and a renewal or a takeover need not wait for that lock.
 * - Functions skip locked rows; only `settle` and `resolve` wait for them.
 * - A change that ends a wait (a result, a release, doubt, a lapse, a verdict) notifies the
 *   requests that watch the record, and no other change does. A claim that takes the record over
 *   keeps the mark that it is watched.
 * - The settings make the plans independent of statistics, because a new table was never analyzed.
 *
 * A function's parameters and columns never change after a release, because connections keep
 * prepared calls. A changed function gets a new name that ends with the number of its migration,
 * and the old one stays: see `docs/internals/schema-changes.md`.
 */
import { ACT_FUNCTIONS_4 } from './acts.ts'
import { CLAIM_FUNCTIONS, CLAIM_FUNCTIONS_2, CLAIM_FUNCTIONS_4 } from './claim.ts'
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
  VIEW_1,
  VIEW_4,
  wake,
  type View,
} from './parts.ts'
import { TURN_FUNCTIONS_4 } from './turns.ts'
import { UPKEEP_FUNCTIONS, UPKEEP_FUNCTIONS_2, UPKEEP_FUNCTIONS_4 } from './upkeep.ts'

/**
 * Ends leases. The token and the attempt in the WHERE clause are the fence, and PostgreSQL checks
 * them again after it had to wait for a row. Rows that were not written are read after that.
 *
 * There is no separate lock before the UPDATE, which would cost a quarter of its speed. Two calls
 * share a row only if one repeats the other, and both visit their rows in the order of the
 * subselect. If a plan ever used another order, the deadlock is rolled back and the call repeated.
 * The UPDATE keeps `watched`, or RETURNING could not see its old value. A notification too many
 * makes a request read the record once and find no change.
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

/** Reads the records that were not written. */
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

/** Returns one row for all if all were written and each expires as its settlement asks. */
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
 * Settles a single lease, without building, sorting and joining sets. Returns a text without the
 * identity, or null if there is no record.
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
 * Renews leases. Skips locked rows, or one running commit would delay the renewals of all others;
 * the answer distinguishes locked rows from lost leases.
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
 * Applies verdicts. A completing verdict removes the token, so that a late holder is fenced and
 * does not take the result for its own. If several verdicts name one record, by its identity and by
 * its id, the first of the batch applies.
 */
const resolve = (suffix: string, view: View) => `
CREATE FUNCTION "{schema}"."{table}_resolve${suffix}" (
  p_now_ms float8, p_number int[], p_identity bytea[], p_record_id uuid[], p_attempt int[],
  p_kind text[], p_result bytea[], p_retention_ms float8[]
) RETURNS TABLE (
  out_number int, out_done bool, ${view.types}, out_result bytea
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
      RETURNING l.number, ${wake('l.watched')}, ${view.columns}, r.result;

    RETURN QUERY
      SELECT q.number, false, ${view.columns}, NULL::bytea
      FROM unnest(p_number, v_identity) AS q (number, identity)
      JOIN ${RECORD} r ON r.identity = q.identity;
  END $body$;`

export const FUNCTIONS: readonly string[] = [
  ...CLAIM_FUNCTIONS,
  SETTLE,
  SETTLE_ONE,
  renew('', ''),
  resolve('', VIEW_1),
  ...UPKEEP_FUNCTIONS,
]

/** The functions of migration 2, which store the length of the lease. */
export const FUNCTIONS_2: readonly string[] = [
  ...CLAIM_FUNCTIONS_2,
  renew('_2', ', lease_ms = l.lease_ms, lease_from = v_now'),
  ...UPKEEP_FUNCTIONS_2,
]

/**
 * The functions of migration 4: records have a seed of their ids and a time of refusal, expired
 * ones become tombstones, and results can be discarded.
 */
export const FUNCTIONS_4: readonly string[] = [
  ...CLAIM_FUNCTIONS_4,
  resolve('_4', VIEW_4),
  ...UPKEEP_FUNCTIONS_4,
  ...TURN_FUNCTIONS_4,
  ...ACT_FUNCTIONS_4,
]
