import { decideSettle } from '../../core/decide.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import {
  answerOf,
  causesOf,
  driverErrorOf,
  foreignTransaction,
  type RunSql,
} from '../../core/foreign-transaction.ts'
import type { StoredRecord } from '../../core/record.ts'
import type { Lease, SettleOutcome, Settlement } from '../../core/store.ts'
import { LEASE, toRecord } from './columns.ts'
import { isConflict, isLockTimeout, isSealBroken, storeFailed } from './failures.ts'
import { toChange, type Move } from './moves.ts'
import type { Inside } from './settlement.ts'
import { END_PROBE, joinedLeaseSql, joinedUpdateSql, NONE, PROBE } from './sql.ts'

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
  const run = foreignTransaction(tx)
  const { lease } = settlement
  const seen = await look(run, inside, { lease, lock: true })
  await checkOpen(run, seen)
  const { record } = seen
  const { outcome, write } = decideSettle(record, settlement, seen.nowMs)
  if (record === undefined || write === undefined) {
    return outcome.kind === 'fenced' ? outcome : { kind: 'fenced', own: true, state: 'completed' }
  }
  await writeMove(run, { inside, connection: seen.connection }, { before: record, after: write })
  const after = await look(run, inside, { lease, lock: false })
  if (!isWritten(seen, after, lease)) throw notOpen()
  return outcome
}

async function writeMove(
  run: RunSql,
  { inside, connection }: { readonly inside: Inside; readonly connection: string },
  move: Move,
): Promise<void> {
  let sql
  try {
    sql = joinedUpdateSql(inside.tables, toChange(move), connection)
  } catch (error) {
    throw storeFailed(OPERATION, error)
  }
  await send(run, sql)
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
  run: RunSql,
  { tables, now }: Inside,
  { lease, lock }: { readonly lease: Lease; readonly lock: boolean },
): Promise<Seen> {
  const sql = joinedLeaseSql(tables, now, { identity: lease.identity, lock })
  const rows = await send(run, sql)
  try {
    return toSeen(answerOf(rows))
  } catch (error) {
    throw storeFailed(OPERATION, error)
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

/**
 * Without a transaction the key would be completed at once, whatever becomes of the rest. A user
 * variable proves nothing here: it lasts as long as its connection.
 */
async function checkOpen(run: RunSql, { open }: Seen): Promise<void> {
  if (open === 'none') throw notOpen()
  if (open === 'open') return
  // MySQL. Outside of a transaction a savepoint is gone as soon as it is set. By its documentation
  // MySQL takes no savepoints in its protocol for prepared statements: a tool that knows no other
  // gets the server's error here, and nothing is written.
  await send(run, PROBE)
  try {
    await run(END_PROBE)
  } catch (error) {
    if (causesOf(error).some(isSealGone)) throw notOpen(error)
    throw toFailure(error, END_PROBE)
  }
}

/** By its number, or by what the server says where a tool keeps only that. */
function isSealGone(error: Error): boolean {
  return isSealBroken(error) || /savepoint oncekey_settle does not exist/i.test(error.message)
}

function notOpen(cause?: unknown): InvalidOptionsError {
  return new InvalidOptionsError(
    'completeIn was given a connection on which no transaction is open: begin one, write, ' +
      'complete the key, and commit. What was written on it before is committed already',
    { cause },
  )
}

const OPERATION = 'complete in a transaction'

async function send(run: RunSql, sql: string): Promise<readonly Record<string, unknown>[]> {
  try {
    return await run(sql)
  } catch (error) {
    throw toFailure(error, sql)
  }
}

/** A conflict is left as it is: whoever repeats transactions for it must recognise it. */
function toFailure(error: unknown, sql: string): unknown {
  if (error instanceof InvalidOptionsError) return error
  if (causesOf(error).some((cause) => isConflict(cause) || isLockTimeout(cause))) return error
  return storeFailed(OPERATION, driverErrorOf(error, sql))
}
