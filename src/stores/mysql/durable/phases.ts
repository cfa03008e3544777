/**
 * Records steps of operations, and finds operations that are due.
 *
 * Tests: test/stores/mysql/durable/durable.server.test.ts.
 */
import type { StoredRecord } from '../../../core/record/record.ts'
import type {
  PhaseStore,
  Step,
  StepOutcome,
  StoredPhase,
} from '../../../core/store/durable-store.ts'
import type { Lease } from '../../../core/store/store.ts'
import { decideStep, refuseStep, type StepDecision } from '../../kit/decide-durable.ts'
import { checkBytes, checkValues } from '../calls.ts'
import type { MysqlHeader, Row } from '../client.ts'
import {
  changesOf,
  fromColumn,
  isUuid,
  literalOf,
  setRunAs,
  toColumn,
  toRecord,
  VIEW,
} from '../columns.ts'
import { isRows, readCommitted, transact, writeAlone, type Session } from '../driver/driver.ts'
import { isDuplicate } from '../failures.ts'
import { writeChanges, type RecordContext, type StoreContext } from '../moves.ts'
import { updateSql, type SqlContext } from '../sql.ts'
import type { FinishResult } from '../../kit/store-transaction.ts'
import type { SessionPurpose, Transactions } from '../transaction.ts'
import { DueTurns } from '../turns/due.ts'
import {
  OPERATION,
  phaseChanges,
  phaseLiteral,
  toOperations,
  toPhase,
} from './operation-columns.ts'
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

/** Parts of the store that operations, the outbox and operator acts share. */
export interface DurableContext extends StoreContext {
  readonly transactions: Transactions
}

export function phaseStore(context: DurableContext): PhaseStore {
  const { calls, current, tables, transactions } = context
  const turns = new DueTurns(current)
  const rows = (operation: string, sql: () => string, signal: AbortSignal | undefined) =>
    calls.make(operation, (session) => readCommitted(session, sql()), signal)
  return {
    advance: (lease, work, signal) => transactions.run(stepping(lease, work), signal),
    async record(lease, step, signal) {
      checkStep(step)
      const run = (session: Session) => recordAlone(session, current(), { lease, step })
      return calls.make('record a step', run, signal)
    },
    async load(recordId, signal) {
      if (!isUuid(recordId)) return undefined
      const found = await rows('load an operation', () => loadSql(tables, [recordId]), signal)
      return toOperations(found).get(recordId)
    },
    due: (query, signal) =>
      calls.make('find operations that are due', (session) => turns.find(session, query), signal),
    async orphans(query, signal) {
      const sql = () => orphansSql(tables, current().now, query)
      const found = await rows('find operations without a worker', sql, signal)
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

/** A step that the holder of a lease records. */
interface LeaseStep {
  readonly lease: Lease
  readonly step: Step
}

function stepping(
  lease: Lease,
  work: (tx: unknown) => Step | Promise<Step>,
): SessionPurpose<Step, StepOutcome> {
  return {
    lease,
    work,
    refuse: (record) => refuseStep(record, lease),
    finish: ({ session, context }, step) => {
      checkStep(step)
      return recordWithin(session, context, { lease, step })
    },
  }
}

/**
 * Records a step without work. If one statement is enough, the step is written as settlements are:
 * the fence is in the statement, and if it wrote nothing, another call has changed the record and
 * the step is decided again under a lock. The first step of an operation writes to three tables and
 * always needs the transaction.
 */
async function recordAlone(
  session: Session,
  context: RecordContext,
  leaseStep: LeaseStep,
): Promise<StepOutcome> {
  const { lease } = leaseStep
  if (leaseStep.step.operation === undefined) {
    const sql = stepRowSql(context, leaseStep, { lock: false })
    const state = toStepState(await readCommitted(session, sql))
    const decision = decideStep(state.record, state.phase, leaseStep, state.nowMs)
    if (decision.write === undefined) return decision.outcome
    if (await writeOnce(session, context, { lease, state, decision })) return decision.outcome
  }
  const { outcome } = await transact(session, () => recordWithin(session, context, leaseStep))
  return outcome
}

interface StepWrite {
  readonly lease: Lease
  readonly state: StepState
  readonly decision: StepDecision
}

/** Writes the step with one statement. `false`: nothing was written. */
async function writeOnce(
  session: Session,
  context: RecordContext,
  { lease, state, decision }: StepWrite,
): Promise<boolean> {
  const { phase: change } = decision
  const [before, after] = [state.record!, decision.write!]
  const columns = changesOf(before, after)
  if (change === undefined) {
    if (columns.size === 0) return true
    return writeChanges(session, context, [{ before, after }])
  }
  if (change.kind === 'remove') return false
  const { recordId } = before
  const { phase } = change
  if (state.phase !== undefined) {
    const changes = { recordId, name: phase.name, record: columns }
    const sql = stepTogetherSql(context.tables, lease, {
      ...changes,
      phase: phaseChanges(state.phase, phase),
    })
    return hasWritten(await writeAlone(session, sql))
  }
  if (columns.size > 0) return false
  try {
    return hasWritten(
      await writeAlone(session, sendPhaseSql(context.tables, lease, { recordId, phase })),
    )
  } catch (error) {
    // Another call of the same lease has inserted the phase.
    if (isDuplicate(error)) return false
    throw error
  }
}

function hasWritten(answer: readonly Row[] | MysqlHeader): boolean {
  return !isRows(answer) && answer.affectedRows > 0
}

/** Records a step within a transaction that is open on this session. */
async function recordWithin(
  session: Session,
  context: SqlContext,
  leaseStep: LeaseStep,
): Promise<FinishResult<StepOutcome>> {
  const [row] = await session.rows(stepRowSql(context, leaseStep, { lock: true }))
  const { record: before, phase, hasOperation, nowMs } = toStepState(row && [row.slice(1)])
  const decision = decideStep(before, phase, leaseStep, nowMs)
  const { outcome, write: after } = decision
  if (before === undefined || after === undefined) return { outcome, isWritten: false }
  const { tables } = context
  const { recordId } = before
  const { operation } = leaseStep.step
  if (operation !== undefined && !hasOperation) {
    await session.run(insertOperationSql(tables, recordId, operation))
  }
  if (decision.phase !== undefined) {
    const { phase: change } = decision
    await session.run(changePhaseSql(tables, recordId, { before: phase, change }))
  }
  const columns = changesOf(before, after)
  if (operation !== undefined && !hasOperation) setRunAs(columns, String(runAs(operation)))
  if (columns.size > 0) await session.run(updateSql(tables, [{ from: before, columns }]))
  return { outcome, isWritten: true }
}

function stepRowSql(
  { tables, now }: SqlContext,
  { lease, step }: LeaseStep,
  { lock }: { readonly lock: boolean },
): string {
  const { identity } = lease
  return stepSql(tables, now, { identity, phase: step.phase?.name, lock })
}

/** Input of the decision about a step. */
interface StepState {
  readonly nowMs: number
  readonly record: StoredRecord | undefined
  readonly hasOperation: boolean
  readonly phase: StoredPhase | undefined
}

function toStepState(rows: readonly Row[] | undefined): StepState {
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

/** Rejects values that no column can hold before anything is sent. */
function checkStep({ operation, phase, end }: Step): void {
  checkValues('record a step', () => {
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
  })
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
