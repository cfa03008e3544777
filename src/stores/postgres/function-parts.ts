/** What the functions are made of. `functions.ts` says what holds for all of them. */
import { LEASE_AHEAD_MS } from '../../core/shorten-lease.ts'

export const SETTINGS = `
  SET search_path = pg_catalog, pg_temp
  SET enable_seqscan = off
  SET enable_bitmapscan = off
  SET enable_hashjoin = off
  SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
  SET jit = off
  SET lock_timeout = '4s'`

/** What raises when the connection's default isolation is not READ COMMITTED. */
export const WRONG_ISOLATION = 'OK001'

const checkIsolation = (isFine: string) => `
    IF NOT (${isFine}) THEN
      RAISE EXCEPTION 'oncekey needs READ COMMITTED' USING ERRCODE = '${WRONG_ISOLATION}';
    END IF;`

const IS_READ_COMMITTED = `current_setting('transaction_isolation') = 'read committed'`

/** Fails before anything is written, so that the call can be repeated in a fitting transaction. */
export const CHECK_ISOLATION = checkIsolation(IS_READ_COMMITTED)

/** The setting that marks a transaction which somebody else has begun: see `settle-in.ts`. */
export const JOINED = 'oncekey.joined'

/**
 * The setting of a transaction that the store has begun itself. It is gone with the transaction,
 * also where another has begun since.
 */
export const SEALED = 'oncekey.sealed'

/**
 * What joins a transaction of the caller's takes its level. With a snapshot, a record that has
 * moved on since makes PostgreSQL raise 40001: nothing is decided from what is no longer true, and
 * whoever chose that level repeats transactions for it anyway.
 */
export const CHECK_ISOLATION_UNLESS_JOINED = checkIsolation(
  `${IS_READ_COMMITTED} OR coalesce(current_setting('${JOINED}', true), '') <> ''`,
)

/** The database's clock, in whole milliseconds as everywhere else; a test may bring its own. */
export const NOW = `coalesce(to_timestamp(p_now_ms / 1000),
      date_trunc('milliseconds', clock_timestamp()))`

export const RECORD = '"{schema}"."{table}"'

/** The words a record may have. An enumeration, which costs nothing where a CHECK costs a tenth. */
export const STATE = '"{schema}"."{table}_state"'
export const ON_LAPSE = '"{schema}"."{table}_on_lapse"'
export const AFTER_EXPIRY = '"{schema}"."{table}_after_expiry"'
export const PROOF = '"{schema}"."{table}_proof"'

export const HISTORY = '"{schema}"."{table}_history"'

export const OPERATION = '"{schema}"."{table}_operation"'

export const PHASE = '"{schema}"."{table}_phase"'

export const MESSAGE = '"{schema}"."{table}_message"'

export const PARTITION = '"{schema}"."{table}_partition"'

/** One row: until when somebody waits to hear of new messages. */
export const WAITING = '"{schema}"."{table}_waiting"'

export const AUDIT = '"{schema}"."{table}_audit"'

export const ms = (expression: string) => `(${expression}) * interval '1 millisecond'`

/**
 * The record `r` is under a lease that was given later than now: before the clock was set back. A
 * node of an older version that claims or renews writes neither `lease_from` nor `lease_ms`; then
 * they do not add up to the end of the lease any more, and nothing is known of it.
 */
export const isAhead = (now: string) => `CASE r.state
          WHEN 'in_progress' THEN r.lease_from > ${now} + ${ms(String(LEASE_AHEAD_MS))}
            AND r.lease_from + ${ms('r.lease_ms')} = r.lease_until
          ELSE false END`

/** Its lease from now on, as long as it was given. */
export const shortened = (now: string) =>
  `lease_until = ${now} + ${ms('r.lease_ms')}, lease_from = ${now}`

/** Not by `extract`, whose numeric takes its way to a float through a text. */
export const epochMs = (expression: string) => `round(date_part('epoch', ${expression}) * 1000)`

/**
 * Past its retention: as if it had never been. An operation that was begun is brought to its end:
 * what it has done must not be forgotten.
 */
export const IS_EXPIRED = `CASE r.state
          WHEN 'expired' THEN true
          WHEN 'completed' THEN r.expires_at <= v_now
          WHEN 'failed_retryable' THEN r.recovery_point IS NULL AND r.expires_at <= v_now
          ELSE false END`

/** Its operation has run before, so it is never said to have timed out. As the index has it. */
export const IS_BEGUN = '(r.recovery_point IS NOT NULL AND r.attempt > 0)'

/** What may expire by itself. The index has this predicate, word for word. */
export const MAY_EXPIRE = `(r.state = 'completed'
        OR (r.state = 'failed_retryable' AND r.recovery_point IS NULL))`

/** When a worker may go on with a released record; only what has an operation is gone on with. */
export const resumeAt = (at: string) => `CASE WHEN r.recovery_point IS NOT NULL THEN ${at} END`

/**
 * True; and where `watched` holds, tells those who wait that the record has moved on, once the
 * transaction commits. Only then: a NOTIFY with every result would cost a tenth of the speed.
 */
export const wake = (watched: string) => `CASE WHEN ${watched}
        THEN pg_notify('{channel}', encode(r.identity, 'hex')) IS NOT NULL ELSE true END`

/**
 * A column of `u`, the rows of a batch. Most columns say the same in all rows, and then their array
 * has one element, which stands for all: reading arrays is a good part of what a row costs.
 */
export const shared = (column: string) => `CASE WHEN cardinality(p_${column}) = 1
        THEN p_${column}[1] ELSE u.${column} END AS ${column}`

const HISTORY_COLUMNS = `identity, record_id, attempt, lapses, lease_until, created_at, last_run_at,
        completed_at, expires_at, reconcile_at, tries, on_lapse, after_expiry, proof, fingerprint,
        tenant, operation, key, error_code, recovery_point, result`

/**
 * Keeps the records `r` of the condition, which the caller has locked and is about to end. A
 * statement of its own, so that a role needs no right to the history where there is none. A
 * reminder that a key was used (`expired`) went in when it became one. No id goes in twice, and
 * where a caller has used one twice, that must not keep its key from being claimed.
 */
export const keepHistory = (condition: string) => `
      IF p_history THEN
        INSERT INTO ${HISTORY} (${HISTORY_COLUMNS})
        SELECT ${HISTORY_COLUMNS} FROM ${RECORD} r
        WHERE ${condition} AND r.state <> 'expired'
        ON CONFLICT (record_id) DO NOTHING;
      END IF;`

const viewColumns = ({ state, token }: { state: string; token: string }) => `
  encode(r.identity, 'hex'), r.record_id::text, r.tenant, r.operation, r.key, r.fingerprint,
  ${state}, r.attempt, r.lapses, ${token}, r.on_lapse::text, r.after_expiry::text, r.proof::text,
  r.recovery_point, r.error_code, ${epochMs('r.lease_until')}, ${epochMs('r.reconcile_at')},
        r.tries,
  ${epochMs('r.created_at')}, ${epochMs('r.last_run_at')}, ${epochMs('r.completed_at')},
  ${epochMs('r.expires_at')}`

/** A record as columns: what `rows.ts` reads. Without its result, which may be large. */
export const VIEW_COLUMNS = viewColumns({ state: 'r.state::text', token: 'r.token' })

/** The same of a record in the history. */
export const HISTORY_VIEW_COLUMNS = viewColumns({ state: `'expired'::text`, token: `''::text` })

/** The same, as what a function returns. */
export const VIEW_TYPES = `out_identity text, out_record_id text, out_tenant text,
  out_operation text, out_key text,
  out_fingerprint text, out_state text, out_attempt int, out_lapses int, out_token text,
  out_on_lapse text, out_after_expiry text, out_proof text, out_recovery_point text,
  out_error_code text, out_lease_until_ms float8, out_reconcile_at_ms float8,
  out_tries int, out_created_at_ms float8, out_last_run_at_ms float8, out_completed_at_ms float8,
  out_expires_at_ms float8`
