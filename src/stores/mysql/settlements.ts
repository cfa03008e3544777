/**
 * Ends leases: batches of settlements, verdicts on unknown records, settlements within a
 * transaction of the store, and completions within a transaction of the caller (`settleIn`).
 *
 * Tests: test/stores/mysql/store.server.test.ts, test/stores/mysql/caller-transaction/.
 */
import { decideResolve, decideSettle } from '../../core/record/decide.ts'
import type { StoredRecord } from '../../core/record/record.ts'
import type {
  Lease,
  RecordRef,
  ResolveOutcome,
  Settlement,
  SettleOutcome,
  Verdict,
} from '../../core/store/store.ts'
import { answerOf } from '../kit/foreign-transaction.ts'
import { inRounds } from '../kit/rounds.ts'
import {
  checkOpen,
  joinTransaction,
  notOpen,
  send,
  type JoinedTransaction,
} from './caller-transaction.ts'
import { checkBytes, checkValues, checkWord, inPieces, withoutBytes } from './calls.ts'
import type { Row } from './client.ts'
import { isIdentity, isUuid, LEASE, literalOf, toRecord } from './columns.ts'
import { readCommitted, transact, type Session } from './driver/driver.ts'
import { storeFailed } from './failures.ts'
import {
  applyMoves,
  lockAll,
  readLeases,
  toChange,
  writeChanges,
  type Move,
  type RecordContext,
  type StoreContext,
} from './moves.ts'
import {
  identitiesSql,
  joinedLeaseSql,
  joinedUpdateSql,
  leaseSql,
  NONE,
  updateSql,
  type SqlContext,
} from './sql.ts'

export async function settle(
  { calls, current }: StoreContext,
  settlements: readonly Settlement[],
  signal?: AbortSignal,
): Promise<SettleOutcome[]> {
  checkSettlements(settlements)
  return inRounds(
    settlements,
    ({ lease }) => lease.identity,
    (round) =>
      inPieces(round, resultBytes, (piece) =>
        calls.make('settle', (session) => settleBatch(session, current(), piece), signal),
      ),
  )
}

function resultBytes(settlement: Settlement): number {
  return settlement.kind === 'complete' ? settlement.result.byteLength : 0
}

/** Rejects values that no column can hold before any part of the batch is sent. */
function checkSettlements(settlements: readonly Settlement[]): void {
  checkValues('settle', () => {
    for (const settlement of settlements) {
      literalOf('identity', settlement.lease.identity)
      literalOf('attempt', settlement.lease.attempt)
      if (settlement.kind === 'complete') checkBytes(settlement.result)
      else literalOf('errorCode', settlement.errorCode)
      if (settlement.kind === 'doubt') literalOf('reconcileAtMs', settlement.reconcileAfterMs)
      else literalOf('expiresAtMs', settlement.retentionMs)
      if (settlement.kind === 'release') checkWord(['proven', 'declared'], settlement.proof)
    }
  })
}

/**
 * Reads, decides, and writes in one statement with the fence in its WHERE clause. If that statement
 * wrote fewer records than were decided, another call has changed some of them: the batch is then
 * decided again under locks. A settlement that the first statement wrote recognises itself.
 */
async function settleBatch(
  session: Session,
  context: RecordContext,
  settlements: readonly Settlement[],
): Promise<SettleOutcome[]> {
  const leases = settlements.map(({ lease }) => lease)
  const { nowMs, byIdentity } = await readLeases(session, context, leases)
  const { moves, outcomes } = decideBatch(settlements, byIdentity, nowMs)
  if (moves.length === 0 || (await writeChanges(session, context, moves))) return outcomes
  return transact(session, async () => {
    const locked = await lockAll(session, context, leases)
    const again = decideBatch(settlements, locked.byIdentity, locked.nowMs)
    await applyMoves(session, context, again.moves)
    return again.outcomes
  })
}

function decideBatch(
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

export async function resolve(
  store: StoreContext,
  verdicts: readonly Verdict[],
  signal?: AbortSignal,
): Promise<ResolveOutcome[]> {
  const refs = verdicts.map(({ ref }) => ref)
  const identities = await identitiesOf(store, refs, signal)
  const targets = verdicts.map((verdict, n): VerdictTarget => {
    const identity = identities[n]
    // A verdict without a record gets a unique name, so that no other verdict waits for it.
    return { verdict, identity, name: identity ?? `${n}` }
  })
  return inRounds(
    targets,
    ({ name }) => name,
    (round) => inPieces(round, withoutBytes, (piece) => resolvePiece(store, piece, signal)),
  )
}

interface VerdictTarget {
  readonly verdict: Verdict
  readonly identity: string | undefined
  readonly name: string
}

async function identitiesOf(
  { calls, tables }: StoreContext,
  refs: readonly RecordRef[],
  signal: AbortSignal | undefined,
): Promise<(string | undefined)[]> {
  const recordIds = refs.map(({ recordId }) => recordId).filter(isUuid)
  const rows = await inPieces(recordIds, withoutBytes, async (ids) => {
    const read = (session: Session) => readCommitted(session, identitiesSql(tables, ids))
    return [...(await calls.make('resolve', read, signal))]
  })
  const byId = new Map(rows.map(([id, identity]) => [id, String(identity).toLowerCase()]))
  return refs.map(({ identity, recordId }) => {
    if (recordId !== undefined) return byId.get(recordId)
    return isIdentity(identity) ? identity : undefined
  })
}

function resolvePiece(
  { calls, current }: StoreContext,
  targets: readonly VerdictTarget[],
  signal: AbortSignal | undefined,
): Promise<ResolveOutcome[]> {
  const known = targets.flatMap(({ identity }) => (identity === undefined ? [] : [{ identity }]))
  if (known.length === 0) return Promise.resolve(targets.map(() => ({ kind: 'not_found' })))
  const run = (session: Session) =>
    transact(session, async () => {
      const context = current()
      const { nowMs, byIdentity } = await lockAll(session, context, known)
      const moves: Move[] = []
      const outcomes = targets.map(({ verdict, identity = '' }) => {
        const before = byIdentity.get(identity)
        const { outcome, write } = decideResolve(before, verdict, nowMs)
        if (before !== undefined && write !== undefined) moves.push({ before, after: write })
        return outcome
      })
      await applyMoves(session, context, moves)
      return outcomes
    })
  return calls.make('resolve', run, signal)
}

/** Reads the record of a lease within a transaction. Takes no lock, so that duplicates proceed. */
export async function readWithin(
  session: Session,
  { tables, now }: SqlContext,
  { identity }: Lease,
): Promise<StoredRecord | undefined> {
  const [row] = await session.rows(leaseSql(tables, now, { identity, lock: false }))
  return toLease(row).record
}

/** Settles one record within a transaction that the store has opened on this session. */
export async function settleWithin(
  session: Session,
  { tables, now }: SqlContext,
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

const COMPLETING = {
  caller: 'completeIn',
  operation: 'complete in a transaction',
  advice: 'begin one, write, complete the key, and commit',
} as const

/**
 * Completes a key in a transaction that the caller has begun: locks the record, decides, writes,
 * and reads the record again. The outcome is `settled` only if this call has written the record. If
 * an earlier transaction of the same lease has committed, the outcome is `fenced`: its rows are
 * kept, so the caller must roll back its own.
 *
 * Database tools report the result of an UPDATE in different ways, and some do not report it. Hence
 * the second read: if the statements did not reach one and the same transaction, they changed
 * nothing, and the call must not report a completion.
 */
export async function settleIn(
  tx: unknown,
  context: SqlContext,
  settlement: Settlement,
): Promise<SettleOutcome> {
  checkSettlements([settlement])
  const joined = joinTransaction(tx, COMPLETING)
  const { lease } = settlement
  const before = await readJoined(joined, context, { lease, lock: true })
  await checkOpen(joined, before.open)
  const { record } = before
  const { outcome, write } = decideSettle(record, settlement, before.nowMs)
  if (record === undefined || write === undefined) {
    return outcome.kind === 'fenced' ? outcome : { kind: 'fenced', own: true, state: 'completed' }
  }
  const move = { before: record, after: write }
  await writeJoined(joined, { context, connection: before.connection }, move)
  const after = await readJoined(joined, context, { lease, lock: false })
  if (!isWritten(before, after, lease)) throw notOpen(joined)
  return outcome
}

async function writeJoined(
  joined: JoinedTransaction,
  { context, connection }: { readonly context: SqlContext; readonly connection: string },
  move: Move,
): Promise<void> {
  let sql
  try {
    sql = joinedUpdateSql(context.tables, toChange(move), connection)
  } catch (error) {
    throw storeFailed(COMPLETING.operation, error)
  }
  await send(joined, sql)
}

/** Answer of one read in the caller's transaction. */
interface JoinedRead {
  /** Whether a transaction is open. MySQL cannot report this: see `OPENNESS`. */
  readonly open: string
  readonly connection: string
  readonly nowMs: number
  readonly record: StoredRecord | undefined
}

async function readJoined(
  joined: JoinedTransaction,
  { tables, now }: SqlContext,
  { lease, lock }: { readonly lease: Lease; readonly lock: boolean },
): Promise<JoinedRead> {
  const sql = joinedLeaseSql(tables, now, { identity: lease.identity, lock })
  const rows = await send(joined, sql)
  try {
    return toJoinedRead(answerOf(rows))
  } catch (error) {
    throw storeFailed(COMPLETING.operation, error)
  }
}

function toJoinedRead(answer: string): JoinedRead {
  const [open = '', connection = '', now, ...values] = answer.split(' ')
  if (values.length !== LEASE.length || !/^\d+$/.test(connection)) {
    throw new Error('the transaction returned an answer that the store cannot read')
  }
  const columns = values.map((value) => (value === NONE ? null : value))
  const record = columns[0] === null ? undefined : toRecord(LEASE, columns)
  return { open, connection, nowMs: Number(now), record }
}

function isWritten(before: JoinedRead, after: JoinedRead, { token, attempt }: Lease): boolean {
  const { record } = after
  return (
    record?.state === 'completed' &&
    record.token === token &&
    record.attempt === attempt &&
    after.connection === before.connection &&
    after.open === before.open
  )
}
