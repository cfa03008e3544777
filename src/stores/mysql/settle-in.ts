import { decideSettle } from '../../core/decide.ts'
import { answerOf } from '../../core/foreign-transaction.ts'
import type { StoredRecord } from '../../core/record.ts'
import type { Lease, SettleOutcome, Settlement } from '../../core/store.ts'
import { LEASE, toRecord } from './columns.ts'
import { storeFailed } from './failures.ts'
import { checkOpen, joinTransaction, notOpen, send, type Joined } from './joined-transaction.ts'
import { toChange, type Move } from './moves.ts'
import type { Inside } from './settlement.ts'
import { joinedLeaseSql, joinedUpdateSql, NONE } from './sql.ts'

const COMPLETING = {
  caller: 'completeIn',
  operation: 'complete in a transaction',
  advice: 'begin one, write, complete the key, and commit',
} as const

/**
 * Completes a key in a transaction that the caller has begun: locks the record, decides, writes,
 * and looks whether it is written. The outcome is `settled` only where this very call has written:
 * what an earlier transaction of the same lease has committed is `fenced`, for its rows are kept
 * and the caller's must not be.
 *
 * What a tool tells of an UPDATE differs from tool to tool, and some tell nothing. Hence the look:
 * statements that do not reach one and the same transaction change nothing, and must not pass for
 * a completion.
 */
export async function settleIn(
  tx: unknown,
  inside: Inside,
  settlement: Settlement,
): Promise<SettleOutcome> {
  const joined = joinTransaction(tx, COMPLETING)
  const { lease } = settlement
  const seen = await look(joined, inside, { lease, lock: true })
  await checkOpen(joined, seen.open)
  const { record } = seen
  const { outcome, write } = decideSettle(record, settlement, seen.nowMs)
  if (record === undefined || write === undefined) {
    return outcome.kind === 'fenced' ? outcome : { kind: 'fenced', own: true, state: 'completed' }
  }
  await writeMove(joined, { inside, connection: seen.connection }, { before: record, after: write })
  const after = await look(joined, inside, { lease, lock: false })
  if (!isWritten(seen, after, lease)) throw notOpen(joined)
  return outcome
}

async function writeMove(
  joined: Joined,
  { inside, connection }: { readonly inside: Inside; readonly connection: string },
  move: Move,
): Promise<void> {
  let sql
  try {
    sql = joinedUpdateSql(inside.tables, toChange(move), connection)
  } catch (error) {
    throw storeFailed(COMPLETING.operation, error)
  }
  await send(joined, sql)
}

/** What one statement in the transaction has seen. */
interface Seen {
  /** Whether a transaction is open: MySQL cannot say. */
  readonly open: string
  readonly connection: string
  readonly nowMs: number
  readonly record: StoredRecord | undefined
}

async function look(
  joined: Joined,
  { tables, now }: Inside,
  { lease, lock }: { readonly lease: Lease; readonly lock: boolean },
): Promise<Seen> {
  const sql = joinedLeaseSql(tables, now, { identity: lease.identity, lock })
  const rows = await send(joined, sql)
  try {
    return toSeen(answerOf(rows))
  } catch (error) {
    throw storeFailed(COMPLETING.operation, error)
  }
}

function toSeen(answer: string): Seen {
  const [open = '', connection = '', now, ...values] = answer.split(' ')
  if (values.length !== LEASE.length || !/^\d+$/.test(connection)) {
    throw new Error('the transaction gave no answer that can be read')
  }
  const columns = values.map((value) => (value === NONE ? null : value))
  const record = columns[0] === null ? undefined : toRecord(LEASE, columns)
  return { open, connection, nowMs: Number(now), record }
}

function isWritten(before: Seen, after: Seen, { token, attempt }: Lease): boolean {
  const { record } = after
  return (
    record?.state === 'completed' &&
    record.token === token &&
    record.attempt === attempt &&
    after.connection === before.connection &&
    after.open === before.open
  )
}
