/** Tests: test/stores/sqlite/transaction.test.ts, test/stores/sqlite/store-cases.test.ts. */
import { NO_BYTES } from '../../core/bytes.ts'
import { decideResolve, decideSettle, type Decision } from '../../core/record/decide.ts'
import type { StoredRecord } from '../../core/record/record.ts'
import type {
  Completion,
  Lease,
  ResolveOutcome,
  SettleOutcome,
  Settlement,
  Verdict,
} from '../../core/store/store.ts'
import type { RecordTable } from './columns.ts'
import type { FileAccess } from './driver/file-access.ts'
import { transact, type TransactionPlan, type TransactionWork } from './transaction.ts'

export function settleLeases(
  access: FileAccess,
  settlements: readonly Settlement[],
): Promise<SettleOutcome[]> {
  const { records } = access.tables
  return access.write('settle', (nowMs) =>
    settlements.map((settlement) => {
      const settled = completeHeld(records, settlement, nowMs)
      if (settled !== undefined) return settled
      const record = records.find(settlement.lease.identity)
      return apply(records, decideSettle(record, settlement, nowMs))
    }),
  )
}

export function resolveUnknown(
  access: FileAccess,
  verdicts: readonly Verdict[],
): Promise<ResolveOutcome[]> {
  const { records } = access.tables
  return access.write('resolve', (nowMs) =>
    verdicts.map((verdict) =>
      apply(records, decideResolve(records.findRef(verdict.ref), verdict, nowMs)),
    ),
  )
}

/** Runs the work in a transaction, and completes the lease with its result in the same commit. */
export async function settleInTransaction(
  access: FileAccess,
  lease: Lease,
  work: TransactionWork,
): Promise<SettleOutcome> {
  access.refuseIfClosed('begin a transaction')
  return access.writer.takeTurn('begin a transaction', () =>
    transact(access, completionPlan(access.tables.records, lease, work)),
  )
}

/** The `decideSettle` of a held lease in one statement, because half of all writes are this one. */
function completeHeld(
  records: RecordTable,
  settlement: Settlement,
  nowMs: number,
): SettleOutcome | undefined {
  if (settlement.kind !== 'complete') return undefined
  const { lease, result, retentionMs } = settlement
  const expiresAtMs = nowMs + retentionMs
  const isDone = records.completeHeld(lease, { result, nowMs, expiresAtMs })
  return isDone ? { kind: 'settled', expiresAt: new Date(expiresAtMs) } : undefined
}

function apply<Outcome>(records: RecordTable, { outcome, write }: Decision<Outcome>): Outcome {
  if (write !== undefined) records.update(write)
  return outcome
}

function completionPlan(
  records: RecordTable,
  lease: Lease,
  work: TransactionWork,
): TransactionPlan<Completion, SettleOutcome> {
  let record: StoredRecord | undefined
  return {
    work,
    before: (nowMs) => {
      record = records.find(lease.identity)
      const trial = { kind: 'complete', lease, result: NO_BYTES, retentionMs: 0 } as const
      const { outcome, write } = decideSettle(record, trial, nowMs)
      // The lease is lost, or an earlier call has committed and its answer was lost. In both cases
      // the work must not run.
      return write === undefined ? outcome : undefined
    },
    // Uses the record of `before`: this transaction has held the write lock since.
    after: (completion, nowMs) => {
      const settlement = { kind: 'complete', lease, ...completion } as const
      const { outcome, write } = decideSettle(record, settlement, nowMs)
      if (write !== undefined) records.update(write)
      return { outcome, isKept: write !== undefined }
    },
  }
}
