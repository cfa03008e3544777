/**
 * Every statement on records. All of them hold on MariaDB from 10.6 and are meant to hold on
 * MySQL from 8.0.16. A comment that begins with an M and an exclamation mark is read by MariaDB
 * alone, one that begins with a plus sign by MySQL alone.
 *
 * Every access names its index. A plan that the optimizer picks by its statistics may be a scan of
 * the table, and a scan that locks waits for rows which are none of its business.
 */
import { LEASE_AHEAD_MS } from '../../core/shorten-lease.ts'
import type { RecordState, StoredRecord } from '../../core/record.ts'
import { ABSENT_LEASE } from '../../core/store-probe.ts'
import {
  DUE,
  dueAtMs,
  FRESH,
  KEPT,
  LEASE,
  LEASE_FROM,
  leaseFromSql,
  literalOf,
  nameOf,
  readSql,
  TO_RUN,
  VIEW,
  type Field,
} from './columns.ts'

/** The tables by their checked and quoted names. */
export interface Tables {
  readonly record: string
  readonly history: string
  readonly migration: string
  readonly operation: string
  readonly phase: string
  readonly message: string
  readonly partition: string
  readonly audit: string
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
    database,
  })
}

/** The server's clock in whole milliseconds. UTC, so that no session's time zone has a say. */
export const SERVER_NOW = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000`

export const SERVER_NOW_US = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`

/** What makes a statement fail that would cut a value, whatever the session's own mode. */
export const STRICT_HINT = `/*+ SET_VAR(sql_mode='STRICT_ALL_TABLES') */`

/** Also bounds the wait for a lock. MySQL knows no such bound for one statement. */
export const STRICT = `/*M! SET STATEMENT sql_mode='STRICT_ALL_TABLES',
  innodb_lock_wait_timeout=4 FOR */`

export const BOUNDED = `/*M! SET STATEMENT innodb_lock_wait_timeout=4 FOR */`

/**
 * Whether the session would show more, or less, than what is committed by now: 1 where it would,
 * 0 where it would not. Asked with every read, for other code may change a session at any time.
 * MySQL does not say whether a transaction is open, so that there the answer is 1 or NULL. MariaDB
 * skips comments that are for MySQL 8.
 */
export const IS_OPEN = `CASE WHEN @@autocommit = 0
    /*M! OR @@in_transaction OR @@tx_isolation = 'READ-UNCOMMITTED' */
    /*!80000 OR @@transaction_isolation = 'READ-UNCOMMITTED' */
    THEN 1 /*M! ELSE 0 */ END`

/** For a read that has found no row to say it in. */
export const ASK_OPEN = `SELECT ${IS_OPEN}`

/** Does nothing. Its answer has the flags of the session. */
export const DO_NOTHING = 'DO 0'

export const list = (fields: readonly Field[]) => fields.map(readSql).join(', ')

const identities = (of: readonly { readonly identity: string }[]) =>
  of.map(({ identity }) => literalOf('identity', identity)).join(', ')

/**
 * Records as they are, after the time. It locks nothing and waits for nobody, and it gives a row,
 * with the time, even where there is no record.
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

/** The same for settlements, which need less. */
export function leasesSql(
  { record }: Tables,
  now: string,
  of: readonly { readonly identity: string }[],
): string {
  return `SELECT ${IS_OPEN}, ${now}, ${list(LEASE)}
    FROM (SELECT 1 AS one) AS once
    LEFT JOIN ${record} AS r FORCE INDEX (PRIMARY) ON r.identity IN (${identities(of)})`
}

/** One record for a settlement within a transaction of the store's. */
export function leaseSql(
  { record }: Tables,
  now: string,
  { identity, lock }: { readonly identity: string; readonly lock: boolean },
): string {
  return `${lock ? BOUNDED : ''} SELECT ${now}, ${list(LEASE)}
    FROM ${record} AS r FORCE INDEX (PRIMARY)
    WHERE r.identity = ${literalOf('identity', identity)}${lock ? ' FOR UPDATE' : ''}`
}

/** What stands for a value that is not there, in an answer that is one text. */
export const NONE = '-'

/**
 * MariaDB knows, whatever was or was not sent before. Nothing that MySQL says to everybody does.
 */
const OPENNESS = `COALESCE(/*M! IF(@@in_transaction, 'open', 'none'), */ 'unknown')`

/** Whether a transaction is open, and on which connection, for somebody's tool: see below. */
export function openSql(): string {
  return `SELECT CONVERT(CONCAT_WS(' ', ${OPENNESS}, CONNECTION_ID()) USING utf8mb4) AS answer`
}

/**
 * One record for a settlement in a transaction of somebody's tool. One row, one column and one
 * text, record or not, so that every tool passes it on as it is, however it names columns and
 * reads numbers. No JSON: some parse what looks like it.
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
 * Records under a lock, in the order of their identity, so that two batches never wait for each
 * other. Where locked ones are skipped it waits for nobody.
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
 * Which of these records may be deleted without waiting. A row of an open transaction that refers
 * to a record has a lock on its id, and on nothing else.
 */
export function lockIdsSql({ record }: Tables, records: readonly StoredRecord[]): string {
  const ids = records.map(({ recordId }) => literalOf('recordId', recordId)).join(', ')
  return `SELECT HEX(r.identity) FROM ${record} AS r FORCE INDEX (record_id)
    WHERE r.record_id IN (${ids}) FOR UPDATE SKIP LOCKED`
}

const FRESH_COLUMNS = [...FRESH.map(nameOf), LEASE_FROM, DUE].join(', ')

const freshRow = (record: StoredRecord) => {
  const due = literalOf('expiresAtMs', dueAtMs(record))
  const values = FRESH.map((field) => literalOf(field, record[field]))
  return `(${[...values, leaseFromSql(record), due].join(', ')})`
}

function insertSql({ record }: Tables, records: readonly StoredRecord[]): string {
  return `${STRICT} INSERT ${STRICT_HINT} INTO ${record} (${FRESH_COLUMNS})
    VALUES ${records.map(freshRow).join(', ')}`
}

/** In place of records that were deleted in the same transaction. */
export const replaceSql = insertSql

/**
 * Takes free keys. A key that somebody took meanwhile is left as it is: an insert that failed
 * instead would have to be rolled back with all its neighbours. MariaDB answers with the rows as
 * they are now; MySQL has to be asked.
 */
export function takeSql(tables: Tables, records: readonly StoredRecord[]): string {
  return `${insertSql(tables, records)}
    ON DUPLICATE KEY UPDATE identity = identity
    /*M! RETURNING @@autocommit = 0 OR @@in_transaction, HEX(identity), HEX(token), state,
      attempt */`
}

/** A record that moves on: the fence, and the columns that become something else. */
export interface Change {
  readonly from: Pick<StoredRecord, 'identity' | 'token' | 'attempt' | 'state'>
  readonly columns: ReadonlyMap<string, string>
}

/**
 * Writes only where a record still is as it was when it was decided about. The assignments name
 * no column but their own, because MySQL works through them one after the other.
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

/** The same in a transaction of somebody's tool, and nowhere else: see `settle-in.ts`. */
export function joinedUpdateSql(tables: Tables, change: Change, connection: string): string {
  return `${updateSql(tables, [change])}
    AND CONNECTION_ID() = ${connection} /*M! AND @@in_transaction */`
}

/** An update that finds no row. A server that takes no writes refuses it all the same. */
export function probeSql({ record }: Tables): string {
  return `UPDATE ${record} FORCE INDEX (PRIMARY) SET attempt = attempt
    WHERE identity = ${literalOf('identity', ABSENT_LEASE.identity)}`
}

/** What becomes of some columns of one row, which its key tells from the others. */
export interface KeyedChange {
  readonly key: string
  readonly columns: ReadonlyMap<string, string>
}

/** For an update of several rows, each of which changes in its own way. */
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
 * Deletes by key. From a list in the statement, and not by `IN`: a DELETE takes no index that it is
 * told to, and of a small table it would walk through all rows, and wait for those of others.
 */
export function deleteBy(table: string, column: string, keys: readonly string[]): string {
  const listed = keys.map((key) => `SELECT ${key} AS named`).join(' UNION ALL ')
  return `DELETE t FROM (${listed}) AS listed
    STRAIGHT_JOIN ${table} AS t FORCE INDEX (PRIMARY) ON t.${column} = listed.named`
}

/** An id as a key of `deleteBy`: without it, the column would be converted and not the id. */
export const asciiKey = (literal: string): string => `_ascii${literal} COLLATE ascii_bin`

export function deleteSql({ record }: Tables, records: readonly StoredRecord[]): string {
  const keys = records.map(({ identity }) => literalOf('identity', identity))
  return deleteBy(record, nameOf('identity'), keys)
}

/** What expires, whole, before it is deleted or loses its result. */
export function keepSql({ record, history }: Tables, records: readonly StoredRecord[]): string {
  const columns = KEPT.map(nameOf)
  return `${STRICT} INSERT ${STRICT_HINT} INTO ${history} (${columns.join(', ')})
    SELECT ${columns.map((name) => `r.${name}`).join(', ')}
    FROM ${record} AS r FORCE INDEX (PRIMARY)
    WHERE r.identity IN (${identities(records)}) ORDER BY r.identity`
}

/** Which records of a state are due, but for those that wait for a worker. Locks nothing. */
export function dueSql(
  { record }: Tables,
  now: string,
  { state, limit }: { readonly state: RecordState; readonly limit: number },
): string {
  return `SELECT HEX(r.identity) FROM ${record} AS r FORCE INDEX (due)
    WHERE r.state = ${literalOf('state', state)} AND r.${TO_RUN} = 0 AND r.${DUE} <= ${now}
    ORDER BY r.${DUE} LIMIT ${literalOf('attempt', limit)}`
}

/** How many of the leases that end last are looked at: a sweep must not walk through all. */
const AHEAD_ROWS = 1_000

/**
 * Leases that end later than any of their length which was given by this clock: those from before
 * it was set back. Leases of other lengths may stand before them in the index, but only longer
 * ones, which are as far from their end. Locks nothing.
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

/** Accepted operations that nobody has ever taken, and may not take any more. */
export function abandonedSql({ record }: Tables, now: string, limit: number): string {
  return `SELECT HEX(r.identity) FROM ${record} AS r FORCE INDEX (due)
    WHERE r.state = 'pending' AND r.${TO_RUN} > 0 AND r.${DUE} <= ${now}
    AND r.${nameOf('expiresAtMs')} <= ${now} AND r.attempt = 0
    LIMIT ${literalOf('attempt', limit)}`
}

export function nowSql(now: string): string {
  return `SELECT ${IS_OPEN}, ${now}`
}

export function findSql({ record }: Tables, by: 'identity' | 'recordId', value: string): string {
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
 * Completed ones by expiry and others by last run. Where the index has them in another order, its
 * entries alone are sorted, and only the rows that are asked for are read.
 */
export function listSql(
  { record }: Tables,
  { state, limit }: { readonly state: RecordState; readonly limit: number },
): string {
  const order = state === 'completed' ? DUE : nameOf('lastRunAtMs')
  // None of these is ever to be run, which the index must be told to be in the order of expiry.
  const queue = state === 'completed' ? `AND x.${TO_RUN} = 0` : ''
  return `SELECT STRAIGHT_JOIN ${IS_OPEN}, ${list(VIEW)}
    FROM (SELECT x.identity FROM ${record} AS x FORCE INDEX (due)
      WHERE x.state = ${literalOf('state', state)} ${queue}
      ORDER BY x.${order} LIMIT ${literalOf('attempt', limit)}) AS found
    JOIN ${record} AS r FORCE INDEX (PRIMARY) ON r.identity = found.identity
    ORDER BY r.${order}`
}

export function historySql(
  { history }: Tables,
  query: { readonly by: 'identity' | 'recordId'; readonly value: string; readonly limit: number },
): string {
  const { by, value, limit } = query
  const column = nameOf(by)
  return `SELECT ${IS_OPEN}, ${list(KEPT)} FROM ${history} AS r FORCE INDEX (${column})
    WHERE r.${column} = ${literalOf(by, value)}
    ORDER BY r.number DESC LIMIT ${literalOf('attempt', limit)}`
}

/** For one transaction. Refused where one is open already. */
export const READ_COMMITTED = 'SET TRANSACTION ISOLATION LEVEL READ COMMITTED'
export const BEGIN = 'START TRANSACTION'
export const COMMIT = 'COMMIT'
export const ROLLBACK = 'ROLLBACK'

/**
 * Set around the work. If it is gone afterwards, the transaction has ended under the work, even
 * where another one has begun since.
 */
export const SEAL = 'SAVEPOINT oncekey_seal'

/** For work that returned. */
export const RELEASE_SEAL = 'RELEASE SAVEPOINT oncekey_seal'

/** For work that threw. */
export const ROLL_BACK_TO_SEAL = 'ROLLBACK TO SAVEPOINT oncekey_seal'

/** Tells whether a transaction is open. */
export const PROBE = 'SAVEPOINT oncekey_settle'
export const END_PROBE = 'RELEASE SAVEPOINT oncekey_settle'
