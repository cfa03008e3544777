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
 * calls. A new shape gets a new name and a new migration.
 */
import {
  CHECK_ISOLATION,
  CHECK_ISOLATION_UNLESS_JOINED,
  epochMs,
  IS_BEGUN,
  IS_EXPIRED,
  keepHistory,
  ms,
  NOW,
  RECORD,
  resumeAt,
  SETTINGS,
  VIEW_COLUMNS,
  VIEW_TYPES,
  wake,
} from './function-parts.ts'
import { UPKEEP_FUNCTIONS } from './upkeep-functions.ts'

const CLAIM_COLUMNS = `identity, record_id, tenant, operation, key, fingerprint, state, attempt,
        lapses, token, lease_until, on_lapse, after_expiry, created_at, last_run_at, expires_at`

const CLAIM_REQUESTS = `unnest(p_mode, p_identity, p_record_id, p_tenant, p_operation, p_key,
        p_fingerprint, p_token, p_lease_ms, p_retention_ms, p_on_lapse, p_max_attempts,
        p_after_expiry)
      AS q (mode, identity, record_id, tenant, operation, key, fingerprint, token, lease_ms,
        retention_ms, on_lapse, max_attempts, after_expiry)`

/** A first attempt, or none yet, from a claim request. Another mode is an error of the row. */
const FRESH = `q.identity, q.record_id, q.tenant, q.operation, q.key, q.fingerprint,
        CASE q.mode WHEN 'hold' THEN 'in_progress' WHEN 'accept' THEN 'pending' END,
        (q.mode = 'hold')::int, 0, q.token,
        v_now + ${ms(`CASE q.mode WHEN 'hold' THEN q.lease_ms ELSE 0 END`)},
        CASE WHEN 1 >= q.max_attempts THEN 'unknown' ELSE q.on_lapse END,
        q.after_expiry, v_now, v_now, v_now + ${ms('q.retention_ms')}`

/** What a claim that has just written tells. */
const taken = (how: string, own = 'true') => `encode(r.identity, 'hex'), ${how},
        r.record_id::text, r.state, r.attempt, ${own}, r.fingerprint, r.recovery_point,
        NULL::bytea, 0::float8, 0::float8,
        ${epochMs('r.expires_at')}`

const TAKEN_OVER = `CASE l.was WHEN 'in_progress' THEN 'lapsed' WHEN 'pending' THEN 'accepted'
        ELSE 'retry' END`

/** What a claim that only finds tells. */
const found = (how: string, result: string) => `encode(r.identity, 'hex'), ${how},
        r.record_id::text, r.state, r.attempt, r.token = q.token, r.fingerprint,
        r.recovery_point, ${result}`

const insertFree = (filter: string) => `
      INSERT INTO ${RECORD} AS r (${CLAIM_COLUMNS})
      SELECT ${FRESH}
      FROM ${CLAIM_REQUESTS}
      WHERE q.mode <> 'take' ${filter}
      ORDER BY q.identity
      ON CONFLICT (identity) DO NOTHING`

/**
 * 1. Takes the keys where all are free, as those of first requests are, and tells no more than
 *    that, in one row: the rest is as it was asked for.
 * 2. Reads what is completed: most retries end here. In a batch that goes on, step 5 tells the same
 *    of it again. Then takes the free keys among the others. Existing rows are filtered before the
 *    INSERT, because DO NOTHING would wait for a row that an open transaction has updated.
 * 3. Takes over what was released, accepted or has lapsed, or moves a lapsed record to \`unknown\`.
 * 4. Replaces expired records, by DELETE, so that rows which refer to the old one let go of it.
 * 5. Reads the rest. A row of step 3 or 4 that somebody has locked shows up here as it was.
 *
 * CASE, not OR or AND, on the state: the planner would walk an index of all rows in that state.
 */
const CLAIM = `
CREATE FUNCTION "{schema}"."{table}_claim" (
  p_now_ms float8, p_history bool, p_mode text[], p_identity bytea[], p_record_id uuid[],
  p_tenant text[], p_operation text[], p_key text[], p_fingerprint text[], p_token text[],
  p_lease_ms float8[], p_retention_ms float8[], p_on_lapse text[], p_max_attempts int[],
  p_after_expiry text[]
) RETURNS TABLE (
  out_identity text, out_how text, out_record_id text, out_state text, out_attempt int,
  out_own bool, out_fingerprint text, out_recovery_point text, out_result bytea,
  out_lease_left_ms float8, out_reconcile_in_ms float8, out_expires_at_ms float8
) LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
    v_count int;
    v_completed int;
    v_gone bytea[];
  BEGIN ${CHECK_ISOLATION}
    SELECT count(*) INTO v_count FROM unnest(p_identity) AS q (identity)
      JOIN ${RECORD} r ON r.identity = q.identity;
    IF v_count = 0 THEN
      ${insertFree('')};
      GET DIAGNOSTICS v_count = ROW_COUNT;
      IF v_count = cardinality(p_identity) THEN
        RETURN QUERY SELECT NULL::text, 'all_new', NULL::text, NULL::text, NULL::int, NULL::bool,
          NULL::text, NULL::text, NULL::bytea, NULL::float8, NULL::float8, ${epochMs('v_now')};
        RETURN;
      END IF;
    END IF;

    RETURN QUERY
      SELECT ${found(`'found'`, 'r.result')}, 0::float8, 0::float8, ${epochMs('r.expires_at')}
      FROM unnest(p_identity, p_fingerprint, p_token) AS q (identity, fingerprint, token)
      JOIN ${RECORD} r ON r.identity = q.identity
      WHERE CASE r.state WHEN 'completed'
        THEN r.fingerprint = q.fingerprint AND r.expires_at > v_now ELSE false END;
    GET DIAGNOSTICS v_completed = ROW_COUNT;
    IF v_completed = cardinality(p_identity) THEN RETURN; END IF;

    RETURN QUERY ${insertFree(
      `AND (SELECT x.identity FROM ${RECORD} x WHERE x.identity = q.identity) IS NULL`,
    )}
      RETURNING ${taken(`'new'`)};
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_completed + v_count = cardinality(p_identity) THEN RETURN; END IF;

    RETURN QUERY
      WITH l AS MATERIALIZED (
        SELECT r.identity AS id, r.state AS was, r.watched,
          r.state = 'in_progress' AND r.on_lapse = 'unknown' AS doubt,
          (r.state = 'in_progress')::int AS lapsed, q.mode = 'accept' AS later,
          q.token, q.lease_ms, q.retention_ms, q.on_lapse, q.max_attempts, q.after_expiry
        FROM ${CLAIM_REQUESTS}
        JOIN ${RECORD} r ON r.identity = q.identity
        WHERE r.fingerprint = q.fingerprint AND CASE r.state
          WHEN 'failed_retryable' THEN r.token <> q.token
            AND (r.recovery_point IS NOT NULL OR r.expires_at > v_now)
          WHEN 'in_progress' THEN r.lease_until <= v_now AND r.token <> q.token
          WHEN 'pending' THEN q.mode = 'take' AND (r.expires_at > v_now OR ${IS_BEGUN})
          ELSE false END
        ORDER BY r.identity FOR NO KEY UPDATE OF r SKIP LOCKED)
      UPDATE ${RECORD} r SET
        state = CASE WHEN l.doubt THEN 'unknown' WHEN l.later THEN 'pending'
          ELSE 'in_progress' END,
        attempt = CASE WHEN l.doubt OR l.later THEN r.attempt ELSE r.attempt + 1 END,
        lapses = CASE WHEN l.doubt THEN r.lapses ELSE r.lapses + l.lapsed END,
        token = CASE WHEN l.doubt THEN r.token ELSE l.token END,
        lease_until = CASE WHEN l.doubt THEN r.lease_until WHEN l.later THEN v_now
          ELSE v_now + ${ms('l.lease_ms')} END,
        watched = r.watched AND NOT l.doubt,
        on_lapse = CASE WHEN l.doubt THEN r.on_lapse
          WHEN r.lapses + l.lapsed + 1 >= l.max_attempts THEN 'unknown'
          ELSE l.on_lapse END,
        after_expiry = CASE WHEN l.doubt THEN r.after_expiry ELSE l.after_expiry END,
        proof = NULL,
        error_code = CASE WHEN l.doubt THEN 'lease_lapsed' END,
        reconcile_at = CASE WHEN l.doubt THEN v_now WHEN l.later THEN ${resumeAt('v_now')} END,
        tries = CASE WHEN l.doubt THEN 0 ELSE r.tries END,
        last_run_at = CASE WHEN l.doubt THEN r.last_run_at ELSE v_now END,
        expires_at = CASE WHEN l.doubt THEN r.expires_at
          ELSE greatest(r.expires_at, v_now + ${ms('l.retention_ms')}) END
      FROM l WHERE r.identity = l.id
      RETURNING ${taken(TAKEN_OVER, wake('l.doubt AND l.watched'))};

    WITH l AS MATERIALIZED (
      SELECT r.identity AS id
      FROM ${CLAIM_REQUESTS}
      JOIN ${RECORD} r ON r.identity = q.identity
      WHERE q.after_expiry = 'new' AND q.mode <> 'take' AND ${IS_EXPIRED}
      ORDER BY r.identity FOR UPDATE OF r SKIP LOCKED)
    SELECT array_agg(l.id) INTO v_gone FROM l;
    IF v_gone IS NOT NULL THEN ${keepHistory('v_gone')}
      DELETE FROM ${RECORD} r WHERE r.identity = ANY (v_gone);
      RETURN QUERY
        INSERT INTO ${RECORD} AS r (${CLAIM_COLUMNS})
        SELECT ${FRESH}
        FROM ${CLAIM_REQUESTS}
        WHERE q.identity = ANY (v_gone)
        ORDER BY q.identity
        RETURNING ${taken(`'expired'`)};
    END IF;

    RETURN QUERY
      SELECT ${found(
        `CASE WHEN ${IS_EXPIRED} THEN 'found_expired'
          WHEN r.state = 'pending' AND r.expires_at <= v_now AND NOT ${IS_BEGUN}
            THEN 'found_overdue'
          ELSE 'found' END`,
        `CASE WHEN r.state = 'completed' AND r.fingerprint = q.fingerprint THEN r.result END`,
      )},
        greatest(0, ${epochMs('r.lease_until - v_now')}),
        greatest(0, coalesce(${epochMs('r.reconcile_at - v_now')}, 0)),
        ${epochMs('r.expires_at')}
      FROM ${CLAIM_REQUESTS}
      JOIN ${RECORD} r ON r.identity = q.identity;
  END $body$;`

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
const SETTLE = `
CREATE FUNCTION "{schema}"."{table}_settle" (
  p_now_ms float8, p_identity bytea[], p_token text[], p_attempt int[], p_kind text[],
  p_result bytea[], p_proof text[], p_error_code text[], p_retention_ms float8[],
  p_reconcile_after_ms float8[], p_resume_after_ms float8[]
) RETURNS TABLE (
  out_identity text, out_done bool, out_own bool, out_state text, out_expires_at_ms float8
) LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
    v_count int;
  BEGIN ${CHECK_ISOLATION_UNLESS_JOINED}
    RETURN QUERY
      UPDATE ${RECORD} r SET
        state = CASE l.kind WHEN 'complete' THEN 'completed' WHEN 'release' THEN 'failed_retryable'
          ELSE 'unknown' END,
        result = CASE l.kind WHEN 'complete' THEN l.result ELSE r.result END,
        proof = CASE l.kind WHEN 'doubt' THEN r.proof ELSE l.proof END,
        error_code = l.error_code,
        reconcile_at = CASE l.kind WHEN 'doubt' THEN v_now + ${ms('l.reconcile_after_ms')}
          WHEN 'release' THEN ${resumeAt(`v_now + ${ms('l.resume_after_ms')}`)} END,
        tries = CASE l.kind WHEN 'doubt' THEN 0 ELSE r.tries END,
        completed_at = CASE l.kind WHEN 'complete' THEN v_now ELSE r.completed_at END,
        expires_at = CASE l.kind WHEN 'doubt' THEN r.expires_at
          ELSE greatest(r.expires_at, v_now + ${ms('l.retention_ms')}) END
      FROM (
        SELECT * FROM unnest(p_identity, p_token, p_attempt, p_kind, p_result, p_proof,
            p_error_code, p_retention_ms, p_reconcile_after_ms, p_resume_after_ms)
          AS q (identity, token, attempt, kind, result, proof, error_code, retention_ms,
            reconcile_after_ms, resume_after_ms)
        ORDER BY q.identity OFFSET 0) AS l
      WHERE r.identity = l.identity AND r.token = l.token
        AND CASE WHEN l.kind = 'release' AND l.attempt = 0 THEN true
          ELSE r.attempt = l.attempt END
        AND CASE r.state
          WHEN 'in_progress' THEN true
          WHEN 'unknown' THEN l.kind = 'complete' OR (l.kind = 'release' AND l.proof = 'proven')
          WHEN 'failed_retryable' THEN l.kind = 'complete'
          ELSE false END
      RETURNING encode(r.identity, 'hex'), ${wake('r.watched')}, true, r.state,
        ${epochMs('r.expires_at')};
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count = cardinality(p_identity) THEN RETURN; END IF;

    RETURN QUERY
      SELECT encode(r.identity, 'hex'), false,
        r.token = q.token AND CASE WHEN q.kind = 'release' AND q.attempt = 0 THEN true
          ELSE r.attempt = q.attempt END,
        r.state, ${epochMs('r.expires_at')}
      FROM unnest(p_identity, p_token, p_attempt, p_kind) AS q (identity, token, attempt, kind)
      JOIN ${RECORD} r ON r.identity = q.identity;
  END $body$;`

/**
 * Prolongs leases. Skips locked rows, or one commit under way would hold up the renewals of all
 * others; tells those apart from the lost ones.
 */
const RENEW = `
CREATE FUNCTION "{schema}"."{table}_renew" (
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
      UPDATE ${RECORD} r SET lease_until = v_now + ${ms('l.lease_ms')}
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
        state = l.kind,
        result = CASE l.kind WHEN 'completed' THEN l.result ELSE r.result END,
        token = CASE l.kind WHEN 'completed' THEN '' ELSE r.token END,
        proof = CASE l.kind WHEN 'completed' THEN NULL ELSE 'proven' END,
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

export const FUNCTIONS: readonly string[] = [CLAIM, SETTLE, RENEW, RESOLVE, ...UPKEEP_FUNCTIONS]
