import { decideStep, type StepDecision, refuseStep } from '../../core/decide-durable.ts'
import type { PhaseStore, Step, StepOutcome, StoredPhase } from '../../core/durable-store.ts'
import type { StoredRecord } from '../../core/record.ts'
import type { Lease } from '../../core/store.ts'
import { checkBytes, type Calls } from './calls.ts'
import type { MysqlHeader, Row } from './client.ts'
import { changesOf, literalOf, runsAs, toRecord, VIEW } from './columns.ts'
import { DueTurns } from './due-turns.ts'
import { isRows, readCommitted, transact, writeAlone, type Session } from './driver.ts'
import { isDuplicate, storeFailed } from './failures.ts'
import { writeChanges, type Place } from './moves.ts'
import { OPERATION, phaseChanges, phaseLiteral, toOperations, toPhase } from './phase-columns.ts'
import {
  changePhaseSql,
  insertOperationSql,
  loadSql,
  orphansSql,
  runAs,
  sendPhaseSql,
  STEP_FIELDS,
  stepSql,
  stepTogetherSql,
} from './phase-sql.ts'
import type { Inside } from './settlement.ts'
import { updateSql, type Tables } from './sql.ts'
import type { Finished, Purpose, Transactions } from './transaction.ts'
import { fromColumn, isUuid, toColumn } from './values.ts'

export interface DurableContext {
  readonly tables: Tables
  readonly calls: Calls
  readonly transactions: Transactions
  /** As of now. */
  readonly place: () => Place
}

export function phaseStore(context: DurableContext): PhaseStore {
  const { calls, place, tables, transactions } = context
  const turns = new DueTurns(place)
  const rows = (operation: string, sql: () => string, signal: AbortSignal | undefined) =>
    calls.make(operation, (session) => readCommitted(session, sql()), signal)
  return {
    advance: (lease, work, signal) => transactions.run(stepping(lease, work), signal),
    async record(lease, step, signal) {
      checkStep(step)
      const take = (session: Session) => takeAlone(session, place(), { lease, step })
      return calls.make('record a step', take, signal)
    },
    async load(recordId, signal) {
      if (!isUuid(recordId)) return undefined
      const found = await rows('load an operation', () => loadSql(tables, [recordId]), signal)
      return toOperations(found).get(recordId)
    },
    due: (query, signal) =>
      calls.make('find operations that are due', (session) => turns.find(session, query), signal),
    async orphans(query, signal) {
      const sql = () => orphansSql(tables, place().now, query)
      const found = await rows('find operations that nobody runs', sql, signal)
      return found.map((row) => {
        const [name, version, ...values] = row
        const { recordId } = toRecord(VIEW, values)
        return {
          name: fromColumn(OPERATION.name, name) as string,
          version: Number(version),
          recordId,
        }
      })
    },
  }
}

interface Asked {
  readonly lease: Lease
  readonly step: Step
}

function stepping(
  lease: Lease,
  work: (tx: unknown) => Step | Promise<Step>,
): Purpose<Step, StepOutcome> {
  return {
    lease,
    work,
    refuse: (record) => refuseStep(record, lease),
    finish: (session, inside, step) => {
      checkStep(step)
      return takeWithin(session, inside, { lease, step })
    },
  }
}

/**
 * A step without work. Where it needs but one statement, it is read, decided and written as
 * settlements are: the fence is in the statement, and where that wrote nothing, somebody was faster
 * and it is decided again under a lock. The first step of an operation writes into three tables.
 */
async function takeAlone(session: Session, place: Place, asked: Asked): Promise<StepOutcome> {
  if (asked.step.operation === undefined) {
    const seen = toSeen(await readCommitted(session, stepRowSql(place, asked, { lock: false })))
    const decision = decideStep(seen.record, seen.phase, asked, seen.nowMs)
    if (decision.write === undefined) return decision.outcome
    if (await writeOnce(session, place, { asked, seen, decision })) return decision.outcome
  }
  const { outcome } = await transact(session, () => takeWithin(session, place, asked))
  return outcome
}

interface Decided {
  readonly asked: Asked
  readonly seen: Seen
  readonly decision: StepDecision
}

/** `false`: nothing is written. */
async function writeOnce(
  session: Session,
  place: Place,
  { asked: { lease }, seen, decision }: Decided,
): Promise<boolean> {
  const { phase: change } = decision
  const [before, after] = [seen.record!, decision.write!]
  const columns = changesOf(before, after)
  if (change === undefined) {
    if (columns.size === 0) return true
    return writeChanges(session, place, [{ before, after }])
  }
  if (change.kind === 'remove') return false
  const { recordId } = before
  const { phase } = change
  if (seen.phase !== undefined) {
    const changes = { recordId, name: phase.name, record: columns }
    const sql = stepTogetherSql(place.tables, lease, {
      ...changes,
      phase: phaseChanges(seen.phase, phase),
    })
    return hasWritten(await writeAlone(session, sql))
  }
  if (columns.size > 0) return false
  try {
    return hasWritten(
      await writeAlone(session, sendPhaseSql(place.tables, lease, { recordId, phase })),
    )
  } catch (error) {
    // Another call of the same lease was faster with the same phase.
    if (isDuplicate(error)) return false
    throw error
  }
}

function hasWritten(answer: readonly Row[] | MysqlHeader): boolean {
  return !isRows(answer) && answer.affectedRows > 0
}

/** Within a transaction that is open on this session. */
async function takeWithin(
  session: Session,
  inside: Inside,
  asked: Asked,
): Promise<Finished<StepOutcome>> {
  const [row] = await session.rows(stepRowSql(inside, asked, { lock: true }))
  const { record: before, phase, hasOperation, nowMs } = toSeen(row && [row.slice(1)])
  const decision = decideStep(before, phase, asked, nowMs)
  const { outcome, write: after } = decision
  if (before === undefined || after === undefined) return { outcome, isWritten: false }
  const { tables } = inside
  const { recordId } = before
  const { operation } = asked.step
  if (operation !== undefined && !hasOperation) {
    await session.run(insertOperationSql(tables, recordId, operation))
  }
  if (decision.phase !== undefined) {
    const { phase: change } = decision
    await session.run(changePhaseSql(tables, recordId, { before: phase, change }))
  }
  const columns = changesOf(before, after)
  if (operation !== undefined && !hasOperation) runsAs(columns, String(runAs(operation)))
  if (columns.size > 0) await session.run(updateSql(tables, [{ from: before, columns }]))
  return { outcome, isWritten: true }
}

function stepRowSql(
  { tables, now }: Inside,
  { lease, step }: Asked,
  { lock }: { readonly lock: boolean },
): string {
  const { identity } = lease
  return stepSql(tables, now, { identity, phase: step.phase?.name, lock })
}

/** What a step is decided from. */
interface Seen {
  readonly nowMs: number
  readonly record: StoredRecord | undefined
  readonly hasOperation: boolean
  readonly phase: StoredPhase | undefined
}

function toSeen(rows: readonly Row[] | undefined): Seen {
  const [row] = rows ?? []
  if (row === undefined) {
    return { nowMs: 0, record: undefined, hasOperation: false, phase: undefined }
  }
  const [nowMs, ...values] = row
  const [hasOperation, ...phase] = values.slice(STEP_FIELDS.length)
  return {
    nowMs: Number(nowMs),
    record: toRecord(STEP_FIELDS, values),
    hasOperation: Number(hasOperation) === 1,
    phase: toPhase(phase),
  }
}

/** Refuses what no column can hold before anything is sent. */
function checkStep({ operation, phase, end }: Step): void {
  try {
    if (operation !== undefined) {
      toColumn(OPERATION.name, operation.name)
      toColumn(OPERATION.version, operation.version)
      checkBytes(operation.input)
    }
    if (phase !== undefined) checkPhase(phase)
    if (end?.kind === 'hand_over') literalOf('reconcileAtMs', end.afterMs)
    if (end?.kind === 'complete') {
      checkBytes(end.result)
      literalOf('expiresAtMs', end.retentionMs)
    }
  } catch (error) {
    throw storeFailed('record a step', error)
  }
}

function checkPhase(phase: NonNullable<Step['phase']>): void {
  phaseLiteral('name', phase.name)
  phaseLiteral('number', phase.number)
  if (phase.kind === 'intent') checkBytes(phase.request)
  if (phase.kind === 'result' || phase.kind === 'transaction') checkBytes(phase.result)
  if (phase.kind === 'intent' || phase.kind === 'result') {
    phaseLiteral('downstreamKey', phase.downstreamKey)
  }
  if (phase.kind === 'result') phaseLiteral('providerId', phase.providerId)
}
