import { refuseStep } from '../../kit/decide-durable.ts'
import type {
  DueQuery,
  OperationName,
  PhaseStore,
  Step,
  StepOutcome,
} from '../../../core/store/durable-store.ts'
import type { Lease } from '../../../core/store/store.ts'
import {
  bytesValue,
  hexValue,
  isUuid,
  numberArray,
  textArray,
  textValue,
} from '../driver/values.ts'
import type { Calls } from '../calls.ts'
import type { Value } from '../driver/driver.ts'
import { storeFailed } from '../failures.ts'
import { endedItself, type SessionPurpose, type Transactions } from '../transaction.ts'
import { DueTurns } from '../turns/due.ts'
import { DUE } from '../turns/sql.ts'
import { walkOn } from '../turns/walk.ts'
import { toDue, toOperations, toOrphan, toStepOutcome } from './operation-columns.ts'
import { LOAD, ORPHANS, STEP } from './phase-sql.ts'

export interface PhaseContext {
  readonly calls: Calls
  readonly transactions: Transactions
}

export function phaseStore({ calls, transactions }: PhaseContext): PhaseStore {
  const turns = new DueTurns()
  const findOrphans = (query: DueQuery) => () => [
    calls.nowMs,
    ...operationValues(query.operations),
    query.limit,
  ]
  return {
    advance: (lease, work, signal) => transactions.run(stepping(calls, lease, work), signal),
    record: async (lease, step, signal) => {
      const values = () => stepValues(calls.nowMs, { lease, step, isSealed: false })
      const [row] = await calls.send('record a step', STEP, values, signal)
      return toStepOutcome(row)!.outcome
    },
    load: async (recordId, signal) => {
      if (!isUuid(recordId)) return undefined
      const values = () => [textArray([recordId])]
      const rows = await calls.send('load an operation', LOAD, values, signal)
      return [...toOperations(rows).values()][0]
    },
    due: async (query, signal) => {
      const rows = await walkOn(async () => {
        const operations = turns.order(query.operations)
        const turnValues = turns.values(operations, query)
        const values = () => [calls.nowMs, ...operationValues(operations), ...turnValues]
        const found = await calls.send('find operations that are due', DUE, values, signal)
        return turns.stop(operations, found)
      })
      return rows.map(toDue)
    },
    orphans: async (query, signal) => {
      const operation = 'find operations that no worker runs'
      return (await calls.send(operation, ORPHANS, findOrphans(query), signal)).map(toOrphan)
    },
  }
}

function operationValues(operations: readonly OperationName[]): Value[] {
  return [
    textArray(operations.map(({ name }) => name)),
    numberArray(operations.map(({ version }) => version)),
  ]
}

/** Records a step in the same transaction as the work's statements. */
function stepping(
  calls: Calls,
  lease: Lease,
  work: (tx: unknown) => Step | Promise<Step>,
): SessionPurpose<Step, StepOutcome> {
  return {
    lease,
    work,
    refuse: (record) => refuseStep(record, lease),
    finish: async (session, step) => {
      let written: ReturnType<typeof toStepOutcome>
      try {
        const values = stepValues(calls.nowMs, { lease, step, isSealed: true })
        const [row] = await session.query(calls.textOf(STEP), values)
        written = toStepOutcome(row)
      } catch (error) {
        throw storeFailed('commit a transaction', error)
      }
      if (written === undefined) throw endedItself()
      return { outcome: written.outcome, isWritten: written.isWritten }
    },
  }
}

interface StepCall {
  readonly lease: Lease
  readonly step: Step
  /** The step is the last statement of a transaction with the caller's work. */
  readonly isSealed: boolean
}

/** In the order of the parameters of the function. */
function stepValues(nowMs: number | null, { lease, step, isSealed }: StepCall): Value[] {
  const { operation, phase, end } = step
  return [
    nowMs,
    `${isSealed}`,
    hexValue(lease.identity),
    textValue(lease.token),
    lease.attempt,
    textValue(operation?.name),
    operation?.version ?? null,
    bytesValue(operation?.input),
    phase?.kind ?? null,
    textValue(phase?.name),
    phase?.number ?? null,
    bytesValue(phase?.kind === 'intent' ? phase.request : undefined),
    bytesValue(phase !== undefined && 'result' in phase ? phase.result : undefined),
    textValue(phase !== undefined && 'downstreamKey' in phase ? phase.downstreamKey : undefined),
    textValue(phase?.kind === 'result' ? phase.providerId : undefined),
    end?.kind ?? null,
    bytesValue(end?.kind === 'complete' ? end.result : undefined),
    end === undefined ? null : end.kind === 'complete' ? end.retentionMs : end.afterMs,
  ]
}
