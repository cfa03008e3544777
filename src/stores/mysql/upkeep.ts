/** Regular work on records that are due: `sweep` for lapsed leases, `reap` for expired records. */
import { decideReap, decideSweep, toSwept } from '../../core/record/decide.ts'
import type { StoredRecord } from '../../core/record/record.ts'
import { decideShorten } from '../../core/record/shorten-lease.ts'
import type { ReapReport, ReapRequest, SweptRecord } from '../../core/store/store.ts'
import { ROWS_MAX } from './calls.ts'
import { transact, type Session } from './driver/driver.ts'
import { applyMoves, lockFree, type Move, type RecordContext, type StoreContext } from './moves.ts'
import { abandonedSql, aheadSql, dueSql } from './sql.ts'

export async function sweep(
  store: StoreContext,
  { limit }: { readonly limit: number },
  signal?: AbortSignal,
): Promise<SweptRecord[]> {
  await moveDue(store, { operation: 'sweep', queues: [AHEAD], limit, signal }, (before, nowMs) => {
    const after = decideShorten(before, nowMs)
    return after && { before, after, result: undefined }
  })
  const lapsed = { operation: 'sweep', queues: [LAPSED], limit, signal }
  return moveDue(store, lapsed, (before, nowMs) => {
    const after = decideSweep(before, nowMs)
    return after && { before, after, result: toSwept(after) }
  })
}

export async function reap(
  store: StoreContext,
  request: ReapRequest,
  signal?: AbortSignal,
): Promise<ReapReport> {
  const queues = request.abandoned === undefined ? ENDED : [...ENDED, ...ACCEPTED]
  const query = { operation: 'reap', queues, limit: request.limit, signal }
  const kinds = await moveDue(store, query, (before, nowMs) => {
    const decision = decideReap(before, request, nowMs)
    return decision && { before, after: decision.write, result: decision.kind }
  })
  const report = { removed: 0, expired: 0, abandoned: 0 }
  for (const kind of kinds) report[kind]++
  return report
}

/** Finds the identities of records that are due, for one kind of upkeep. */
type QueueSql = (context: RecordContext, limit: number) => string

/** Leases that were given before the clock of the database was set back. */
const AHEAD: QueueSql = ({ tables, now }, limit) => aheadSql(tables, now, limit)

const LAPSED: QueueSql = ({ tables, now }, limit) =>
  dueSql(tables, now, { state: 'in_progress', limit })

/**
 * Excludes operations that have begun: workers complete those. Of the expired records only those
 * whose time is over are read, and none that is kept for ever.
 */
const ENDED: readonly QueueSql[] = (['completed', 'failed_retryable', 'expired'] as const).map(
  (state): QueueSql =>
    ({ tables, now }, limit) =>
      dueSql(tables, now, { state, limit }),
)

const ACCEPTED: readonly QueueSql[] = [
  ({ tables, now }, limit) => dueSql(tables, now, { state: 'pending', limit }),
  ({ tables, now }, limit) => abandonedSql(tables, now, limit),
]

interface DueQuery {
  readonly operation: string
  readonly queues: readonly QueueSql[]
  readonly limit: number
  readonly signal: AbortSignal | undefined
}

interface DueMove<Result> extends Move {
  /** Reported to the caller if the move is written. */
  readonly result: Result
}

type Decide<Result> = (before: StoredRecord, nowMs: number) => DueMove<Result> | undefined

/** Writes decisions on due records in pieces, each in its own transaction. */
async function moveDue<Result>(
  { calls, current }: StoreContext,
  { operation, queues, limit, signal }: DueQuery,
  decide: Decide<Result>,
): Promise<Result[]> {
  const results: Result[] = []
  for (const queueSql of queues) {
    for (;;) {
      const piece = Math.min(ROWS_MAX, limit - results.length)
      if (piece <= 0) return results
      const run = (session: Session) =>
        transact(session, () => movePiece(session, current(), { queueSql, limit: piece, decide }))
      const { applied, isLast } = await calls.make(operation, run, signal)
      results.push(...applied.map(({ result }) => result))
      // If no record of the piece could be moved, other nodes have locked all of them.
      if (isLast || applied.length === 0) break
    }
  }
  return results
}

async function movePiece<Result>(
  session: Session,
  context: RecordContext,
  {
    queueSql,
    limit,
    decide,
  }: { readonly queueSql: QueueSql; readonly limit: number; readonly decide: Decide<Result> },
): Promise<{ applied: readonly DueMove<Result>[]; isLast: boolean }> {
  const rows = await session.rows(queueSql(context, limit))
  const isLast = rows.length < limit
  if (rows.length === 0) return { applied: [], isLast }
  const due = rows.map(([identity]) => ({ identity: String(identity).toLowerCase() }))
  const { nowMs, byIdentity } = await lockFree(session, context, due)
  const moves = [...byIdentity.values()].flatMap((before) => decide(before, nowMs) ?? [])
  const applied = new Set<Move>(await applyMoves(session, context, moves))
  return { applied: moves.filter((move) => applied.has(move)), isLast }
}
