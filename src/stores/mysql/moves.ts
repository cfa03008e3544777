/**
 * What all moves have in common: records are read, `core/decide.ts` says what becomes of them, and
 * what it says is written where they still are as they were read.
 */
import type { StoredRecord } from '../../core/record.ts'
import type { Row } from './client.ts'
import { changesOf, LEASE, toRecord, VIEW, type Field } from './columns.ts'
import { isRows, readCommitted, writeAlone, type Session } from './driver.ts'
import { deleteOperationsSql, deletePhasesSql } from './phase-sql.ts'
import {
  deleteSql,
  keepSql,
  leasesSql,
  lockIdsSql,
  lockSql,
  replaceSql,
  snapshotSql,
  takeSql,
  updateSql,
  type Change,
  type Tables,
} from './sql.ts'

/** Where a call works: the tables, the time as SQL, and whether expired records are kept. */
export interface Place {
  readonly tables: Tables
  readonly now: string
  readonly history: boolean
}

interface Named {
  readonly identity: string
}

/** Records of one moment. */
export interface Records {
  readonly nowMs: number
  readonly byIdentity: ReadonlyMap<string, StoredRecord>
}

/** As they are, results included where there are any to replay. Waits for nobody. */
export function readSnapshot(
  session: Session,
  { tables, now }: Place,
  of: readonly Named[],
): Promise<Records> {
  return readRecords(session, snapshotSql(tables, now, of), [...VIEW, 'result'])
}

/** The same, with what settlements need. */
export function readLeases(
  session: Session,
  { tables, now }: Place,
  of: readonly Named[],
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
  return { nowMs: Number(rows[0]?.[0]), byIdentity: mapped(found.filter(isPresent)) }
}

/** Under locks, within a transaction. Those that somebody else has locked are missing. */
export async function lockFree(
  session: Session,
  { tables, now }: Place,
  of: readonly Named[],
): Promise<Records> {
  return toRecords(await session.rows(lockSql(tables, now, { of, skip: true })))
}

/** The same, once they can be had. */
export async function lockAll(
  session: Session,
  { tables, now }: Place,
  of: readonly Named[],
): Promise<Records> {
  return toRecords(await session.rows(lockSql(tables, now, { of, skip: false })))
}

function toRecords(rows: readonly Row[]): Records {
  const found = rows.map(([, ...values]) => toRecord(VIEW, values))
  return { nowMs: Number(rows[0]?.[0] ?? 0), byIdentity: mapped(found) }
}

/**
 * Inserts records under keys that are free. Gives the identities that are known to be ours now;
 * of the others nothing is known yet.
 */
export async function take(
  session: Session,
  { tables }: Place,
  records: readonly StoredRecord[],
): Promise<ReadonlySet<string>> {
  const answer = await writeAlone(session, takeSql(tables, records))
  if (!isRows(answer)) return new Set()
  const fields = ['identity', 'token', 'state', 'attempt'] as const
  const rows = mapped(answer.map(([, ...values]) => toRecord(fields, values)))
  const ours = records.filter(({ identity, token, state, attempt }) => {
    const row = rows.get(identity)
    return row?.token === token && row.state === state && row.attempt === attempt
  })
  return new Set(ours.map(({ identity }) => identity))
}

export interface Move {
  readonly before: StoredRecord
  /** Absent: the record is removed. With another id: it is replaced. */
  readonly after: StoredRecord | undefined
}

/** Writes moves of records that are locked. Gives those that could be made without waiting. */
export async function makeMoves(
  session: Session,
  place: Place,
  moves: readonly Move[],
): Promise<readonly Move[]> {
  const ending = moves.filter(({ before, after }) => after?.recordId !== before.recordId)
  const gone = await freeOf(session, place, ending)
  const changed = moves.filter(({ before, after }) => after?.recordId === before.recordId)
  if (place.history) await keep(session, place, [...gone, ...changed])
  await remove(
    session,
    place,
    gone.map(({ before }) => before),
  )
  const fresh = gone.flatMap(({ after }) => (after === undefined ? [] : [after]))
  if (fresh.length > 0) await session.run(replaceSql(place.tables, fresh))
  const changes = changed.map(toChange).filter(({ columns }) => columns.size > 0)
  if (changes.length > 0) await session.run(updateSql(place.tables, changes))
  return [...gone, ...changed]
}

/** With what they have beside them. Only what has a recovery point has anything. */
async function remove(
  session: Session,
  { tables }: Place,
  records: readonly StoredRecord[],
): Promise<void> {
  if (records.length > 0) await session.run(deleteSql(tables, records))
  const begun = records.filter(({ recoveryPoint }) => recoveryPoint !== undefined)
  if (begun.length === 0) return
  await session.run(deleteOperationsSql(tables, begun))
  await session.run(deletePhasesSql(tables, begun))
}

/** What a row of somebody's open transaction refers to is left for the next time. */
async function freeOf(
  session: Session,
  { tables }: Place,
  moves: readonly Move[],
): Promise<readonly Move[]> {
  if (moves.length === 0) return []
  const records = moves.map(({ before }) => before)
  const rows = await session.rows(lockIdsSql(tables, records))
  const free = new Set(rows.map(([identity]) => String(identity).toLowerCase()))
  return moves.filter(({ before }) => free.has(before.identity))
}

/** Once: a record that is `expired` has been kept when it became so. */
async function keep(session: Session, { tables }: Place, moves: readonly Move[]): Promise<void> {
  const expiring = moves
    .filter(({ before, after }) => {
      const ends = after?.recordId !== before.recordId || after.state === 'expired'
      return ends && before.state !== 'expired'
    })
    .map(({ before }) => before)
  if (expiring.length > 0) await session.run(keepSql(tables, expiring))
}

/**
 * Writes records that were read without a lock, where they still are as they were. `false`: of
 * some of them that is not so, and which ones must be found out.
 */
export async function writeChanges(
  session: Session,
  { tables }: Place,
  moves: readonly Move[],
): Promise<boolean> {
  const answer = await writeAlone(session, updateSql(tables, moves.map(toChange)))
  return !isRows(answer) && answer.affectedRows === moves.length
}

export function toChange({ before, after }: Move): Change {
  return { from: before, columns: changesOf(before, after!) }
}

function mapped(records: readonly StoredRecord[]): Map<string, StoredRecord> {
  return new Map(records.map((record) => [record.identity, record]))
}

/** The row that only brings the time has none. */
function isPresent({ identity }: Partial<StoredRecord>): boolean {
  return identity !== undefined
}
