/**
 * Operator acts on records and messages, and the unknown records that the reconciler takes.
 *
 * Tests: test/stores/mysql/durable/durable.server.test.ts,
 * test/stores/mysql/durable/discard.server.test.ts.
 */
import { toView } from '../../../core/record/decide.ts'
import type { StoredRecord } from '../../../core/record/record.ts'
import type { StoredPhase } from '../../../core/store/durable-store.ts'
import type {
  Act,
  Actor,
  ActOutcome,
  OperatorStore,
  DueUnknown,
  PhaseRef,
  Postponement,
} from '../../../core/store/operator-store.ts'
import type { RecordRef } from '../../../core/store/store.ts'
import { decideAct, type ActDecision, type RecordAct } from '../../kit/decide-durable.ts'
import { decideMessageAct, type MessageAct } from '../../kit/messages.ts'
import { encodeOperation } from '../../kit/stored-operation.ts'
import { BYTES_MAX, checkValues, ROWS_MAX } from '../calls.ts'
import { fromColumn, isIdentity, isUuid, toColumn } from '../columns.ts'
import { readCommitted, transact, type Session } from '../driver/driver.ts'
import { applyMoves, lockAll, lockFree, type RecordContext } from '../moves.ts'
import { identitiesSql, type SqlContext } from '../sql.ts'
import { UnknownTurns } from '../turns/unknown.ts'
import {
  auditSql,
  discardedSql,
  findPhaseSql,
  insertAuditSql,
  insertDiscardedSql,
  lockPhaseSql,
  toAuditEntry,
  toDiscarded,
} from './act-sql.ts'
import {
  laneOf,
  MESSAGE_HEAD,
  messageChanges,
  toMessage,
  type MessageRow,
} from './message-columns.ts'
import { changeMessagesSql, lockMessagesSql } from './message-sql.ts'
import { toOperations, toPhase } from './operation-columns.ts'
import { ended, ready } from './outbox.ts'
import { headSql, openLaneSql } from './partition-sql.ts'
import { changePhaseSql, loadSql } from './phase-sql.ts'
import type { DurableContext } from './phases.ts'

/** Unknown records that one call takes at most, in pieces that are committed one by one. */
const UNKNOWN_MAX = 1000

export function operatorStore({ calls, current, tables }: DurableContext): OperatorStore {
  const turns = new UnknownTurns()
  return {
    async takeUnknown({ limit, againMs, ...without }, signal) {
      const taken: DueUnknown[] = []
      const most = Math.min(limit, UNKNOWN_MAX)
      while (taken.length < most) {
        const piece = { ...without, limit: Math.min(most - taken.length, ROWS_MAX) }
        const take = (session: Session) =>
          transact(session, async () => {
            const identities = await turns.find(session, current(), piece)
            return takeUnknown(session, current(), { identities, againMs })
          })
        const some = await calls.make('take unknown records', take, signal)
        taken.push(...some)
        if (some.length < piece.limit) break
      }
      return taken
    },
    async postpone(target, signal) {
      if (!isUuid(target.recordId)) return false
      const run = (session: Session) =>
        transact(session, () => postpone(session, current(), target))
      return calls.make('postpone a record', run, signal)
    },
    async act(act, by, signal) {
      checkActor(by)
      const run = (session: Session) =>
        transact(session, () => performAct(session, current(), { act, by }))
      return calls.make('act', run, signal)
    },
    async discarded(query, signal) {
      if (!isUuid(query.recordId)) return []
      const read = (session: Session) => readCommitted(session, discardedSql(tables, query))
      const rows = await calls.make('read discarded replies', read, signal)
      return toDiscarded(query.recordId, rows)
    },
    async audit(query, signal) {
      if (query.subject !== undefined && !isUuid(query.subject)) return []
      const read = (session: Session) => readCommitted(session, auditSql(tables, query))
      const rows = await calls.make('read the audit', read, signal)
      return rows.map(toAuditEntry)
    },
  }
}

async function takeUnknown(
  session: Session,
  context: RecordContext,
  { identities, againMs }: { readonly identities: readonly string[]; readonly againMs: number },
): Promise<DueUnknown[]> {
  const { tables } = context
  if (identities.length === 0) return []
  const named = identities.map((identity) => ({ identity }))
  const { nowMs, byIdentity } = await lockFree(session, context, named)
  const moves = identities
    .flatMap((identity) => byIdentity.get(identity) ?? [])
    // Another node may have taken the record between the read and the lock.
    .filter(({ state, reconcileAtMs }) => state === 'unknown' && isPast(reconcileAtMs, nowMs))
    .map((before) => {
      const { tries } = before
      return { before, after: { ...before, tries: tries + 1, reconcileAtMs: nowMs + againMs } }
    })
  if (moves.length === 0) return []
  await applyMoves(session, context, moves)
  const ids = moves.map(({ before }) => before.recordId)
  const loaded = await session.rows(loadSql(tables, ids))
  const operations = toOperations(loaded.map((row) => row.slice(1)))
  return moves.map(({ after }) => {
    return { record: toView(after), operation: operations.get(after.recordId) }
  })
}

function isPast(atMs: number | undefined, nowMs: number): boolean {
  return atMs !== undefined && atMs <= nowMs
}

async function postpone(
  session: Session,
  context: RecordContext,
  target: Postponement,
): Promise<boolean> {
  const { recordId, attempt, tries, inMs } = target
  const { record: before, nowMs } = await lockRecord(session, context, { recordId })
  if (before?.state !== 'unknown' || before.attempt !== attempt) return false
  if (tries !== undefined && before.tries !== tries) return false
  const reconcileAtMs = inMs === undefined ? undefined : nowMs + inMs
  await applyMoves(session, context, [{ before, after: { ...before, reconcileAtMs } }])
  return true
}

interface ActRequest {
  readonly act: Act
  readonly by: Actor
}

async function performAct(
  session: Session,
  context: RecordContext,
  { act, by }: ActRequest,
): Promise<ActOutcome> {
  const result =
    act.kind === 'retry_message' || act.kind === 'drop_message'
      ? await actOnMessage(session, context, act)
      : await actOnRecord(session, context, act)
  const { outcome, detail = '{}', nowMs } = result
  if (outcome.kind === 'done') {
    const { subject } = outcome
    const entry = { at: new Date(nowMs), act: act.kind, subject, ...by, detail }
    await session.run(insertAuditSql(context.tables, entry))
  }
  return outcome
}

/** Decision about an act, and the time of it. */
interface ActResult extends Pick<ActDecision, 'outcome' | 'detail'> {
  readonly nowMs: number
}

async function actOnRecord(
  session: Session,
  context: RecordContext,
  act: RecordAct,
): Promise<ActResult> {
  const { record, phase, nowMs } = await lockSubject(session, context, act)
  const decision = decideAct(record, phase, act, nowMs)
  const { outcome, detail } = decision
  const result = { outcome, ...(detail === undefined ? {} : { detail }), nowMs }
  if (record === undefined || decision.record === undefined) return result
  // Before the move, which removes the result and the operation.
  if (decision.discarded !== undefined) await keepDiscarded(session, context, record, nowMs)
  await applyMoves(session, context, [{ before: record, after: decision.record }])
  if (decision.phase !== undefined) {
    const changed = { before: phase, change: decision.phase }
    await session.run(changePhaseSql(context.tables, record.recordId, changed))
  }
  return result
}

/** The operation may be larger than the largest packet: see `DISCARDED_TABLE`. */
async function keepDiscarded(
  session: Session,
  { tables }: RecordContext,
  record: StoredRecord,
  atMs: number,
): Promise<void> {
  const rows = await session.rows(loadSql(tables, [record.recordId]))
  const operation = toOperations(rows.map((row) => row.slice(1))).get(record.recordId)
  const bytes = operation && encodeOperation(operation)
  const count = Math.max(1, Math.ceil((bytes?.byteLength ?? 0) / BYTES_MAX))
  for (let piece = 0; piece < count; piece++) {
    const part = bytes?.subarray(piece * BYTES_MAX, (piece + 1) * BYTES_MAX)
    await session.run(insertDiscardedSql(tables, record, { piece, atMs, operation: part }))
  }
}

interface Subject {
  readonly record: StoredRecord | undefined
  readonly phase: StoredPhase | undefined
  readonly nowMs: number
}

/** Locks the record before its phase, as steps do. */
async function lockSubject(
  session: Session,
  context: RecordContext,
  act: RecordAct,
): Promise<Subject> {
  if (act.kind === 'conclude') return lockConcluded(session, context, act.phase)
  const { record, nowMs } = await lockRecord(session, context, act.ref)
  if (record === undefined || act.kind !== 'discard_reply') {
    return { record, phase: undefined, nowMs }
  }
  const { recordId } = record
  const found = await findPhase(session, context, { recordId })
  return { record, phase: await lockPhase(session, context, { recordId, found }), nowMs }
}

async function lockConcluded(
  session: Session,
  context: RecordContext,
  ref: PhaseRef,
): Promise<Subject> {
  const target = await findPhase(session, context, ref)
  const recordId = 'recordId' in ref ? ref.recordId : target?.recordId
  if (recordId === undefined) return { record: undefined, phase: undefined, nowMs: 0 }
  const { record, nowMs } = await lockRecord(session, context, { recordId })
  if (record === undefined) return { record, phase: undefined, nowMs }
  // The record may have got another phase before its lock was acquired.
  const found = 'recordId' in ref ? await findPhase(session, context, ref) : target
  return { record, phase: await lockPhase(session, context, { recordId, found }), nowMs }
}

async function lockPhase(
  session: Session,
  { tables }: RecordContext,
  of: { readonly recordId: string; readonly found: { readonly name: string } | undefined },
): Promise<StoredPhase | undefined> {
  if (of.found === undefined) return undefined
  const [row] = await session.rows(lockPhaseSql(tables, of.recordId, of.found.name))
  return row && toPhase(row)
}

async function findPhase(
  session: Session,
  { tables }: RecordContext,
  ref: PhaseRef,
): Promise<{ readonly recordId: string; readonly name: string } | undefined> {
  if (!isFindable(ref)) return undefined
  const [row] = await session.rows(findPhaseSql(tables, ref))
  if (row === undefined) return undefined
  const name = fromColumn({ name: 'name', kind: 'text' }, row[1]) as string
  return { recordId: String(row[0]), name }
}

/** No phase has a value that its column cannot hold. */
function isFindable(ref: PhaseRef): boolean {
  if ('recordId' in ref) return isUuid(ref.recordId)
  const text = 'downstreamKey' in ref ? ref.downstreamKey : ref.providerId
  return typeof text === 'string' && text.isWellFormed() && text.length <= REF_LENGTH_MAX
}

const REF_LENGTH_MAX = 255

async function lockRecord(
  session: Session,
  context: RecordContext,
  { identity, recordId }: RecordRef,
): Promise<{ readonly record: StoredRecord | undefined; readonly nowMs: number }> {
  const none = { record: undefined, nowMs: 0 }
  let named = identity
  if (recordId !== undefined) {
    if (!isUuid(recordId)) return none
    const [row] = await session.rows(identitiesSql(context.tables, [recordId]))
    named = row && String(row[2]).toLowerCase()
  }
  if (!isIdentity(named)) return none
  const { nowMs, byIdentity } = await lockAll(session, context, [{ identity: named }])
  const record = byIdentity.get(named)
  // The key may have got a new record between the read and the lock.
  const isTarget = recordId === undefined || record?.recordId === recordId
  return isTarget ? { record, nowMs } : none
}

/** Rejects texts that no column can hold before anything is sent. */
function checkActor({ who, why }: Actor): void {
  checkValues('act', () => {
    toColumn({ name: 'who', kind: 'text' }, who)
    toColumn({ name: 'why', kind: 'text' }, why)
  })
}

/** Attempts to lock the head of a lane. Each failed attempt means that the head was relayed. */
const HEAD_TRIES = 10

export async function actOnMessage(
  session: Session,
  context: SqlContext,
  act: MessageAct,
): Promise<ActResult> {
  const { messageId: id } = act
  if (!isUuid(id)) return { outcome: { kind: 'not_found' }, nowMs: 0 }
  const { row: before, nowMs } = await lockMessage(session, context, id)
  if (before === undefined) return { outcome: { kind: 'not_found' }, nowMs }
  const { id: subject, state: reason } = before
  const decision = decideMessageAct(before, act)
  switch (decision.kind) {
    case 'already':
      return { outcome: { kind: 'already', subject }, nowMs }
    case 'refused':
      return { outcome: { kind: 'refused', subject, reason }, nowMs }
    case 'done': {
      const isReturning = decision.to === 'ready' && before.lane === undefined
      if (isReturning && before.partition !== undefined) await lockLane(session, context, before)
      const after = decision.to === 'ready' ? revived(before, nowMs) : dropped(before, nowMs)
      const columns = messageChanges(before, after)
      const { token, state } = before
      await session.run(changeMessagesSql(context.tables, [{ id, token, state, columns }]))
      return { outcome: { kind: 'done', subject }, detail: decision.detail, nowMs }
    }
  }
}

async function lockMessage(session: Session, { tables, now }: SqlContext, id: string) {
  const [row] = await session.rows(lockMessagesSql(tables, now, [id]))
  if (row === undefined) return { row: undefined, nowMs: 0 }
  const [nowMs, ...values] = row
  return { row: toMessage(MESSAGE_HEAD, values), nowMs: Number(nowMs) }
}

/** Removes the token: the relay that held the message has its answer. */
function revived(row: MessageRow, nowMs: number): MessageRow {
  return { ...ready({ ...row, lane: laneOf(row.partition) }, nowMs), token: '' }
}

function dropped(row: MessageRow, nowMs: number): MessageRow {
  return { ...ended(row, nowMs), state: 'dropped', token: '' }
}

/**
 * Prevents until the commit that a message is added to the lane or that its head is taken. A
 * message that returns to its partition may become the head while a relay is about to take the
 * current head: two messages of the partition would be held at once. A relay that has taken the
 * head already is seen as its holder.
 */
async function lockLane(
  session: Session,
  { tables, now }: SqlContext,
  row: MessageRow,
): Promise<void> {
  const { topic, tenant, sequence } = row
  const lane = laneOf(row.partition)
  await session.run(openLaneSql(tables, now, { topic, lane, tenant, sequence }))
  let locked: unknown
  for (let tries = 1; tries <= HEAD_TRIES; tries++) {
    const [head] = await session.rows(headSql(tables, { topic, lane }))
    if (head === undefined || head[0] === locked) return
    locked = head[0]
    await session.rows(lockMessagesSql(tables, now, [String(locked)]))
  }
  throw new Error(`the head of the partition changed ${HEAD_TRIES} times: try again`)
}
