/** Claims keys, or returns their records. `functions.ts` lists the rules for all functions. */
import {
  AFTER_EXPIRY,
  CHECK_ISOLATION,
  epochMs,
  IS_BEGUN,
  IS_EXPIRED,
  isAhead,
  keepHistory,
  keepHistory4,
  ms,
  NOW,
  ON_LAPSE,
  RECORD,
  resumeAt,
  SETTINGS,
  shared,
  shortened,
  STATE,
  wake,
} from './parts.ts'

const CLAIM_COLUMNS = `identity, record_id, tenant, operation, key, fingerprint, state, attempt,
        lapses, token, lease_until, on_lapse, after_expiry, created_at, last_run_at, expires_at`

/**
 * 1: the functions of migration 1. 2: with the length of a lease. 4: with the seed of the ids, and
 * the time for which an expired key is refused.
 */
type Version = 1 | 2 | 4

/** Text that version 2 or version 4 adds to columns and statements. */
const since2 = (version: Version, text: string) => (version >= 2 ? text : '')
const since4 = (version: Version, text: string) => (version >= 4 ? text : '')

const suffixOf = (version: Version) => (version === 1 ? '' : `_${version}`)
const nameOf = (version: Version) => `"{schema}"."{table}_claim${suffixOf(version)}"`

/** The columns that version 4 adds to requests and records. */
const POLICY_COLUMNS = ', id_seed, refuse_for_ms'
const POLICY_PARAMETERS = ', p_id_seed, p_refuse_for_ms'
const POLICY_TYPES = `,
  p_id_seed bytea, p_refuse_for_ms float8`
const POLICY_ARRAY_TYPES = ', p_id_seed bytea[], p_refuse_for_ms float8[]'
const POLICY_ARRAYS = `,
        ARRAY[p_id_seed], ARRAY[p_refuse_for_ms]`

/** The requests of the batch as rows. */
const requestsOf = (version: Version) => {
  const selected = since4(version, `, u.id_seed, ${shared('refuse_for_ms')}`)
  const sent = since4(version, POLICY_PARAMETERS)
  const names = since4(version, POLICY_COLUMNS)
  return `(SELECT ${shared('mode')}, u.identity, u.record_id, ${shared('tenant')},
        ${shared('operation')}, u.key, u.fingerprint, u.token, ${shared('lease_ms')},
        ${shared('retention_ms')}, ${shared('on_lapse')}, ${shared('max_attempts')},
        ${shared('after_expiry')}${selected}
      FROM unnest(p_mode, p_identity, p_record_id, p_tenant, p_operation, p_key, p_fingerprint,
          p_token, p_lease_ms, p_retention_ms, p_on_lapse, p_max_attempts, p_after_expiry${sent})
        AS u (mode, identity, record_id, tenant, operation, key, fingerprint, token, lease_ms,
          retention_ms, on_lapse, max_attempts, after_expiry${names})) AS q`
}

/** A single request as a row. The planner replaces the columns by the parameters. */
const requestOf = (version: Version) => {
  const more = since4(version, ', p_id_seed AS id_seed, p_refuse_for_ms AS refuse_for_ms')
  return `(SELECT p_mode AS mode, p_identity AS identity, p_record_id AS record_id,
        p_tenant AS tenant, p_operation AS operation, p_key AS key,
        p_fingerprint AS fingerprint, p_token AS token, p_lease_ms AS lease_ms,
        p_retention_ms AS retention_ms, p_on_lapse AS on_lapse, p_max_attempts AS max_attempts,
        p_after_expiry AS after_expiry${more}) AS q`
}

/** A new record: first attempt, or none yet. Another mode gives NULL, which the row rejects. */
const FRESH = `q.identity, q.record_id, q.tenant, q.operation, q.key, q.fingerprint,
        CASE q.mode WHEN 'hold' THEN 'in_progress'::${STATE} WHEN 'accept' THEN 'pending' END,
        (q.mode = 'hold')::int, 0, q.token,
        v_now + ${ms(`CASE q.mode WHEN 'hold' THEN q.lease_ms ELSE 0 END`)},
        CASE WHEN 1 >= q.max_attempts THEN 'unknown' ELSE q.on_lapse::${ON_LAPSE} END,
        q.after_expiry::${AFTER_EXPIRY}, v_now, v_now, v_now + ${ms('q.retention_ms')}`

/**
 * The length and the start of the lease. A record that is not held also has them, but there they do
 * not add up to the end of a lease, and no statement reads them.
 */
const LEASE_VARIABLES = `
    v_ahead bytea[];
    v_fresh timestamptz;`
const LEASE_COLUMNS = ', lease_ms, lease_from'
const FRESH_LEASE = ', q.lease_ms, v_now'
const TAKEN_LEASE = `
        lease_ms = l.lease_ms, lease_from = v_now,`

/**
 * `reap` adds this time to the expiry. If no time can hold the sum, the claim fails here, because
 * later the whole call of `reap` would.
 */
const REFUSED_FOR = `CASE WHEN v_now + ${ms('q.refuse_for_ms')} IS NOT NULL
          THEN q.refuse_for_ms END`
const FRESH_POLICY = `, q.id_seed, ${REFUSED_FOR}`
const TAKING_POLICY = `,
          ${REFUSED_FOR} AS refuse_for_ms`
const TAKEN_POLICY = `
        refuse_for_ms = CASE WHEN l.doubt THEN r.refuse_for_ms ELSE l.refuse_for_ms END,`

/**
 * The request refuses to use the key of record `r` after its expiry. A record that was erased
 * before its expiry refuses it until then.
 */
const IS_REFUSED = `CASE WHEN r.state = 'expired' AND v_now < r.expires_at THEN true
          WHEN q.after_expiry = 'new' THEN false
          ELSE coalesce(v_now < r.expires_at + ${ms('q.refuse_for_ms')}, true) END`

/** The seed on record, behind the other columns of a claim. */
const seedOf = (version: Version, seed = `encode(r.id_seed, 'hex')`) => since4(version, `, ${seed}`)

/** The columns that a claim returns for a record that it has written. */
const taken = (version: Version, how: string, own = 'true') => `encode(r.identity, 'hex'), ${how},
        r.record_id::text, r.state::text, r.attempt, ${own}, r.fingerprint, r.recovery_point,
        NULL::bytea, 0::float8, 0::float8,
        ${epochMs('r.expires_at')}${seedOf(version)}`

const TAKEN_OVER = `CASE l.was WHEN 'in_progress' THEN 'lapsed' WHEN 'pending' THEN 'accepted'
        ELSE 'retry' END`

/** The columns that a claim returns for a record that it has only read. */
const found = (how: string, result: string) => `encode(r.identity, 'hex'), ${how},
        r.record_id::text, r.state::text, r.attempt, r.token = q.token, r.fingerprint,
        r.recovery_point, ${result}`

const columnsOf = (version: Version) =>
  CLAIM_COLUMNS + since2(version, LEASE_COLUMNS) + since4(version, POLICY_COLUMNS)
const freshOf = (version: Version) =>
  FRESH + since2(version, FRESH_LEASE) + since4(version, FRESH_POLICY)

interface Insertion {
  readonly requests: string
  readonly filter?: string
  readonly order?: string
}

const insertFree = (version: Version, { requests, filter = '', order = '' }: Insertion) => `
      INSERT INTO ${RECORD} AS r (${columnsOf(version)})
      SELECT ${freshOf(version)}
      FROM ${requests}
      WHERE q.mode <> 'take' ${filter}
      ${order}`

const OR_NOT = 'ON CONFLICT (identity) DO NOTHING'

const IN_ORDER = 'ORDER BY q.identity'

const IS_FREE = `AND (SELECT x.identity FROM ${RECORD} x WHERE x.identity = q.identity) IS NULL`

const freeAmongOthers = (version: Version) => {
  return { requests: requestsOf(version), filter: IS_FREE, order: IN_ORDER }
}

/** No outcome of a completed record has the seed. */
const readCompleted = (version: Version, requests: string) => {
  const expiry = epochMs('r.expires_at') + seedOf(version, 'NULL::text')
  return `
      SELECT ${found(`'found'`, 'r.result')}, 0::float8, 0::float8, ${expiry}
      FROM ${requests}
      JOIN ${RECORD} r ON r.identity = q.identity
      WHERE CASE r.state WHEN 'completed'
        THEN r.fingerprint = q.fingerprint AND r.expires_at > v_now ELSE false END`
}

/** A row for each request, or one row for all if all were new. */
const outcomesOf = (version: Version) => {
  const seed = since4(version, ', out_id_seed text')
  return `TABLE (
  out_identity text, out_how text, out_record_id text, out_state text, out_attempt int,
  out_own bool, out_fingerprint text, out_recovery_point text, out_result bytea,
  out_lease_left_ms float8, out_reconcile_in_ms float8, out_expires_at_ms float8${seed}
)`
}

/**
 * One such row as text, which `columns.ts` parses: a driver decodes a text faster than 12 columns.
 * The result is on a separate line: inside the JSON, a large one would be scanned two more times.
 */
const outcomeOf = (version: Version) => {
  const seed = since4(version, ', id_seed')
  return `AS f (identity, how, record_id, state, attempt, own, fingerprint,
        recovery_point, result, lease_left_ms, reconcile_in_ms, expires_at_ms${seed})`
}
const answerOf = (version: Version) => {
  const seed = since4(version, ', f.id_seed')
  return `json_build_array(f.how, f.record_id, f.state, f.attempt, f.own, f.fingerprint,
        f.recovery_point, NULL, f.lease_left_ms, f.reconcile_in_ms,
        f.expires_at_ms${seed})::text || coalesce(E'\\n' || encode(f.result, 'hex'), '')`
}
const ALL_NEW = `'["all_new",null,null,null,null,null,null,null,0,0,' || ${epochMs('v_now')} || ']'`

/** Also right for a lease that could not be shortened because its row is locked. */
const leaseLeft = (version: Version) =>
  version === 1
    ? 'r.lease_until - v_now'
    : `CASE WHEN ${isAhead('v_now')} THEN ${ms('r.lease_ms')} ELSE r.lease_until - v_now END`

/** With a new time: earlier statements may have waited, and a lease may be newer than `v_now`. */
const IS_AHEAD = isAhead(NOW)
const SHORTEN = `
    IF v_ahead IS NOT NULL THEN
      v_fresh := ${NOW};
      UPDATE ${RECORD} r SET ${shortened('v_fresh')} WHERE r.identity = ANY (v_ahead);
    END IF;`

const mayReplace = (version: Version) =>
  version >= 4
    ? `q.mode <> 'take' AND NOT ${IS_REFUSED} AND ${IS_EXPIRED}`
    : `q.after_expiry = 'new' AND q.mode <> 'take' AND ${IS_EXPIRED}`

/** Finds expired records to replace and, from version 2 on, leases to shorten. */
const findGone = (version: Version) =>
  version === 1
    ? `
    WITH l AS MATERIALIZED (
      SELECT r.identity AS id
      FROM ${requestsOf(version)}
      JOIN ${RECORD} r ON r.identity = q.identity
      WHERE ${mayReplace(version)}
      ORDER BY r.identity FOR UPDATE OF r SKIP LOCKED)
    SELECT array_agg(l.id) INTO v_gone FROM l;`
    : `
    WITH l AS MATERIALIZED (
      SELECT r.identity AS id, r.state = 'in_progress' AS ahead
      FROM ${requestsOf(version)}
      JOIN ${RECORD} r ON r.identity = q.identity
      WHERE CASE r.state WHEN 'in_progress' THEN r.fingerprint = q.fingerprint AND ${IS_AHEAD}
        ELSE ${mayReplace(version)} END
      ORDER BY r.identity FOR UPDATE OF r SKIP LOCKED)
    SELECT array_agg(l.id) FILTER (WHERE NOT l.ahead), array_agg(l.id) FILTER (WHERE l.ahead)
      INTO v_gone, v_ahead FROM l;${SHORTEN}`

/** The word of step 5 for an expired record, which may be replaced only if it is not refused. */
const foundGone = (version: Version) =>
  version >= 4
    ? `CASE WHEN ${IS_REFUSED} THEN 'found_refused' ELSE 'found_expired' END`
    : `'found_expired'`

/** Step 3 of a claim: takes over released, accepted and lapsed records. */
const takeOver = (version: Version) => {
  const policy = since4(version, TAKING_POLICY)
  return `    RETURN QUERY
      WITH l AS MATERIALIZED (
        SELECT r.identity AS id, r.state AS was, r.watched,
          r.state = 'in_progress' AND r.on_lapse = 'unknown' AS doubt,
          (r.state = 'in_progress')::int AS lapsed, q.mode = 'accept' AS later,
          q.token, q.lease_ms, q.retention_ms, q.on_lapse, q.max_attempts, q.after_expiry${policy}
        FROM ${requestsOf(version)}
        JOIN ${RECORD} r ON r.identity = q.identity
        WHERE r.fingerprint = q.fingerprint AND CASE r.state
          WHEN 'failed_retryable' THEN r.token <> q.token
            AND (r.recovery_point IS NOT NULL OR r.expires_at > v_now)
          WHEN 'in_progress' THEN r.lease_until <= v_now AND r.token <> q.token
          WHEN 'pending' THEN q.mode = 'take' AND (r.expires_at > v_now OR ${IS_BEGUN})
          ELSE false END
        ORDER BY r.identity FOR NO KEY UPDATE OF r SKIP LOCKED)
      UPDATE ${RECORD} r SET
        state = CASE WHEN l.doubt THEN 'unknown'::${STATE} WHEN l.later THEN 'pending'
          ELSE 'in_progress' END,
        attempt = CASE WHEN l.doubt OR l.later THEN r.attempt ELSE r.attempt + 1 END,
        lapses = CASE WHEN l.doubt THEN r.lapses ELSE r.lapses + l.lapsed END,
        token = CASE WHEN l.doubt THEN r.token ELSE l.token END,
        lease_until = CASE WHEN l.doubt THEN r.lease_until WHEN l.later THEN v_now
          ELSE v_now + ${ms('l.lease_ms')} END,${since2(version, TAKEN_LEASE)}
        watched = r.watched AND NOT l.doubt,
        on_lapse = CASE WHEN l.doubt THEN r.on_lapse
          WHEN r.lapses + l.lapsed + 1 >= l.max_attempts THEN 'unknown'
          ELSE l.on_lapse::${ON_LAPSE} END,
        after_expiry = CASE WHEN l.doubt THEN r.after_expiry
          ELSE l.after_expiry::${AFTER_EXPIRY} END,${since4(version, TAKEN_POLICY)}
        proof = NULL,
        error_code = CASE WHEN l.doubt THEN 'lease_lapsed' END,
        reconcile_at = CASE WHEN l.doubt THEN v_now WHEN l.later THEN ${resumeAt('v_now')} END,
        tries = CASE WHEN l.doubt THEN 0 ELSE r.tries END,
        last_run_at = CASE WHEN l.doubt THEN r.last_run_at ELSE v_now END,
        expires_at = CASE WHEN l.doubt THEN r.expires_at
          ELSE greatest(r.expires_at, v_now + ${ms('l.retention_ms')}) END
      FROM l WHERE r.identity = l.id
      RETURNING ${taken(version, TAKEN_OVER, wake('l.doubt AND l.watched'))};`
}

const keepGone = (version: Version) => {
  const keep = version >= 4 ? keepHistory4 : keepHistory
  return keep('r.identity = ANY (v_gone)')
}

/** Step 4 of a claim: replaces expired records. */
const replaceGone = (version: Version) => `    IF v_gone IS NOT NULL THEN ${keepGone(version)}
      DELETE FROM ${RECORD} r WHERE r.identity = ANY (v_gone);
      RETURN QUERY
        INSERT INTO ${RECORD} AS r (${columnsOf(version)})
        SELECT ${freshOf(version)}
        FROM ${requestsOf(version)}
        WHERE q.identity = ANY (v_gone)
        ORDER BY q.identity
        RETURNING ${taken(version, `'expired'`)};
    END IF;`

/**
 * 1. Inserts all keys if all are free, as those of first requests are. It returns one row for all,
 *    because the records hold the values of the requests. It is a plain INSERT in a separate block,
 *    which is rolled back if another claim has inserted one of the keys since. With ON CONFLICT,
 *    PostgreSQL would look each key up again and write to each row twice, which cost a seventh of
 *    the time of a claim and its completion.
 * 2. Reads completed records: most retries end here. If the batch continues, step 5 returns them
 *    again. Then inserts the free keys among the others. Existing rows are filtered before the
 *    INSERT, because DO NOTHING would wait for a row that an open transaction has updated.
 * 3. Takes over released, accepted and lapsed records, or moves a lapsed record to `unknown`.
 * 4. Shortens leases that began before the clock was set back (from version 2 on). Replaces expired
 *    records by DELETE and INSERT, so that ON DELETE of foreign keys to the old record applies.
 * 5. Reads the rest. Rows of steps 3 and 4 that are locked appear here unchanged.
 *
 * CASE instead of OR or AND on the state, or the planner would scan an index of all rows in that
 * state.
 */
const claim = (version: Version) => `
CREATE FUNCTION ${nameOf(version)} (
  p_now_ms float8, p_history bool, p_mode text[], p_identity bytea[], p_record_id uuid[],
  p_tenant text[], p_operation text[], p_key text[], p_fingerprint text[], p_token text[],
  p_lease_ms float8[], p_retention_ms float8[], p_on_lapse text[], p_max_attempts int[],
  p_after_expiry text[]${since4(version, POLICY_ARRAY_TYPES)}
) RETURNS ${outcomesOf(version)} LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
    v_count int;
    v_completed int;
    v_gone bytea[];${since2(version, LEASE_VARIABLES)}
  BEGIN ${CHECK_ISOLATION}
    SELECT count(*) INTO v_count FROM unnest(p_identity) AS q (identity)
      JOIN ${RECORD} r ON r.identity = q.identity;
    IF v_count = 0 THEN
      BEGIN ${insertFree(version, { requests: requestsOf(version), order: IN_ORDER })};
        GET DIAGNOSTICS v_count = ROW_COUNT;
      EXCEPTION WHEN unique_violation THEN
        v_count := 0;
      END;
      IF v_count = cardinality(p_identity) THEN
        out_how := 'all_new';
        out_expires_at_ms := ${epochMs('v_now')};
        RETURN NEXT;
        RETURN;
      END IF;
    END IF;

    RETURN QUERY ${readCompleted(
      version,
      'unnest(p_identity, p_fingerprint, p_token) AS q (identity, fingerprint, token)',
    )};
    GET DIAGNOSTICS v_completed = ROW_COUNT;
    IF v_completed = cardinality(p_identity) THEN RETURN; END IF;

    RETURN QUERY ${insertFree(version, freeAmongOthers(version))} ${OR_NOT}
      RETURNING ${taken(version, `'new'`)};
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_completed + v_count = cardinality(p_identity) THEN RETURN; END IF;

${takeOver(version)}
${findGone(version)}
${replaceGone(version)}

    RETURN QUERY
      SELECT ${found(
        `CASE WHEN ${IS_EXPIRED} THEN ${foundGone(version)}
          WHEN r.state = 'pending' AND r.expires_at <= v_now AND NOT ${IS_BEGUN}
            THEN 'found_overdue'
          ELSE 'found' END`,
        `CASE WHEN r.state = 'completed' AND r.fingerprint = q.fingerprint THEN r.result END`,
      )},
        greatest(0, ${epochMs(leaseLeft(version))}),
        greatest(0, coalesce(${epochMs('r.reconcile_at - v_now')}, 0)),
        ${epochMs('r.expires_at')}${seedOf(version)}
      FROM ${requestsOf(version)}
      JOIN ${RECORD} r ON r.identity = q.identity;
  END $body$;`

/**
 * Claims a single key, as a server under low load does: sorting and joining sets of one row takes
 * twice as long as the row itself. A key that is neither free nor completed is passed to the batch
 * function, whose first row is the one that it wrote. Null if there is no record.
 */
const claimOne = (version: Version) => {
  const request = requestOf(version)
  const [answer, outcome] = [answerOf(version), outcomeOf(version)]
  const policyTypes = since4(version, POLICY_TYPES)
  const sent = since4(version, POLICY_ARRAYS)
  return `
CREATE FUNCTION "{schema}"."{table}_claim_one${suffixOf(version)}" (
  p_now_ms float8, p_history bool, p_mode text, p_identity bytea, p_record_id uuid, p_tenant text,
  p_operation text, p_key text, p_fingerprint text, p_token text, p_lease_ms float8,
  p_retention_ms float8, p_on_lapse text, p_max_attempts int, p_after_expiry text${policyTypes}
) RETURNS text LANGUAGE plpgsql VOLATILE ${SETTINGS} AS $body$
  DECLARE
    v_now timestamptz := ${NOW};
    v_answer text;
  BEGIN ${CHECK_ISOLATION}
    ${insertFree(version, { requests: request, filter: IS_FREE })} ${OR_NOT};
    IF FOUND THEN RETURN ${ALL_NEW}; END IF;

    SELECT ${answer} INTO v_answer FROM (${readCompleted(version, request)}) ${outcome};
    IF FOUND THEN RETURN v_answer; END IF;

    SELECT ${answer} INTO v_answer
      FROM ${nameOf(version)}(p_now_ms, p_history, ARRAY[p_mode], ARRAY[p_identity],
        ARRAY[p_record_id], ARRAY[p_tenant], ARRAY[p_operation], ARRAY[p_key],
        ARRAY[p_fingerprint], ARRAY[p_token], ARRAY[p_lease_ms], ARRAY[p_retention_ms],
        ARRAY[p_on_lapse], ARRAY[p_max_attempts], ARRAY[p_after_expiry]${sent}) ${outcome} LIMIT 1;
    RETURN v_answer;
  END $body$;`
}

export const CLAIM_FUNCTIONS: readonly string[] = [claim(1), claimOne(1)]

export const CLAIM_FUNCTIONS_2: readonly string[] = [claim(2), claimOne(2)]

export const CLAIM_FUNCTIONS_4: readonly string[] = [claim(4), claimOne(4)]
