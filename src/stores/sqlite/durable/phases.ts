/** Tests: test/stores/sqlite/durable/phases.test.ts, test/stores/sqlite/durable/durable.test.ts. */
import { decideStep, refuseStep } from '../../kit/decide-durable.ts'
import { isRejected } from '../../../core/errors.ts'
import { toView } from '../../../core/record/decide.ts'
import type {
  DueOperation,
  DueQuery,
  PhaseStore,
  Step,
  StepOutcome,
} from '../../../core/store/durable-store.ts'
import type { Lease } from '../../../core/store/store.ts'
import { TurnCursors } from '../../kit/turns.ts'
import type { FileAccess, Tables } from '../driver/file-access.ts'
import { storeFailed } from '../failures.ts'
import { transact, type TransactionPlan } from '../transaction.ts'
import { operationOf } from '../turns/due.ts'
import { repeatWalk } from '../turns/walk.ts'

export function phaseStore(access: FileAccess): PhaseStore {
  const { tables, writer } = access
  const cursors = new TurnCursors()
  const steps = new StepBatches(access, (leased, nowMs) => applyStep(tables, leased, nowMs).outcome)
  return {
    advance: async (lease, work) => {
      access.refuseIfClosed('begin a transaction')
      return writer.takeTurn('begin a transaction', () =>
        transact(access, stepPlan(tables, lease, work)),
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
      return (await repeatWalk(walk)).due
    },
    orphans: (query) =>
      access.read('find operations without a worker', (nowMs) =>
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
  const { keys, isCut, saveCursors } = dueTurns.walk(query, cursors, nowMs)
  const dueRecords = keys.length === 0 ? [] : records.getAll(keys.map(({ number }) => number))
  saveCursors()
  const due = dueRecords.map((record, n) => {
    return { ...operationOf(keys[n]!.lane), record: toView(record) }
  })
  return { due, isCut }
}

function stepPlan(
  tables: Tables,
  lease: Lease,
  work: (tx: unknown) => Step | Promise<Step>,
): TransactionPlan<Step, StepOutcome> {
  return {
    work,
    before: () => refuseStep(tables.records.find(lease.identity), lease),
    after: (step, nowMs) => applyStep(tables, { lease, step }, nowMs),
  }
}

interface LeasedStep {
  readonly lease: Lease
  readonly step: Step
}

/** For use within a write transaction. */
function applyStep(
  { records, operations }: Tables,
  { lease, step }: LeasedStep,
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

/** Bounds of one commit, so that it does not block the event loop for long. */
const ROWS_MAX = 128
const BYTES_MAX = 8 * 1024 * 1024
/** The engine limits the steps in flight to `stepsMax`, so this many mean an overload. */
const WAITING_MAX = 10_000

interface WaitingStep extends LeasedStep {
  readonly resolve: (outcome: StepOutcome) => void
  readonly reject: (error: unknown) => void
}

/**
 * Steps that wait for the same write turn share its commit. With one commit for each step, an
 * operation among a few hundred would wait for the commits of all the others before the result of
 * its effect is recorded.
 */
class StepBatches {
  readonly #access: FileAccess
  readonly #apply: (leased: LeasedStep, nowMs: number) => StepOutcome
  #waiting: WaitingStep[] = []
  #isQueued = false

  /** `apply` writes one step. It is called within a write transaction. */
  constructor(access: FileAccess, apply: (leased: LeasedStep, nowMs: number) => StepOutcome) {
    this.#access = access
    this.#apply = apply
  }

  record(leased: LeasedStep): Promise<StepOutcome> {
    if (this.#waiting.length >= WAITING_MAX) {
      const cause = new Error(`${WAITING_MAX} steps are already waiting to be recorded`)
      return Promise.reject(storeFailed('record a step', cause, 'overloaded'))
    }
    return new Promise((resolve, reject) => {
      this.#waiting.push({ ...leased, resolve, reject })
      this.#queue()
    })
  }

  #queue(): void {
    if (this.#isQueued || this.#waiting.length === 0) return
    this.#isQueued = true
    // Never rejects: a failure rejects the promises of the steps concerned.
    void this.#write()
  }

  async #write(): Promise<void> {
    let batch: WaitingStep[] = []
    try {
      const outcomes = await this.#turn((nowMs) => {
        batch = this.#nextBatch()
        // Steps that arrive from here on go into the next turn.
        this.#isQueued = false
        this.#queue()
        return batch.map((entry) => this.#apply(entry, nowMs))
      })
      for (const [index, entry] of batch.entries()) entry.resolve(outcomes[index]!)
    } catch (error) {
      await this.#failed(batch, error)
    }
  }

  /** Repeats a rejected batch step by step, so that only the invalid step fails. */
  async #failed(batch: readonly WaitingStep[], error: unknown): Promise<void> {
    if (batch.length === 0) {
      // The turn never began: the file is closed, or another process keeps it locked.
      this.#isQueued = false
      for (const entry of this.#waiting.splice(0)) entry.reject(error)
      return
    }
    if (batch.length === 1 || !isRejected(error)) {
      for (const entry of batch) entry.reject(error)
      return
    }
    for (const entry of batch) {
      await this.#turn((nowMs) => this.#apply(entry, nowMs)).then(entry.resolve, entry.reject)
    }
  }

  /** Uses the writer directly, so that `close` waits for the steps that were accepted before it. */
  #turn<Result>(body: (nowMs: number) => Result): Promise<Result> {
    const { writer, clock } = this.#access
    return writer.write('record a step', () => body(clock.nowMs()))
  }

  /** The first steps that fit into one commit; at least one. */
  #nextBatch(): WaitingStep[] {
    let bytes = 0
    const end = this.#waiting.slice(0, ROWS_MAX).findIndex((entry, index) => {
      bytes += bytesOf(entry.step)
      return index > 0 && bytes > BYTES_MAX
    })
    return this.#waiting.splice(0, end === -1 ? ROWS_MAX : end)
  }
}

function bytesOf({ operation, phase, end }: Step): number {
  const parts = [
    operation?.input,
    phase !== undefined && 'request' in phase ? phase.request : undefined,
    phase !== undefined && 'result' in phase ? phase.result : undefined,
    end?.kind === 'complete' ? end.result : undefined,
  ]
  return parts.reduce((sum, part) => sum + (part?.byteLength ?? 0), 0)
}
