import { decideStep, refuseStep } from '../../core/decide-durable.ts'
import { toView } from '../../core/decide.ts'
import type {
  DueOperation,
  DueQuery,
  PhaseStore,
  Step,
  StepOutcome,
} from '../../core/durable-store.ts'
import type { Lease } from '../../core/store.ts'
import { TurnCursors } from '../../core/turns.ts'
import { operationOf } from './due-turns.ts'
import type { FileAccess, Tables } from './file-access.ts'
import { StepWriter } from './step-writer.ts'
import { transact, type Purpose } from './transaction.ts'
import { walkOn } from './turn-walk.ts'

export function phaseStore(access: FileAccess): PhaseStore {
  const { tables, writer } = access
  const cursors = new TurnCursors()
  const steps = new StepWriter(access, (held, nowMs) => takeStep(tables, held, nowMs).outcome)
  return {
    advance: async (lease, work) => {
      access.refuseIfClosed('begin a transaction')
      return writer.takeTurn('begin a transaction', () =>
        transact(access, stepping(tables, lease, work)),
      )
    },
    record: async (lease, step) => {
      access.refuseIfClosed('record a step')
      return steps.record({ lease, step })
    },
    load: (recordId) =>
      access.read('load an operation', () => {
        const { reading, operations } = access.committed
        return reading.run(() => operations.find(recordId))
      }),
    due: async (query) => {
      const walk = () =>
        access.read('find operations that are due', (nowMs) => {
          const { reading } = access.committed
          return reading.run(() => findDue(access.committed, cursors, { query, nowMs }))
        })
      return (await walkOn(walk)).due
    },
    orphans: (query) =>
      access.read('find operations that nobody runs', (nowMs) =>
        access.committed.operations.orphans(query, nowMs).map(({ name, version, record }) => {
          return { name, version, recordId: record.recordId }
        }),
      ),
  }
}

function findDue(
  { records, dueTurns }: Tables,
  cursors: TurnCursors,
  { query, nowMs }: { readonly query: DueQuery; readonly nowMs: number },
): { due: DueOperation[]; isCut: boolean } {
  const { keys, isCut, keep } = dueTurns.walk(query, cursors, nowMs)
  const found = keys.length === 0 ? [] : records.getAll(keys.map(({ number }) => number))
  keep()
  const due = found.map((record, n) => {
    return { ...operationOf(keys[n]!.lane), record: toView(record) }
  })
  return { due, isCut }
}

function stepping(
  tables: Tables,
  lease: Lease,
  work: (tx: unknown) => Step | Promise<Step>,
): Purpose<Step, StepOutcome> {
  return {
    work,
    before: () => refuseStep(tables.records.find(lease.identity), lease),
    after: (step, nowMs) => takeStep(tables, { lease, step }, nowMs),
  }
}

/** For use within a write transaction. */
function takeStep(
  { records, operations }: Tables,
  { lease, step }: { readonly lease: Lease; readonly step: Step },
  nowMs: number,
): { outcome: StepOutcome; isKept: boolean } {
  const record = records.find(lease.identity)
  const before = record && step.phase && operations.findPhase(record.recordId, step.phase.name)
  const { outcome, write, phase } = decideStep(record, before, { lease, step }, nowMs)
  if (write === undefined) return { outcome, isKept: false }
  records.update(write)
  if (step.operation !== undefined) operations.insert(write.recordId, step.operation)
  if (phase !== undefined) operations.change(write.recordId, phase)
  return { outcome, isKept: true }
}
