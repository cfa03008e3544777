/** Unknown records and the acts of operators. The process decides on an act, under a lock. */
import {
  AUDIT,
  CHECK_ISOLATION,
  DISCARDED,
  epochMs,
  keepHistory,
  ms,
  NOW,
  OPERATION,
  PHASE,
  PROOF,
  RECORD,
  SETTINGS,
  STATE,
  VIEW_1,
  VIEW_4,
  wake,
  type View,
} from './parts.ts'

/** Taking a record makes it due later, so that no other node reconciles it at the same time. */
const TAKE_UNKNOWN = `
CREATE FUNCTION "{schema}"."{table}_take_unknown" (
  p_now_ms float8, p_limit int, p_again_ms float8
) RETURNS TABLE (
  ${VIEW_1.types}
) LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
    v_ids bytea[];
  BEGIN ${CHECK_ISOLATION}
    WITH l AS MATERIALIZED (
      SELECT r.identity AS id, r.reconcile_at FROM ${RECORD} r
      WHERE r.state = 'unknown' AND r.reconcile_at <= v_now
      ORDER BY r.reconcile_at LIMIT p_limit FOR NO KEY UPDATE OF r SKIP LOCKED)
    SELECT array_agg(l.id ORDER BY l.reconcile_at) INTO v_ids FROM l;
    UPDATE ${RECORD} r SET tries = r.tries + 1, reconcile_at = v_now + ${ms('p_again_ms')}
      WHERE r.identity = ANY (v_ids);
    RETURN QUERY
      SELECT ${VIEW_1.columns} FROM unnest(v_ids) WITH ORDINALITY AS q (identity, number)
      JOIN ${RECORD} r ON r.identity = q.identity ORDER BY q.number;
  END $body$;`

const POSTPONE = `
CREATE FUNCTION "{schema}"."{table}_postpone" (
  p_now_ms float8, p_record_id uuid, p_attempt int, p_tries int, p_in_ms float8
) RETURNS TABLE (out_done bool) LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
  BEGIN ${CHECK_ISOLATION}
    UPDATE ${RECORD} r SET reconcile_at = v_now + ${ms('p_in_ms')}
      WHERE r.record_id = p_record_id AND r.attempt = p_attempt AND r.state = 'unknown'
        AND r.tries = coalesce(p_tries, r.tries);
    out_done := FOUND;
    RETURN NEXT;
  END $body$;`

const PHASE_TYPES = `out_phase_name text, out_phase_number int, out_phase_kind text,
  out_phase_state text, out_phase_request bytea, out_phase_result bytea,
  out_phase_downstream_key text, out_phase_provider_id text, out_phase_attempt int,
  out_phase_first_sent_at_ms float8, out_phase_sent_at_ms float8, out_phase_done_at_ms float8`

/**
 * Locks the record of an act, and reads it together with its external effect. Every function that
 * writes a phase locks its record first. Another provider may use the same provider id, so that id
 * selects the effect that was sent last.
 */
const actRead = (suffix: string, view: View) => `
CREATE FUNCTION "{schema}"."{table}_act_read${suffix}" (
  p_now_ms float8, p_identity bytea, p_record_id uuid, p_downstream_key text, p_provider_id text
) RETURNS TABLE (
  out_now_ms float8, ${PHASE_TYPES}, ${view.types}, out_result bytea
) LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_id uuid := p_record_id;
    v_name text;
    v_identity bytea := p_identity;
  BEGIN ${CHECK_ISOLATION}
    IF p_downstream_key IS NOT NULL THEN
      SELECT p.record_id, p.name INTO v_id, v_name FROM ${PHASE} p
        WHERE p.downstream_key = p_downstream_key AND p.kind = 'external'
        ORDER BY p.sent_at DESC LIMIT 1;
    ELSIF p_provider_id IS NOT NULL THEN
      SELECT p.record_id, p.name INTO v_id, v_name FROM ${PHASE} p
        WHERE p.provider_id = p_provider_id AND p.kind = 'external'
        ORDER BY p.sent_at DESC LIMIT 1;
    END IF;
    IF v_identity IS NULL THEN
      SELECT r.identity INTO v_identity FROM ${RECORD} r WHERE r.record_id = v_id;
    END IF;
    PERFORM FROM ${RECORD} r WHERE r.identity = v_identity FOR NO KEY UPDATE;
    RETURN QUERY
      SELECT ${epochMs(NOW)}, p.name, p.number, p.kind, p.state, p.request, p.result,
        p.downstream_key, p.provider_id, p.attempt, ${epochMs('p.first_sent_at')},
        ${epochMs('p.sent_at')}, ${epochMs('p.done_at')}, ${view.columns}, r.result
      FROM ${RECORD} r
      LEFT JOIN LATERAL (
        SELECT x.* FROM ${PHASE} x
        WHERE x.record_id = r.record_id AND x.kind = 'external'
          AND x.name = coalesce(v_name, x.name)
        ORDER BY x.state = 'intended' DESC, x.number DESC LIMIT 1) AS p ON true
      WHERE r.identity = v_identity AND r.record_id = coalesce(v_id, r.record_id);
  END $body$;`

/** A time from JSON: milliseconds, or null. */
const at = (value: string) => `to_timestamp((${value})::float8 / 1000)`

/** Bytes from JSON, where they are hexadecimal. */
const hex = (value: string) => `decode(${value}, 'hex')`

/** The statements that write the decision on a record. `more`: further columns. */
const writeRecord = (more = '') => `
      SELECT r.watched AND p_record ->> 'state' NOT IN ('in_progress', 'pending')
        INTO v_watched FROM ${RECORD} r WHERE r.identity = p_identity;
      UPDATE ${RECORD} r SET
          state = (p_record ->> 'state')::${STATE},
          token = p_record ->> 'token',
          lease_until = ${at(`p_record ->> 'leaseUntilMs'`)},
          proof = (p_record ->> 'proof')::${PROOF},
          recovery_point = p_record ->> 'recoveryPoint',
          result = ${hex(`p_record ->> 'result'`)},
          error_code = p_record ->> 'errorCode',
          reconcile_at = ${at(`p_record ->> 'reconcileAtMs'`)},
          tries = (p_record ->> 'tries')::int,
          completed_at = ${at(`p_record ->> 'completedAtMs'`)},
          expires_at = ${at(`p_record ->> 'expiresAtMs'`)},${more}
          watched = r.watched AND NOT v_watched
        WHERE r.identity = p_identity
        RETURNING r.record_id, ${wake('v_watched')} INTO v_id, out_done;`

const WRITE_PHASE_AND_AUDIT = `
    IF p_phase ->> 'remove' IS NOT NULL THEN
      DELETE FROM ${PHASE} p WHERE p.record_id = v_id AND p.name = p_phase ->> 'remove';
    ELSIF p_phase IS NOT NULL THEN
      UPDATE ${PHASE} p SET
          state = p_phase ->> 'state',
          result = ${hex(`p_phase ->> 'result'`)},
          provider_id = p_phase ->> 'providerId',
          done_at = ${at(`p_phase ->> 'doneAtMs'`)}
        WHERE p.record_id = v_id AND p.name = p_phase ->> 'name';
    END IF;
    INSERT INTO ${AUDIT} (at, act, subject, who, why, detail)
      SELECT ${at(`p_audit ->> 'atMs'`)}, p_audit ->> 'act', p_audit ->> 'subject',
        p_audit ->> 'who', p_audit ->> 'why', p_audit ->> 'detail';`

/**
 * Writes the decision on a record that `act_read` has locked in the same transaction: changes or
 * removes the record and the phase, and adds the audit entry.
 */
const ACT_WRITE = `
CREATE FUNCTION "{schema}"."{table}_act_write" (
  p_history bool, p_identity bytea, p_record jsonb, p_phase jsonb, p_audit jsonb
) RETURNS TABLE (out_done bool) LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_id uuid;
    v_watched bool;
  BEGIN
    out_done := true;
    IF p_record ->> 'remove' IS NOT NULL THEN ${keepHistory('r.identity = p_identity')}
      DELETE FROM ${RECORD} r WHERE r.identity = p_identity;
    ELSIF p_record IS NOT NULL THEN${writeRecord()}
    END IF;${WRITE_PHASE_AND_AUDIT}
    RETURN NEXT;
  END $body$;`

/**
 * No act removes a record any more. `p_discards`: first keeps the result on record, with
 * `p_operation`, which are the operation and its phases as bytes, and removes these from the
 * record. The result may be large, so it is copied here instead of being sent.
 */
const ACT_WRITE_4 = `
CREATE FUNCTION "{schema}"."{table}_act_write_4" (
  p_identity bytea, p_record jsonb, p_phase jsonb, p_discards bool, p_operation bytea,
  p_audit jsonb
) RETURNS TABLE (out_done bool) LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_id uuid;
    v_watched bool;
  BEGIN
    out_done := true;
    IF p_discards THEN
      INSERT INTO ${DISCARDED} (record_id, identity, tenant, attempt, discarded_at, result,
          operation)
        SELECT r.record_id, r.identity, r.tenant, r.attempt, ${at(`p_audit ->> 'atMs'`)},
          coalesce(r.result, ''), p_operation
        FROM ${RECORD} r WHERE r.identity = p_identity;
    END IF;
    IF p_record IS NOT NULL THEN${writeRecord(`
          id_seed = ${hex(`p_record ->> 'idSeed'`)},
          run_name = CASE WHEN p_discards THEN NULL ELSE r.run_name END,
          run_version = CASE WHEN p_discards THEN NULL ELSE r.run_version END,`)}
    END IF;
    IF p_operation IS NOT NULL THEN
      DELETE FROM ${OPERATION} o WHERE o.record_id = v_id;
    END IF;${WRITE_PHASE_AND_AUDIT}
    RETURN NEXT;
  END $body$;`

/** Reads the discarded results of one record, newest first. */
const DISCARDED_LIST = `
CREATE FUNCTION "{schema}"."{table}_discarded" (p_record_id uuid, p_limit int)
RETURNS TABLE (
  out_record_id text, out_attempt int, out_discarded_at_ms float8, out_result bytea,
  out_operation bytea
) LANGUAGE plpgsql STABLE ${SETTINGS} AS $body$
  BEGIN
    RETURN QUERY
      SELECT d.record_id::text, d.attempt, ${epochMs('d.discarded_at')}, d.result, d.operation
      FROM ${DISCARDED} d WHERE d.record_id = p_record_id ORDER BY d.number DESC LIMIT p_limit;
  END $body$;`

/** Reads audit entries, newest first. */
const AUDIT_LIST = `
CREATE FUNCTION "{schema}"."{table}_audit_list" (p_subject text, p_limit int)
RETURNS TABLE (
  out_at_ms float8, out_act text, out_subject text, out_who text, out_why text, out_detail text
) LANGUAGE plpgsql STABLE ${SETTINGS} AS $body$
  BEGIN
    IF p_subject IS NULL THEN
      RETURN QUERY SELECT ${epochMs('a.at')}, a.act, a.subject, a.who, a.why, a.detail
        FROM ${AUDIT} a ORDER BY a.number DESC LIMIT p_limit;
    ELSE
      RETURN QUERY SELECT ${epochMs('a.at')}, a.act, a.subject, a.who, a.why, a.detail
        FROM ${AUDIT} a WHERE a.subject = p_subject ORDER BY a.number DESC LIMIT p_limit;
    END IF;
  END $body$;`

export const ACT_FUNCTIONS: readonly string[] = [
  TAKE_UNKNOWN,
  POSTPONE,
  actRead('', VIEW_1),
  ACT_WRITE,
  AUDIT_LIST,
]

export const ACT_FUNCTIONS_4: readonly string[] = [
  actRead('_4', VIEW_4),
  ACT_WRITE_4,
  DISCARDED_LIST,
]
