/**
 * Steps that every change of a record shares: read the record, decide by `core/record/decide.ts`,
 * and write the decision only if the record is still as it was read.
 */
import type { StoredRecord } from '../../core/record/record.ts'
import type { Calls } from './calls.ts'
import type { Row } from './client.ts'
import { changesOf, isOperationOver, LEASE, toRecord, VIEW, type Field } from './columns.ts'
import { isRows, readCommitted, writeAlone, type Session } from './driver/driver.ts'
import { deleteOperationsSql, deletePhasesSql } from './durable/phase-sql.ts'
import {
  deleteSql,
  insertFreeSql,
  insertSql,
  keepSql,
  leasesSql,
  lockIdsSql,
  lockSql,
  snapshotSql,
  updateSql,
  type Change,
  type SqlContext,
} from './sql.ts'

/** Context of a call that writes records. */
export interface RecordContext extends SqlContext {
  /** Whether expired records are kept in the history table. */
  readonly history: boolean
}

/** Parts of the store that its modules share. */
export interface StoreContext {
  readonly tables: SqlContext['tables']
  readonly calls: Calls
  /** A function, because with a clock from a test the context contains the current time. */
  readonly current: () => RecordContext
}

interface HasIdentity {
  readonly identity: string
}

/** Records as they were at one moment. */
export interface Records {
  readonly nowMs: number
  readonly byIdentity: ReadonlyMap<string, StoredRecord>
}

/** Reads records, with the results of completed ones. Takes no lock and waits for no lock. */
export function readSnapshot(
  session: Session,
  { tables, now }: RecordContext,
  of: readonly HasIdentity[],
): Promise<Records> {
  return readRecords(session, snapshotSql(tables, now, of), [...VIEW, 'result'])
}

/** Reads the fields that settlements need. Takes no lock and waits for no lock. */
export function readLeases(
  session: Session,
  { tables, now }: RecordContext,
  of: readonly HasIdentity[],
): Promise<Records> {
  return readRecords(session, leasesSql(tables, now, of), LEASE)
}

async function readRecords(
  session: Session,
  sql: string,
  fields: readonly Field[],
): Promise<Records> {
  const rows = await readCommitted(session, sql)
  const found = rows.map(([, ...values]) => toRecord(fields, values))
  return { nowMs: Number(rows[0]?.[0]), byIdentity: toMap(found.filter(isPresent)) }
}

/** Locks records within a transaction. Skips records that another transaction has locked. */
export async function lockFree(
  session: Session,
  { tables, now }: RecordContext,
  of: readonly HasIdentity[],
): Promise<Records> {
  return toRecords(await session.rows(lockSql(tables, now, { of, skip: true })))
}

/** Locks records within a transaction. Waits for records that another transaction has locked. */
export async function lockAll(
  session: Session,
  { tables, now }: RecordContext,
  of: readonly HasIdentity[],
): Promise<Records> {
  return toRecords(await session.rows(lockSql(tables, now, { of, skip: false })))
}

function toRecords(rows: readonly Row[]): Records {
  const found = rows.map(([, ...values]) => toRecord(VIEW, values))
  return { nowMs: Number(rows[0]?.[0] ?? 0), byIdentity: toMap(found) }
}

/**
 * Inserts records under free keys. Returns the identities that this call is known to hold. For the
 * other identities nothing is known yet: MySQL does not say which rows it inserted.
 */
export async function insertFree(
  session: Session,
  { tables }: RecordContext,
  records: readonly StoredRecord[],
): Promise<ReadonlySet<string>> {
  const answer = await writeAlone(session, insertFreeSql(tables, records))
  if (!isRows(answer)) return new Set()
  const fields = ['identity', 'token', 'state', 'attempt'] as const
  const rows = toMap(answer.map(([, ...values]) => toRecord(fields, values)))
  const inserted = records.filter(({ identity, token, state, attempt }) => {
    const row = rows.get(identity)
    return row?.token === token && row.state === state && row.attempt === attempt
  })
  return new Set(inserted.map(({ identity }) => identity))
}

/** A change of one record. */
export interface Move {
  readonly before: StoredRecord
  /** Absent: the record is removed. With another record id: the record is replaced. */
  readonly after: StoredRecord | undefined
}

/** Writes moves of locked records. Returns the moves that were possible without waiting. */
export async function applyMoves(
  session: Session,
  context: RecordContext,
  moves: readonly Move[],
): Promise<readonly Move[]> {
  const { tables } = context
  const ending = moves.filter(({ before, after }) => after?.recordId !== before.recordId)
  const removed = await withoutReferenced(session, context, ending)
  const changed = moves.filter(({ before, after }) => after?.recordId === before.recordId)
  if (context.history) await keepExpired(session, context, [...removed, ...changed])
  await remove(
    session,
    context,
    removed.map(({ before }) => before),
  )
  const replacements = removed.flatMap(({ after }) => (after === undefined ? [] : [after]))
  if (replacements.length > 0) await session.run(insertSql(tables, replacements))
  const changes = changed.map(toChange).filter(({ columns }) => columns.size > 0)
  if (changes.length > 0) await session.run(updateSql(tables, changes))
  const over = changed.filter(({ before, after }) => isOperationOver(before, after!))
  await removeOperations(
    session,
    context,
    over.map(({ before }) => before),
  )
  return [...removed, ...changed]
}

/** Also deletes operations and phases. Only a record with a recovery point has any. */
async function remove(
  session: Session,
  context: RecordContext,
  records: readonly StoredRecord[],
): Promise<void> {
  if (records.length > 0) await session.run(deleteSql(context.tables, records))
  const begun = records.filter(({ recoveryPoint }) => recoveryPoint !== undefined)
  await removeOperations(session, context, begun)
}

async function removeOperations(
  session: Session,
  { tables }: RecordContext,
  records: readonly StoredRecord[],
): Promise<void> {
  if (records.length === 0) return
  await session.run(deleteOperationsSql(tables, records))
  await session.run(deletePhasesSql(tables, records))
}

/** Leaves out records that a row of an open transaction refers to. A later call removes them. */
async function withoutReferenced(
  session: Session,
  { tables }: RecordContext,
  moves: readonly Move[],
): Promise<readonly Move[]> {
  if (moves.length === 0) return []
  const records = moves.map(({ before }) => before)
  const rows = await session.rows(lockIdsSql(tables, records))
  const free = new Set(rows.map(([identity]) => String(identity).toLowerCase()))
  return moves.filter(({ before }) => free.has(before.identity))
}

/** A record in state `expired` is not copied again: the history got it when it expired. */
async function keepExpired(
  session: Session,
  { tables }: RecordContext,
  moves: readonly Move[],
): Promise<void> {
  const expiring = moves
    .filter(({ before, after }) => {
      const ends = after?.recordId !== before.recordId || after.state === 'expired'
      return ends && before.state !== 'expired'
    })
    .map(({ before }) => before)
  if (expiring.length > 0) await session.run(keepSql(tables, expiring))
}

/**
 * Writes records that were read without a lock, if they are still as they were read. `false`: some
 * of them have changed, and the caller must decide again under locks.
 */
export async function writeChanges(
  session: Session,
  { tables }: RecordContext,
  moves: readonly Move[],
): Promise<boolean> {
  const answer = await writeAlone(session, updateSql(tables, moves.map(toChange)))
  return !isRows(answer) && answer.affectedRows === moves.length
}

export function toChange({ before, after }: Move): Change {
  return { from: before, columns: changesOf(before, after!) }
}

function toMap(records: readonly StoredRecord[]): Map<string, StoredRecord> {
  return new Map(records.map((record) => [record.identity, record]))
}

/** A read without any record still returns one row, which contains only the time. */
function isPresent({ identity }: Partial<StoredRecord>): boolean {
  return identity !== undefined
}
