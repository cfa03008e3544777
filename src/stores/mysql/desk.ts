import { sleep, systemClock } from '../../core/clock.ts'
import { decideAct, type ActDecision, type RecordAct } from '../../core/decide-durable.ts'
import { toView } from '../../core/decide.ts'
import type {
  Act,
  ActedBy,
  ActOutcome,
  DeskStore,
  DueUnknown,
  PhaseRef,
  Postponement,
  StoredPhase,
} from '../../core/durable-store.ts'
import type { StoredRecord } from '../../core/record.ts'
import type { RecordRef } from '../../core/store.ts'
import { auditSql, insertAuditSql, toAuditEntry } from './audit.ts'
import { ROWS_MAX } from './calls.ts'
import { readCommitted, transact, type Session } from './driver.ts'
import { storeFailed } from './failures.ts'
import { actOnMessage } from './message-acts.ts'
import { lockAll, lockFree, makeMoves, type Move, type Place } from './moves.ts'
import { toOperations, toPhase } from './phase-columns.ts'
import { changePhaseSql, findPhaseSql, loadSql, lockPhaseSql } from './phase-sql.ts'
import type { DurableContext } from './phases.ts'
import { identitiesSql } from './sql.ts'
import { UnknownTurns } from './unknown-turns.ts'
import { fromColumn, isIdentity, isUuid, toColumn } from './values.ts'

/** How often a record is asked for that a row of somebody's open transaction refers to. */
const LOCKED_TRIES = 10
const LOCKED_MS = 20

/** Unknown records that one call takes, in pieces that are committed one by one. */
const UNKNOWN_MAX = 1000

export function deskStore({ calls, place, tables }: DurableContext): DeskStore {
  const turns = new UnknownTurns()
  return {
    async takeUnknown({ limit, againMs, ...without }, signal) {
      const taken: DueUnknown[] = []
      const most = Math.min(limit, UNKNOWN_MAX)
      while (taken.length < most) {
        const piece = { ...without, limit: Math.min(most - taken.length, ROWS_MAX) }
        const take = (session: Session) =>
          transact(session, async () => {
            const identities = await turns.find(session, place(), piece)
            return takeUnknown(session, place(), { identities, againMs })
          })
        const some = await calls.make('take unknown records', take, signal)
        taken.push(...some)
        if (some.length < piece.limit) break
      }
      return taken
    },
    async postpone(target, signal) {
      if (!isUuid(target.recordId)) return false
      const run = (session: Session) => transact(session, () => postpone(session, place(), target))
      return calls.make('postpone a record', run, signal)
    },
    async act(act, by, signal) {
      checkWords(by)
      const run = (session: Session) =>
        transact(session, () => carryOut(session, place(), { act, by }))
      for (let tries = 1; ; tries++) {
        const outcome = await calls.make('act', run, signal)
        if (outcome !== LOCKED) return outcome
        if (tries === LOCKED_TRIES) {
          throw storeFailed('act', new Error('a row of an open transaction refers to the record'))
        }
        await sleep(systemClock, LOCKED_MS, signal)
      }
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
  place: Place,
  { identities, againMs }: { readonly identities: readonly string[]; readonly againMs: number },
): Promise<DueUnknown[]> {
  const { tables } = place
  if (identities.length === 0) return []
  const named = identities.map((identity) => ({ identity }))
  const { nowMs, byIdentity } = await lockFree(session, place, named)
  const moves = identities
    .flatMap((identity) => byIdentity.get(identity) ?? [])
    // Another node may have taken it between the look and the lock.
    .filter(({ state, reconcileAtMs }) => state === 'unknown' && isOver(reconcileAtMs, nowMs))
    .map((before) => {
      const { tries } = before
      return { before, after: { ...before, tries: tries + 1, reconcileAtMs: nowMs + againMs } }
    })
  if (moves.length === 0) return []
  await makeMoves(session, place, moves)
  const ids = moves.map(({ before }) => before.recordId)
  const loaded = await session.rows(loadSql(tables, ids))
  const operations = toOperations(loaded.map((row) => row.slice(1)))
  return moves.map(({ after }) => {
    return { record: toView(after), operation: operations.get(after.recordId) }
  })
}

function isOver(atMs: number | undefined, nowMs: number): boolean {
  return atMs !== undefined && atMs <= nowMs
}

async function postpone(session: Session, place: Place, target: Postponement): Promise<boolean> {
  const { recordId, attempt, tries, inMs } = target
  const { record: before, nowMs } = await lockRecord(session, place, { recordId })
  if (before?.state !== 'unknown' || before.attempt !== attempt) return false
  if (tries !== undefined && before.tries !== tries) return false
  const reconcileAtMs = inMs === undefined ? undefined : nowMs + inMs
  await makeMoves(session, place, [{ before, after: { ...before, reconcileAtMs } }])
  return true
}

interface Errand<Kind extends Act = Act> {
  readonly act: Kind
  readonly by: ActedBy
}

/** Nothing is written: the record cannot be removed at this moment. */
const LOCKED = Symbol('locked')

async function carryOut(
  session: Session,
  place: Place,
  { act, by }: Errand,
): Promise<ActOutcome | typeof LOCKED> {
  const acted =
    act.kind === 'retry_message' || act.kind === 'drop_message'
      ? await actOnMessage(session, place, act)
      : await actOnRecord(session, place, act)
  if (acted === LOCKED) return LOCKED
  const { outcome, detail = '{}', nowMs } = acted
  if (outcome.kind === 'done') {
    const { subject } = outcome
    const entry = { at: new Date(nowMs), act: act.kind, subject, ...by, detail }
    await session.run(insertAuditSql(place.tables, entry))
  }
  return outcome
}

/** What was decided, and when. */
export interface Acted extends Pick<ActDecision, 'outcome' | 'detail'> {
  readonly nowMs: number
}

async function actOnRecord(
  session: Session,
  place: Place,
  act: RecordAct,
): Promise<Acted | typeof LOCKED> {
  const { record, phase, nowMs } = await lockSubject(session, place, act)
  const decision = decideAct(record, phase, act, nowMs)
  const { outcome, detail } = decision
  const acted = { outcome, ...(detail === undefined ? {} : { detail }), nowMs }
  if (record === undefined || decision.record === undefined) return acted
  const after = decision.record === 'remove' ? undefined : decision.record
  const move: Move = { before: record, after }
  const made = await makeMoves(session, place, [move])
  if (made.length === 0) return LOCKED
  if (decision.phase !== undefined) {
    const changed = { before: phase, change: decision.phase }
    await session.run(changePhaseSql(place.tables, record.recordId, changed))
  }
  return acted
}

interface Subject {
  readonly record: StoredRecord | undefined
  readonly phase: StoredPhase | undefined
  readonly nowMs: number
}

/** The record first and its phase after it, as steps do. */
async function lockSubject(session: Session, place: Place, act: RecordAct): Promise<Subject> {
  if (act.kind !== 'conclude') {
    return { ...(await lockRecord(session, place, act.ref)), phase: undefined }
  }
  const { phase: ref } = act
  const meant = await findPhase(session, place, ref)
  const recordId = 'recordId' in ref ? ref.recordId : meant?.recordId
  if (recordId === undefined) return { record: undefined, phase: undefined, nowMs: 0 }
  const { record, nowMs } = await lockRecord(session, place, { recordId })
  if (record === undefined) return { record, phase: undefined, nowMs }
  // It may have moved on until its record could be had.
  const found = 'recordId' in ref ? await findPhase(session, place, ref) : meant
  if (found === undefined) return { record, phase: undefined, nowMs }
  const [row] = await session.rows(lockPhaseSql(place.tables, recordId, found.name))
  return { record, phase: row && toPhase(row), nowMs }
}

async function findPhase(
  session: Session,
  { tables }: Place,
  ref: PhaseRef,
): Promise<{ readonly recordId: string; readonly name: string } | undefined> {
  if (!isFindable(ref)) return undefined
  const [row] = await session.rows(findPhaseSql(tables, ref))
  if (row === undefined) return undefined
  const name = fromColumn({ name: 'name', kind: 'text' }, row[1]) as string
  return { recordId: String(row[0]), name }
}

/** What no column can hold, no phase has. */
function isFindable(ref: PhaseRef): boolean {
  if ('recordId' in ref) return isUuid(ref.recordId)
  const text = 'downstreamKey' in ref ? ref.downstreamKey : ref.providerId
  return typeof text === 'string' && text.isWellFormed() && text.length <= REF_LENGTH_MAX
}

const REF_LENGTH_MAX = 255

async function lockRecord(
  session: Session,
  place: Place,
  { identity, recordId }: RecordRef,
): Promise<{ readonly record: StoredRecord | undefined; readonly nowMs: number }> {
  const none = { record: undefined, nowMs: 0 }
  let named = identity
  if (recordId !== undefined) {
    if (!isUuid(recordId)) return none
    const [row] = await session.rows(identitiesSql(place.tables, [recordId]))
    named = row && String(row[2]).toLowerCase()
  }
  if (!isIdentity(named)) return none
  const { nowMs, byIdentity } = await lockAll(session, place, [{ identity: named }])
  const record = byIdentity.get(named)
  // The key may have got a new record between the look and the lock.
  const isMeant = recordId === undefined || record?.recordId === recordId
  return isMeant ? { record, nowMs } : none
}

/** Refused before anything is sent, like all that no column can hold. */
function checkWords({ who, why }: ActedBy): void {
  try {
    toColumn({ name: 'who', kind: 'text' }, who)
    toColumn({ name: 'why', kind: 'text' }, why)
  } catch (error) {
    throw storeFailed('act', error)
  }
}
