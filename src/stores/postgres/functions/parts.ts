/** SQL fragments that several functions share. `functions.ts` lists the rules for all of them. */
import { LEASE_AHEAD_MS } from '../../../core/record/shorten-lease.ts'

export const SETTINGS = `
  SET search_path = pg_catalog, pg_temp
  SET enable_seqscan = off
  SET enable_bitmapscan = off
  SET enable_hashjoin = off
  SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
  SET jit = off
  SET lock_timeout = '4s'`

/** The SQLSTATE of an error for a transaction that is not READ COMMITTED. */
export const WRONG_ISOLATION = 'OK001'

const checkIsolation = (isFine: string) => `
    IF NOT (${isFine}) THEN
      RAISE EXCEPTION 'oncekey needs READ COMMITTED' USING ERRCODE = '${WRONG_ISOLATION}';
    END IF;`

const IS_READ_COMMITTED = `current_setting('transaction_isolation') = 'read committed'`

/** Fails before any write, so that the call can be repeated in a READ COMMITTED transaction. */
export const CHECK_ISOLATION = checkIsolation(IS_READ_COMMITTED)

/** Marks a transaction that the caller has begun: see `caller-transaction.ts`. */
export const JOINED = 'oncekey.joined'

/**
 * Marks a transaction that the store has begun. The setting ends with the transaction, also if
 * another transaction has begun since.
 */
export const SEALED = 'oncekey.sealed'

/**
 * A call inside the caller's transaction accepts its isolation level. At a level with a snapshot,
 * PostgreSQL raises 40001 if the record has changed since. So no decision uses outdated data, and
 * an application at that level has to repeat such transactions in any case.
 */
export const CHECK_ISOLATION_UNLESS_JOINED = checkIsolation(
  `${IS_READ_COMMITTED} OR coalesce(current_setting('${JOINED}', true), '') <> ''`,
)

/** The database's clock in whole milliseconds, or the time that a test passes. */
export const NOW = `coalesce(to_timestamp(p_now_ms / 1000),
      date_trunc('milliseconds', clock_timestamp()))`

export const RECORD = '"{schema}"."{table}"'

/** Types of a record's words. An enumeration costs no time; a CHECK cost a tenth of a claim. */
export const STATE = '"{schema}"."{table}_state"'
export const ON_LAPSE = '"{schema}"."{table}_on_lapse"'
export const AFTER_EXPIRY = '"{schema}"."{table}_after_expiry"'
export const PROOF = '"{schema}"."{table}_proof"'

export const HISTORY = '"{schema}"."{table}_history"'

export const OPERATION = '"{schema}"."{table}_operation"'

export const PHASE = '"{schema}"."{table}_phase"'

export const MESSAGE = '"{schema}"."{table}_message"'

export const PARTITION = '"{schema}"."{table}_partition"'

/** One row: the time until which a relay waits for new messages. */
export const WAITING = '"{schema}"."{table}_waiting"'

export const AUDIT = '"{schema}"."{table}_audit"'

/** Results that an operator has discarded. */
export const DISCARDED = '"{schema}"."{table}_discarded"'

export const ms = (expression: string) => `(${expression}) * interval '1 millisecond'`

/**
 * The lease of record `r` began later than now, so the clock was set back since. A node of an older
 * version that claims or renews does not write `lease_from` and `lease_ms`; then they do not add up
 * to the end of the lease, and the start of the lease is not known.
 */
export const isAhead = (now: string) => `CASE r.state
          WHEN 'in_progress' THEN r.lease_from > ${now} + ${ms(String(LEASE_AHEAD_MS))}
            AND r.lease_from + ${ms('r.lease_ms')} = r.lease_until
          ELSE false END`

/** Lets the lease begin now with its original length. */
export const shortened = (now: string) =>
  `lease_until = ${now} + ${ms('r.lease_ms')}, lease_from = ${now}`

/** `date_part`, because `extract` returns a numeric, which is converted to a float as text. */
export const epochMs = (expression: string) => `round(date_part('epoch', ${expression}) * 1000)`

/**
 * The retention has passed, so the key counts as unused. An operation that has begun does not
 * expire: its effects must not be forgotten.
 */
export const IS_EXPIRED = `CASE r.state
          WHEN 'expired' THEN true
          WHEN 'completed' THEN r.expires_at <= v_now
          WHEN 'failed_retryable' THEN r.recovery_point IS NULL AND r.expires_at <= v_now
          ELSE false END`

/** The operation has run before, so it never times out. The same predicate as in the index. */
export const IS_BEGUN = '(r.recovery_point IS NOT NULL AND r.attempt > 0)'

/** Records that expire with time. The index has this predicate, word for word. */
export const MAY_EXPIRE = `(r.state = 'completed'
        OR (r.state = 'failed_retryable' AND r.recovery_point IS NULL))`

/** Tombstones with an end. The index has this predicate, word for word. */
export const IS_TOMBSTONE = `r.state = 'expired' AND r.reconcile_at IS NOT NULL AND r.attempt >= 0`

/** The time when a worker may resume a released record; only records with an operation resume. */
export const resumeAt = (at: string) => `CASE WHEN r.recovery_point IS NOT NULL THEN ${at} END`

/**
 * Always true. If `watched` holds, it also notifies the waiting requests of the change when the
 * transaction commits. A NOTIFY with every result would cost a tenth of the speed.
 */
export const wake = (watched: string) => `CASE WHEN ${watched}
        THEN pg_notify('{channel}', encode(r.identity, 'hex')) IS NOT NULL ELSE true END`

/**
 * A column of `u`, the rows of a batch. If all rows have the same value, as in most columns, the
 * array has a single element for all rows: reading arrays is a large part of the cost of a row.
 */
export const shared = (column: string) => `CASE WHEN cardinality(p_${column}) = 1
        THEN p_${column}[1] ELSE u.${column} END AS ${column}`

const HISTORY_COLUMNS = `identity, record_id, attempt, lapses, lease_until, created_at, last_run_at,
        completed_at, expires_at, reconcile_at, tries, on_lapse, after_expiry, proof, fingerprint,
        tenant, operation, key, error_code, recovery_point, result`

/**
 * Copies the records `r` of the condition to the history. The function has locked them and is about
 * to remove them. It is a separate statement, so that a role without the history needs no right to
 * that table. A record in state `expired` was copied when it expired. Each id is copied once: if an
 * application uses an id twice, its key can still be claimed.
 */
const keepIn = (columns: string) => (condition: string) =>
  `
      IF p_history THEN
        INSERT INTO ${HISTORY} (${columns})
        SELECT ${columns} FROM ${RECORD} r
        WHERE ${condition} AND r.state <> 'expired'
        ON CONFLICT (record_id) DO NOTHING;
      END IF;`

export const keepHistory = keepIn(HISTORY_COLUMNS)
/** With the columns that migration 4 has added. */
export const keepHistory4 = keepIn(`${HISTORY_COLUMNS}, id_seed, refuse_for_ms`)

const viewColumns = ({ state, token }: { state: string; token: string }) => `
  encode(r.identity, 'hex'), r.record_id::text, r.tenant, r.operation, r.key, r.fingerprint,
  ${state}, r.attempt, r.lapses, ${token}, r.on_lapse::text, r.after_expiry::text, r.proof::text,
  r.recovery_point, r.error_code, ${epochMs('r.lease_until')}, ${epochMs('r.reconcile_at')},
        r.tries,
  ${epochMs('r.created_at')}, ${epochMs('r.last_run_at')}, ${epochMs('r.completed_at')},
  ${epochMs('r.expires_at')}`

/** The columns of a view of a record, in a SELECT and as the result type of a function. */
export interface View {
  /** The columns of a record, without the result, which may be large. */
  readonly columns: string
  /** The same columns of a record in the history. */
  readonly historyColumns: string
  readonly types: string
}

/** The view of the functions of migrations 1 to 3. */
export const VIEW_1: View = {
  columns: viewColumns({ state: 'r.state::text', token: 'r.token' }),
  historyColumns: viewColumns({ state: `'expired'::text`, token: `''::text` }),
  types: `out_identity text, out_record_id text, out_tenant text,
  out_operation text, out_key text,
  out_fingerprint text, out_state text, out_attempt int, out_lapses int, out_token text,
  out_on_lapse text, out_after_expiry text, out_proof text, out_recovery_point text,
  out_error_code text, out_lease_until_ms float8, out_reconcile_at_ms float8,
  out_tries int, out_created_at_ms float8, out_last_run_at_ms float8, out_completed_at_ms float8,
  out_expires_at_ms float8`,
}

const POLICY_COLUMNS = `, encode(r.id_seed, 'hex'), r.refuse_for_ms`

/** The columns that `columns.ts` reads: with those that migration 4 has added. */
export const VIEW_4: View = {
  columns: VIEW_1.columns + POLICY_COLUMNS,
  historyColumns: VIEW_1.historyColumns + POLICY_COLUMNS,
  types: `${VIEW_1.types}, out_id_seed text, out_refuse_for_ms float8`,
}
