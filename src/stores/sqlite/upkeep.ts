import { decideReap, decideSweep, toSwept } from '../../core/record/decide.ts'
import type { StoredRecord } from '../../core/record/record.ts'
import { decideShorten } from '../../core/record/shorten-lease.ts'
import type { ReapReport, ReapRequest, SweptRecord } from '../../core/store/store.ts'
import { systemClock } from '../../core/time/clock.ts'
import type { RecordTable } from './columns.ts'
import type { FileAccess } from './driver/file-access.ts'

/** First shortens leases from before the clock was set back, then moves lapsed records on. */
export async function sweep(access: FileAccess, limit: number): Promise<SweptRecord[]> {
  const { records } = access.tables
  await inPieces(access, 'sweep', {
    limit,
    isDue: (nowMs) => access.committed.records.ahead(nowMs, 1).length > 0,
    piece: (nowMs, rows) =>
      records.ahead(nowMs, rows).flatMap((record) => {
        const write = decideShorten(record, nowMs)
        if (write !== undefined) records.update(write)
        return write ?? []
      }),
  })
  return inPieces(access, 'sweep', {
    limit,
    isDue: (nowMs) => access.committed.records.lapsed(nowMs, 1).length > 0,
    piece: (nowMs, rows) =>
      records.lapsed(nowMs, rows).flatMap((record) => {
        const write = decideSweep(record, nowMs)
        if (write === undefined) return []
        records.update(write)
        return [toSwept(write)]
      }),
  })
}

export async function reap(access: FileAccess, request: ReapRequest): Promise<ReapReport> {
  const { records } = access.tables
  const reaped = await inPieces(access, 'reap', {
    limit: request.limit,
    isDue: (nowMs) =>
      dueForReaping(access.committed.records, request, { nowMs, rows: 1 }).length > 0,
    piece: (nowMs, rows) =>
      dueForReaping(records, request, { nowMs, rows }).flatMap((record) => {
        const decision = decideReap(record, request, nowMs)
        if (decision === undefined) return []
        if (decision.kind !== 'abandoned') retire(access, record)
        if (decision.write === undefined) records.remove(record.identity)
        else if (decision.kind === 'expired') makeTombstone(access, decision.write)
        else records.update(decision.write)
        return [decision.kind]
      }),
  })
  const count = (kind: keyof ReapReport) => reaped.filter((one) => one === kind).length
  return { removed: count('removed'), expired: count('expired'), abandoned: count('abandoned') }
}

/**
 * Copies a record into the history before it is removed or emptied, if the store keeps a history.
 * An `expired` record was copied when it expired.
 */
export function retire(access: FileAccess, { identity, state }: StoredRecord): void {
  if (access.keepsHistory && state !== 'expired') access.tables.records.copyToHistory(identity)
}

function makeTombstone({ tables }: FileAccess, tombstone: StoredRecord): void {
  tables.records.makeTombstone(tombstone)
  tables.operations.remove(tombstone.recordId)
}

/** Bounds of one write transaction: it takes a few milliseconds even if the results are large. */
const PIECE_ROWS = 100
export const PIECE_BYTES = 4 * 1024 * 1024

export interface UpkeepWork<Item> {
  readonly limit: number
  readonly isDue: (nowMs: number) => boolean
  readonly piece: (nowMs: number, rows: number) => Item[]
}

/**
 * Works on at most `limit` rows, in pieces. SQLite runs on the thread of the event loop, so other
 * calls get a turn between two pieces.
 */
export async function inPieces<Item>(
  access: FileAccess,
  operation: 'sweep' | 'reap' | 'prune messages',
  { limit, isDue, piece }: UpkeepWork<Item>,
): Promise<Item[]> {
  const done: Item[] = []
  try {
    // Reads first: most calls find nothing, and then take no write lock.
    while (done.length < limit && (await access.read(operation, isDue))) {
      const rows = Math.min(PIECE_ROWS, limit - done.length)
      const some = await access.write(operation, (nowMs) => piece(nowMs, rows))
      if (some.length === 0) break
      done.push(...some)
      await new Promise<void>((resolve) => systemClock.soon(resolve))
    }
  } catch (error) {
    // Committed pieces must be reported; the next call meets the same error again.
    if (done.length === 0) throw error
  }
  return done
}

/**
 * At most as many records as one piece may write. Abandoned records come first: a client may be
 * waiting for their result, while expired records only take space. Tombstones take the least.
 */
function dueForReaping(
  records: RecordTable,
  { abandoned }: ReapRequest,
  { nowMs, rows }: { readonly nowMs: number; readonly rows: number },
): StoredRecord[] {
  if (abandoned !== undefined) {
    const rowsMax = Math.max(1, Math.floor(PIECE_BYTES / (abandoned.result.byteLength + 1)))
    const due = records.abandoned(nowMs, Math.min(rows, rowsMax))
    if (due.length > 0) return due
  }
  const expired = records.expired(nowMs, { rows, bytes: PIECE_BYTES })
  return expired.length > 0 ? expired : records.tombstones(nowMs, rows)
}
