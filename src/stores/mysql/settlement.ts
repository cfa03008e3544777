import { decideSettle } from '../../core/decide.ts'
import type { StoredRecord } from '../../core/record.ts'
import type { Lease, SettleOutcome, Settlement } from '../../core/store.ts'
import type { Row } from './client.ts'
import { LEASE, toRecord } from './columns.ts'
import { transact, type Session } from './driver.ts'
import {
  lockAll,
  makeMoves,
  readLeases,
  toChange,
  writeChanges,
  type Move,
  type Place,
} from './moves.ts'
import { leaseSql, updateSql } from './sql.ts'

/**
 * Settles a batch: reads, decides, and writes in one statement whose WHERE clause is the fence.
 * Where that wrote less than was decided, somebody was faster with some of them: those decisions
 * are made again under locks. A settlement that was written the first time recognises itself.
 */
export async function settleBatch(
  session: Session,
  place: Place,
  settlements: readonly Settlement[],
): Promise<SettleOutcome[]> {
  const leases = settlements.map(({ lease }) => lease)
  const { nowMs, byIdentity } = await readLeases(session, place, leases)
  const { moves, outcomes } = decide(settlements, byIdentity, nowMs)
  if (moves.length === 0 || (await writeChanges(session, place, moves))) return outcomes
  return transact(session, async () => {
    const locked = await lockAll(session, place, leases)
    const again = decide(settlements, locked.byIdentity, locked.nowMs)
    await makeMoves(session, place, again.moves)
    return again.outcomes
  })
}

function decide(
  settlements: readonly Settlement[],
  records: ReadonlyMap<string, StoredRecord>,
  nowMs: number,
): { moves: Move[]; outcomes: SettleOutcome[] } {
  const moves: Move[] = []
  const outcomes = settlements.map((settlement) => {
    const before = records.get(settlement.lease.identity)
    const { outcome, write } = decideSettle(before, settlement, nowMs)
    if (before !== undefined && write !== undefined) moves.push({ before, after: write })
    return outcome
  })
  return { moves, outcomes }
}

/** Where a transaction settles: the tables, and the time as SQL. */
export type Inside = Pick<Place, 'tables' | 'now'>

/** The record of a lease as it is: it locks nothing, for duplicates must get through. */
export async function readWithin(
  session: Session,
  { tables, now }: Inside,
  { identity }: Lease,
): Promise<StoredRecord | undefined> {
  const [row] = await session.rows(leaseSql(tables, now, { identity, lock: false }))
  return toLease(row).record
}

/** Settles one record within a transaction of the store's that is open on this session. */
export async function settleWithin(
  session: Session,
  { tables, now }: Inside,
  settlement: Settlement,
): Promise<{ readonly outcome: SettleOutcome; readonly isWritten: boolean }> {
  const { identity } = settlement.lease
  const [row] = await session.rows(leaseSql(tables, now, { identity, lock: true }))
  const { record: before, nowMs } = toLease(row)
  const { outcome, write } = decideSettle(before, settlement, nowMs)
  if (before === undefined || write === undefined) return { outcome, isWritten: false }
  await session.run(updateSql(tables, [toChange({ before, after: write })]))
  return { outcome, isWritten: true }
}

function toLease(row: Row | undefined): { record: StoredRecord | undefined; nowMs: number } {
  if (row === undefined) return { record: undefined, nowMs: 0 }
  const [nowMs, ...values] = row
  return { record: toRecord(LEASE, values), nowMs: Number(nowMs) }
}
