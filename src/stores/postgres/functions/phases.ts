/** Operations and phases: `decideStep` of `stores/kit/decide-durable.ts`, implemented in SQL. */
import { STARTED } from '../../kit/decide-durable.ts'
import {
  CHECK_ISOLATION,
  epochMs,
  ms,
  NOW,
  OPERATION,
  PHASE,
  RECORD,
  SEALED,
  SETTINGS,
  VIEW_1,
  wake,
} from './parts.ts'

const PHASE_COLUMNS = `record_id, name, number, kind, state, request, result, downstream_key,
        provider_id, attempt, first_sent_at, sent_at, done_at`

/**
 * One step: fence, operation, phase and end in one call. It locks the record first, as every
 * function that writes a phase does, so that later reads stay true until the commit. If
 * `out_written` is false, the transaction must be rolled back.
 *
 * `p_sealed`: the step is the last statement of a transaction that the store has begun. If the seal
 * is missing, that transaction has ended, and this statement would commit by itself.
 */
const STEP = `
CREATE FUNCTION "{schema}"."{table}_step" (
  p_now_ms float8, p_sealed bool, p_identity bytea, p_token text, p_attempt int,
  p_operation text, p_version int, p_input bytea,
  p_kind text, p_phase text, p_number int, p_request bytea, p_result bytea,
  p_downstream_key text, p_provider_id text,
  p_end text, p_end_result bytea, p_end_ms float8
) RETURNS TABLE (
  out_kind text, out_written bool, out_own bool, out_state text, out_result bytea,
  out_expires_at_ms float8
) LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
    v_id uuid;
    v_phase text;
    v_watched bool;
    v_token bool;
    v_first bool;
    v_done bool := coalesce(p_kind IN ('transaction', 'result'), false);
  BEGIN ${CHECK_ISOLATION}
    out_written := false;
    IF p_sealed AND coalesce(current_setting('${SEALED}', true), '') = '' THEN
      out_kind := 'unsealed';
      RETURN NEXT;
      RETURN;
    END IF;
    SELECT r.record_id, r.state, r.token = p_token AND r.attempt = p_attempt, r.token = p_token,
        r.watched,
        r.recovery_point IS NULL OR r.run_name IS NULL, ${epochMs('r.expires_at')}
      INTO v_id, out_state, out_own, v_token, v_watched, v_first, out_expires_at_ms
      FROM ${RECORD} r WHERE r.identity = p_identity FOR NO KEY UPDATE;
    IF v_token AND out_state = 'pending' AND p_end = 'hand_over' THEN
      out_kind := 'advanced';
    ELSIF v_id IS NULL OR NOT out_own OR out_state <> 'in_progress' THEN
      out_kind := 'fenced';
    ELSIF p_kind IS NOT NULL THEN
      SELECT p.state, p.result INTO v_phase, out_result
        FROM ${PHASE} p WHERE p.record_id = v_id AND p.name = p_phase;
      IF v_phase = 'done' THEN
        out_kind := CASE p_kind WHEN 'transaction' THEN 'fenced' ELSE 'concluded' END;
      END IF;
    END IF;
    IF out_kind IS NOT NULL THEN
      RETURN NEXT;
      RETURN;
    END IF;

    out_kind := 'advanced';
    out_written := true;
    IF p_operation IS NOT NULL THEN
      INSERT INTO ${OPERATION} (record_id, name, version, input)
        VALUES (v_id, p_operation, p_version, p_input) ON CONFLICT (record_id) DO NOTHING;
    END IF;
    IF p_kind = 'clear' THEN
      DELETE FROM ${PHASE} p WHERE p.record_id = v_id AND p.name = p_phase;
    ELSIF p_kind = 'intent' AND v_phase IS NOT NULL THEN
      UPDATE ${PHASE} p SET attempt = p_attempt, sent_at = v_now
        WHERE p.record_id = v_id AND p.name = p_phase;
    ELSIF p_kind = 'result' AND v_phase IS NOT NULL THEN
      UPDATE ${PHASE} p SET state = 'done', result = p_result, downstream_key = p_downstream_key,
          provider_id = p_provider_id, done_at = v_now
        WHERE p.record_id = v_id AND p.name = p_phase;
    ELSIF p_kind IS NOT NULL THEN
      DELETE FROM ${PHASE} p WHERE p.record_id = v_id AND p.name = p_phase;
      INSERT INTO ${PHASE} (${PHASE_COLUMNS})
        VALUES (v_id, p_phase, p_number,
          CASE p_kind WHEN 'transaction' THEN 'transaction' ELSE 'external' END,
          CASE WHEN v_done THEN 'done' ELSE 'intended' END, p_request, p_result,
          p_downstream_key, p_provider_id, p_attempt, v_now, v_now,
          CASE WHEN v_done THEN v_now END);
    END IF;
    IF p_end IS NULL AND NOT v_done AND NOT v_first THEN
      RETURN NEXT;
      RETURN;
    END IF;
    UPDATE ${RECORD} r SET
        recovery_point = CASE WHEN v_done THEN p_phase
          ELSE coalesce(r.recovery_point, '${STARTED}') END,
        run_name = coalesce(r.run_name, p_operation),
        run_version = coalesce(r.run_version, p_version),
        state = CASE p_end WHEN 'complete' THEN 'completed' WHEN 'hand_over' THEN 'pending'
          ELSE r.state END,
        attempt = CASE p_end WHEN 'hand_over' THEN r.attempt - 1 ELSE r.attempt END,
        result = CASE p_end WHEN 'complete' THEN p_end_result ELSE r.result END,
        proof = CASE p_end WHEN 'complete' THEN NULL ELSE r.proof END,
        error_code = CASE p_end WHEN 'complete' THEN NULL ELSE r.error_code END,
        lease_until = CASE p_end WHEN 'hand_over' THEN v_now ELSE r.lease_until END,
        reconcile_at = CASE p_end WHEN 'complete' THEN NULL
          WHEN 'hand_over' THEN v_now + ${ms('p_end_ms')} ELSE r.reconcile_at END,
        completed_at = CASE p_end WHEN 'complete' THEN v_now ELSE r.completed_at END,
        expires_at = CASE p_end
          WHEN 'complete' THEN greatest(r.expires_at, v_now + ${ms('p_end_ms')})
          ELSE r.expires_at END,
        watched = r.watched AND p_end IS DISTINCT FROM 'complete'
      WHERE r.identity = p_identity
      RETURNING ${epochMs('r.expires_at')}, ${wake(`v_watched AND p_end = 'complete'`)}
      INTO out_expires_at_ms, out_own;
    RETURN NEXT;
  END $body$;`

/** Returns the operations as rows of kind `operation`, and then the phases in their order. */
const LOAD = `
CREATE FUNCTION "{schema}"."{table}_load" (p_record_id uuid[])
RETURNS TABLE (
  out_record_id text, out_kind text, out_name text, out_number int, out_state text,
  out_request bytea, out_result bytea, out_downstream_key text, out_provider_id text,
  out_attempt int, out_first_sent_at_ms float8, out_sent_at_ms float8, out_done_at_ms float8
) LANGUAGE plpgsql STABLE ${SETTINGS} AS $body$
  BEGIN
    RETURN QUERY
      SELECT o.record_id::text, 'operation', o.name, o.version, NULL::text, o.input, NULL::bytea,
        NULL::text, NULL::text, NULL::int, NULL::float8, NULL::float8, NULL::float8
      FROM unnest(p_record_id) AS q (record_id)
      JOIN ${OPERATION} o ON o.record_id = q.record_id;
    RETURN QUERY
      SELECT p.record_id::text, p.kind, p.name, p.number, p.state, p.request, p.result,
        p.downstream_key, p.provider_id, p.attempt, ${epochMs('p.first_sent_at')},
        ${epochMs('p.sent_at')}, ${epochMs('p.done_at')}
      FROM unnest(p_record_id) AS q (record_id)
      JOIN ${PHASE} p ON p.record_id = q.record_id
      ORDER BY p.record_id, p.number, p.name;
  END $body$;`

/**
 * A pending record that has expired is left for `reap`: no worker may take it. The first line is
 * the predicate of the index.
 */
const isDue = (r: string) => `${r}.state IN ('pending', 'failed_retryable')
          AND ${r}.reconcile_at IS NOT NULL AND ${r}.reconcile_at <= v_now
          AND CASE ${r}.state WHEN 'pending' THEN ${r}.expires_at > v_now OR ${r}.attempt > 0
            ELSE true END`

/** Returns the records of all operations that have been due longest. Takes no lock. */
const DUE = `
CREATE FUNCTION "{schema}"."{table}_due" (
  p_now_ms float8, p_name text[], p_version int[], p_limit int
) RETURNS TABLE (
  out_name text, out_version int, ${VIEW_1.types}
) LANGUAGE plpgsql STABLE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
  BEGIN
    RETURN QUERY
      SELECT r.run_name, r.run_version, ${VIEW_1.columns}
      FROM (SELECT DISTINCT u.name, u.version FROM unnest(p_name, p_version) AS u (name, version))
        AS q
      CROSS JOIN LATERAL (
        SELECT x.* FROM ${RECORD} x
        WHERE x.run_name = q.name AND x.run_version = q.version AND ${isDue('x')}
        ORDER BY x.reconcile_at LIMIT p_limit) AS r
      ORDER BY r.reconcile_at LIMIT p_limit;
  END $body$;`

/** Walks from name to name in the index, instead of reading all due records. */
const ORPHANS = `
CREATE FUNCTION "{schema}"."{table}_orphans" (
  p_now_ms float8, p_name text[], p_version int[], p_limit int
) RETURNS TABLE (out_name text, out_version int, out_record_id text)
LANGUAGE plpgsql STABLE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
  BEGIN
    RETURN QUERY
      WITH RECURSIVE k AS (
        (SELECT r.run_name, r.run_version FROM ${RECORD} r
          WHERE r.state IN ('pending', 'failed_retryable') AND r.reconcile_at IS NOT NULL
            AND r.run_name IS NOT NULL
          ORDER BY r.run_name, r.run_version LIMIT 1)
        UNION ALL
        SELECT n.run_name, n.run_version FROM k CROSS JOIN LATERAL (
          SELECT r.run_name, r.run_version FROM ${RECORD} r
          WHERE r.state IN ('pending', 'failed_retryable') AND r.reconcile_at IS NOT NULL
            AND (r.run_name, r.run_version) > (k.run_name, k.run_version)
          ORDER BY r.run_name, r.run_version LIMIT 1) AS n)
      SELECT k.run_name, k.run_version, x.record_id::text
      FROM k CROSS JOIN LATERAL (
        SELECT x.record_id, x.reconcile_at FROM ${RECORD} x
        WHERE x.run_name = k.run_name AND x.run_version = k.run_version AND ${isDue('x')}
        ORDER BY x.reconcile_at LIMIT p_limit) AS x
      WHERE NOT EXISTS (SELECT FROM unnest(p_name, p_version) AS q (name, version)
        WHERE q.name = k.run_name AND q.version = k.run_version)
      ORDER BY x.reconcile_at LIMIT p_limit;
  END $body$;`

export const PHASE_FUNCTIONS: readonly string[] = [STEP, LOAD, DUE, ORPHANS]
