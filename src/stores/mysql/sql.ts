/**
 * Statements on records. They work on MariaDB from 10.6 and are meant to work on MySQL from 8.0.16.
 * Only MariaDB executes a comment that begins with an M and an exclamation mark; only MySQL reads a
 * comment that begins with a plus sign.
 *
 * Every access names its index. A plan that the optimizer chooses by its statistics may scan the
 * table, and a scan that locks waits for rows that the statement does not need.
 */
import { ABSENT_LEASE } from '../../core/health/store-probe.ts'
import type { RecordState, StoredRecord } from '../../core/record/record.ts'
import { LEASE_AHEAD_MS } from '../../core/record/shorten-lease.ts'
import {
  DUE,
  dueAtMs,
  FRESH,
  ID_SEED,
  idSeedSql,
  KEPT,
  LEASE,
  LEASE_FROM,
  leaseFromSql,
  literalOf,
  nameOf,
  readSql,
  TO_REMOVE,
  TO_RUN,
  VIEW,
  type Field,
} from './columns.ts'

/** Checked and quoted table names. */
export interface Tables {
  readonly record: string
  readonly history: string
  readonly migration: string
  readonly operation: string
  readonly phase: string
  readonly message: string
  readonly partition: string
  readonly audit: string
  readonly discarded: string
  readonly database: string | undefined
}

export function tablesOf(names: {
  readonly database: string | undefined
  readonly table: string
}): Tables {
  const { database, table } = names
  const prefix = database === undefined ? '' : `\`${database}\`.`
  const named = (suffix: string) => `${prefix}\`${table}${suffix}\``
  return Object.freeze({
    record: named(''),
    history: named('_history'),
    migration: named('_migration'),
    operation: named('_operation'),
    phase: named('_phase'),
    message: named('_message'),
    partition: named('_partition'),
    audit: named('_audit'),
    discarded: named('_discarded'),
    database,
  })
}

/** Input of most statements: the table names, and the current time as SQL. */
export interface SqlContext {
  readonly tables: Tables
  readonly now: string
}

/** The server's clock in whole milliseconds. In UTC, independent of the session's time zone. */
export const SERVER_NOW = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000`

export const SERVER_NOW_US = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`

/** Makes MySQL reject a statement that would truncate a value, in every `sql_mode`. */
export const STRICT_HINT = `/*+ SET_VAR(sql_mode='STRICT_ALL_TABLES') */`

/** The same for MariaDB. Also limits the wait for a lock, which MySQL cannot for one statement. */
export const STRICT = `/*M! SET STATEMENT sql_mode='STRICT_ALL_TABLES',
  innodb_lock_wait_timeout=4 FOR */`

export const BOUNDED = `/*M! SET STATEMENT innodb_lock_wait_timeout=4 FOR */`

/**
 * 1 if the session may read more or less than the committed rows, else 0. Every read selects it,
 * because other code may change a session at any time. MySQL does not tell whether a transaction is
 * open, so on MySQL the value is 1 or NULL. MariaDB skips comments for MySQL 8.
 */
export const IS_OPEN = `CASE WHEN @@autocommit = 0
    /*M! OR @@in_transaction OR @@tx_isolation = 'READ-UNCOMMITTED' */
    /*!80000 OR @@transaction_isolation = 'READ-UNCOMMITTED' */
    THEN 1 /*M! ELSE 0 */ END`

/** For a read that returned no row, and so no `IS_OPEN` either. */
export const ASK_OPEN = `SELECT ${IS_OPEN}`

/** Does nothing. The response contains the flags of the session. */
export const DO_NOTHING = 'DO 0'

export const list = (fields: readonly Field[]) => fields.map(readSql).join(', ')

const identities = (of: readonly { readonly identity: string }[]) =>
  of.map(({ identity }) => literalOf('identity', identity)).join(', ')

/**
 * Reads the time and records. Takes no lock and waits for no lock. Returns a row with the time even
 * if there is no record.
 */
export function snapshotSql(
  { record }: Tables,
  now: string,
  of: readonly { readonly identity: string }[],
): string {
  return `SELECT ${IS_OPEN}, ${now}, ${list(VIEW)},
    CASE WHEN r.state = 'completed' THEN r.result END
    FROM (SELECT 1 AS one) AS once
    LEFT JOIN ${record} AS r FORCE INDEX (PRIMARY) ON r.identity IN (${identities(of)})`
}

/** The same with the fields that settlements need. */
export function leasesSql(
  { record }: Tables,
  now: string,
  of: readonly { readonly identity: string }[],
): string {
  return `SELECT ${IS_OPEN}, ${now}, ${list(LEASE)}
    FROM (SELECT 1 AS one) AS once
    LEFT JOIN ${record} AS r FORCE INDEX (PRIMARY) ON r.identity IN (${identities(of)})`
}

/** Reads one record for a settlement within a transaction of the store. */
export function leaseSql(
  { record }: Tables,
  now: string,
  { identity, lock }: { readonly identity: string; readonly lock: boolean },
): string {
  return `${lock ? BOUNDED : ''} SELECT ${now}, ${list(LEASE)}
    FROM ${record} AS r FORCE INDEX (PRIMARY)
    WHERE r.identity = ${literalOf('identity', identity)}${lock ? ' FOR UPDATE' : ''}`
}

/** Stands for NULL in an answer that is one text. */
export const NONE = '-'

/**
 * Whether a transaction is open. MariaDB reports this reliably. No value that every MySQL user may
 * read does, so on MySQL the answer is `unknown`.
 */
const OPENNESS = `COALESCE(/*M! IF(@@in_transaction, 'open', 'none'), */ 'unknown')`

/** Reads whether a transaction is open and the connection id, as one text: see `joinedLeaseSql`. */
export function openSql(): string {
  return `SELECT CONVERT(CONCAT_WS(' ', ${OPENNESS}, CONNECTION_ID()) USING utf8mb4) AS answer`
}

/**
 * Reads one record for a settlement in a transaction of the caller's database tool. The answer is
 * always one row with one text column, with or without a record, so that every tool returns it
 * unchanged, independent of how it names columns and converts numbers. Not JSON, because some tools
 * parse a text that looks like JSON.
 */
export function joinedLeaseSql(
  { record }: Tables,
  now: string,
  { identity, lock }: { readonly identity: string; readonly lock: boolean },
): string {
  const columns = LEASE.map((field) => `IFNULL(${readSql(field)}, '${NONE}')`)
  const parts = [OPENNESS, 'CONNECTION_ID()', now, ...columns]
  return `${lock ? BOUNDED : ''} SELECT
    CONVERT(CONCAT_WS(' ', ${parts.join(', ')}) USING utf8mb4) AS answer
    FROM (SELECT 1 AS one) AS once
    LEFT JOIN ${record} AS r FORCE INDEX (PRIMARY)
    ON r.identity = ${literalOf('identity', identity)}${lock ? ' FOR UPDATE' : ''}`.trim()
}

/**
 * Locks records in the order of their identity, so that two batches never wait for each other. With
 * `skip` it does not wait for locks and leaves out locked records.
 */
export function lockSql(
  { record }: Tables,
  now: string,
  { of, skip }: { readonly of: readonly { readonly identity: string }[]; readonly skip: boolean },
): string {
  return `${BOUNDED} SELECT ${now}, ${list(VIEW)}
    FROM ${record} AS r FORCE INDEX (PRIMARY)
    WHERE r.identity IN (${identities(of)})
    ORDER BY r.identity FOR UPDATE${skip ? ' SKIP LOCKED' : ''}`
}

/**
 * Finds the records that can be deleted without waiting. If a row of an open transaction refers to
 * a record by a foreign key, that transaction has a lock on the record id, and on nothing else.
 */
export function lockIdsSql({ record }: Tables, records: readonly StoredRecord[]): string {
  const ids = records.map(({ recordId }) => literalOf('recordId', recordId)).join(', ')
  return `SELECT HEX(r.identity) FROM ${record} AS r FORCE INDEX (record_id)
    WHERE r.record_id IN (${ids}) FOR UPDATE SKIP LOCKED`
}

const FRESH_COLUMNS = [...FRESH.map(nameOf), ID_SEED, LEASE_FROM, DUE].join(', ')

const freshRow = (record: StoredRecord) => {
  const due = literalOf('expiresAtMs', dueAtMs(record))
  const values = FRESH.map((field) => literalOf(field, record[field]))
  return `(${[...values, idSeedSql(record), leaseFromSql(record), due].join(', ')})`
}

/** Also replaces records that were deleted in the same transaction. */
export function insertSql({ record }: Tables, records: readonly StoredRecord[]): string {
  return `${STRICT} INSERT ${STRICT_HINT} INTO ${record} (${FRESH_COLUMNS})
    VALUES ${records.map(freshRow).join(', ')}`
}

/**
 * Inserts records under free keys. Leaves a key unchanged that another call has taken since: if the
 * insert failed instead, the other rows of the batch would have to be rolled back with it. MariaDB
 * returns the rows as they are now; MySQL has to be read.
 */
export function insertFreeSql(tables: Tables, records: readonly StoredRecord[]): string {
  return `${insertSql(tables, records)}
    ON DUPLICATE KEY UPDATE identity = identity
    /*M! RETURNING @@autocommit = 0 OR @@in_transaction, HEX(identity), HEX(token), state,
      attempt */`
}

/** Change of one record: the fence, and the new values of columns as SQL. */
export interface Change {
  readonly from: Pick<StoredRecord, 'identity' | 'token' | 'attempt' | 'state'>
  readonly columns: ReadonlyMap<string, string>
}

/**
 * Writes a record only if it still has the token, attempt and state that the decision is based on.
 * No assignment reads another column, because MySQL applies assignments one after the other.
 */
export function updateSql({ record }: Tables, changes: readonly Change[]): string {
  const keyed = changes.map(({ from, columns }) => ({
    key: literalOf('identity', from.identity),
    columns,
  }))
  const fences = changes.map(({ from }) => {
    const [identity, token, attempt, state] = [
      literalOf('identity', from.identity),
      literalOf('token', from.token),
      literalOf('attempt', from.attempt),
      literalOf('state', from.state),
    ]
    return `WHEN ${identity} THEN token = ${token} AND attempt = ${attempt} AND state = ${state}`
  })
  return `${STRICT} UPDATE ${STRICT_HINT} ${record} FORCE INDEX (PRIMARY)
    SET ${assignments('identity', keyed)}
    WHERE identity IN (${identities(changes.map(({ from }) => from))})
    AND CASE identity ${fences.join(' ')} END`
}

/** The same, only on this connection and within a transaction: see `settleIn`. */
export function joinedUpdateSql(tables: Tables, change: Change, connection: string): string {
  return `${updateSql(tables, [change])}
    AND CONNECTION_ID() = ${connection} /*M! AND @@in_transaction */`
}

/** An update that matches no row. A read-only server rejects it nevertheless. */
export function probeSql({ record }: Tables): string {
  return `UPDATE ${record} FORCE INDEX (PRIMARY) SET attempt = attempt
    WHERE identity = ${literalOf('identity', ABSENT_LEASE.identity)}`
}

/** New values of columns of the row with this key. */
export interface KeyedChange {
  readonly key: string
  readonly columns: ReadonlyMap<string, string>
}

/** Assignments of an update that changes several rows in different ways. */
export function assignments(keyColumn: string, changes: readonly KeyedChange[]): string {
  const names = new Set(changes.flatMap(({ columns }) => [...columns.keys()]))
  return [...names].map((name) => `${name} = ${valueSql(keyColumn, name, changes)}`).join(', ')
}

function valueSql(keyColumn: string, name: string, changes: readonly KeyedChange[]): string {
  const [first] = changes
  const value = first!.columns.get(name)
  const isSame = changes.every(({ columns }) => columns.get(name) === value)
  if (isSame && value !== undefined) return value
  const cases = changes.flatMap(({ key, columns }) => {
    const own = columns.get(name)
    return own === undefined ? [] : [`WHEN ${key} THEN ${own}`]
  })
  return `CASE ${keyColumn} ${cases.join(' ')} ELSE ${name} END`
}

/**
 * Deletes rows by key. Joins a list of keys instead of using `IN`: a DELETE accepts no FORCE INDEX,
 * and on a small table it would scan all rows and wait for rows that other calls have locked.
 */
export function deleteBy(table: string, column: string, keys: readonly string[]): string {
  const listed = keys.map((key) => `SELECT ${key} AS named`).join(' UNION ALL ')
  return `DELETE t FROM (${listed}) AS listed
    STRAIGHT_JOIN ${table} AS t FORCE INDEX (PRIMARY) ON t.${column} = listed.named`
}

/** An id as a key of `deleteBy`. Without the collation the server would convert the column. */
export const asciiKey = (literal: string): string => `_ascii${literal} COLLATE ascii_bin`

export function deleteSql({ record }: Tables, records: readonly StoredRecord[]): string {
  const keys = records.map(({ identity }) => literalOf('identity', identity))
  return deleteBy(record, nameOf('identity'), keys)
}

/** Copies expiring records to the history before they are deleted or lose their result. */
export function keepSql({ record, history }: Tables, records: readonly StoredRecord[]): string {
  const columns = KEPT.map(nameOf)
  return `${STRICT} INSERT ${STRICT_HINT} INTO ${history} (${columns.join(', ')})
    SELECT ${columns.map((name) => `r.${name}`).join(', ')}
    FROM ${record} AS r FORCE INDEX (PRIMARY)
    WHERE r.identity IN (${identities(records)}) ORDER BY r.identity`
}

/** Finds due records of one state, except those that wait for a worker. Takes no lock. */
export function dueSql(
  { record }: Tables,
  now: string,
  { state, limit }: { readonly state: RecordState; readonly limit: number },
): string {
  const queue = state === 'expired' ? TO_REMOVE : 0
  return `SELECT HEX(r.identity) FROM ${record} AS r FORCE INDEX (due)
    WHERE r.state = ${literalOf('state', state)} AND r.${TO_RUN} = ${queue} AND r.${DUE} <= ${now}
    ORDER BY r.${DUE} LIMIT ${literalOf('attempt', limit)}`
}

/** How many of the leases that end last are read, because a sweep must not read all leases. */
const AHEAD_ROWS = 1_000

/**
 * Finds leases that end later than a lease of their length that starts now: they were given before
 * the clock was set back. Other leases may come before them in the index, but only longer ones that
 * end as late. Takes no lock.
 */
export function aheadSql({ record }: Tables, now: string, limit: number): string {
  return `SELECT HEX(last.identity) FROM (
      SELECT r.identity, r.${DUE} AS due_at, ${readSql('leaseMs')} AS lease_ms
      FROM ${record} AS r FORCE INDEX (due)
      WHERE r.state = 'in_progress' AND r.${TO_RUN} = 0 AND r.${DUE} > ${now} + ${LEASE_AHEAD_MS}
      ORDER BY r.${DUE} DESC LIMIT ${AHEAD_ROWS}) AS last
    WHERE last.due_at > ${now} + ${LEASE_AHEAD_MS} + last.lease_ms
    LIMIT ${literalOf('attempt', limit)}`
}

/** Finds accepted operations that no worker has ever taken and that have expired. */
export function abandonedSql({ record }: Tables, now: string, limit: number): string {
  return `SELECT HEX(r.identity) FROM ${record} AS r FORCE INDEX (due)
    WHERE r.state = 'pending' AND r.${TO_RUN} > 0 AND r.${DUE} <= ${now}
    AND r.${nameOf('expiresAtMs')} <= ${now} AND r.attempt = 0
    LIMIT ${literalOf('attempt', limit)}`
}

export function nowSql(now: string): string {
  return `SELECT ${IS_OPEN}, ${now}`
}

/** Names one record: by its key, or by its id. */
export interface RecordKey {
  readonly by: 'identity' | 'recordId'
  readonly value: string
}

export function findSql({ record }: Tables, { by, value }: RecordKey): string {
  return `SELECT ${IS_OPEN}, ${list(VIEW)}, r.result
    FROM ${record} AS r FORCE INDEX (${by === 'identity' ? 'PRIMARY' : 'record_id'})
    WHERE r.${nameOf(by)} = ${literalOf(by, value)}`
}

export function identitiesSql({ record }: Tables, recordIds: readonly string[]): string {
  return `SELECT ${IS_OPEN}, r.record_id, HEX(r.identity)
    FROM ${record} AS r FORCE INDEX (record_id)
    WHERE r.record_id IN (${recordIds.map((id) => literalOf('recordId', id)).join(', ')})`
}

/**
 * Lists completed records by expiry and others by last run. If the index has another order, the
 * server sorts only index entries and reads only the rows within the limit.
 */
export function listSql(
  { record }: Tables,
  { state, limit }: { readonly state: RecordState; readonly limit: number },
): string {
  const order = state === 'completed' ? DUE : nameOf('lastRunAtMs')
  // Completed records never wait for a worker. Only with this condition does the index have the
  // order of expiry.
  const queue = state === 'completed' ? `AND x.${TO_RUN} = 0` : ''
  return `SELECT STRAIGHT_JOIN ${IS_OPEN}, ${list(VIEW)}
    FROM (SELECT x.identity FROM ${record} AS x FORCE INDEX (due)
      WHERE x.state = ${literalOf('state', state)} ${queue}
      ORDER BY x.${order} LIMIT ${literalOf('attempt', limit)}) AS found
    JOIN ${record} AS r FORCE INDEX (PRIMARY) ON r.identity = found.identity
    ORDER BY r.${order}`
}

export function historySql({ history }: Tables, { by, value }: RecordKey, limit: number): string {
  const column = nameOf(by)
  return `SELECT ${IS_OPEN}, ${list(KEPT)} FROM ${history} AS r FORCE INDEX (${column})
    WHERE r.${column} = ${literalOf(by, value)}
    ORDER BY r.number DESC LIMIT ${literalOf('attempt', limit)}`
}

/** For the next transaction. The server rejects it while a transaction is open. */
export const READ_COMMITTED = 'SET TRANSACTION ISOLATION LEVEL READ COMMITTED'
export const BEGIN = 'START TRANSACTION'
export const COMMIT = 'COMMIT'
export const ROLLBACK = 'ROLLBACK'

/**
 * Set before the caller's work. If the savepoint does not exist afterwards, the work has ended the
 * transaction, even if it has begun another one since.
 */
export const SEAL = 'SAVEPOINT oncekey_seal'

/** After work that returned. */
export const RELEASE_SEAL = 'RELEASE SAVEPOINT oncekey_seal'

/** After work that threw. */
export const ROLL_BACK_TO_SEAL = 'ROLLBACK TO SAVEPOINT oncekey_seal'

/** Releasing this savepoint fails if no transaction is open. */
export const PROBE = 'SAVEPOINT oncekey_settle'
export const END_PROBE = 'RELEASE SAVEPOINT oncekey_settle'
