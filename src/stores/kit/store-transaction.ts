/** The parts of a transaction of the store that PostgreSQL and MySQL share. */
import { NO_BYTES } from '../../core/bytes.ts'
import { decideSettle } from '../../core/record/decide.ts'
import type { StoredRecord } from '../../core/record/record.ts'
import type { Lease, SettleOutcome } from '../../core/store/store.ts'
import { Slots } from './slots.ts'

/**
 * The work of a transaction, and the statements about the key before and after it. `Within` is what
 * the last statements need: the session of the driver, or more.
 */
export interface Purpose<WorkResult, Outcome, Within> {
  readonly lease: Lease
  /**
   * Returns an outcome if the work must not run: the lease is lost, or an earlier call whose answer
   * was lost has ended the lease. Returns `undefined` if it may run.
   */
  readonly refuse: (record: StoredRecord | undefined) => Outcome | undefined
  readonly work: (tx: never) => WorkResult | Promise<WorkResult>
  /** Sends the last statements before the commit. Unless `isWritten`, all is rolled back. */
  readonly finish: (within: Within, result: WorkResult) => Promise<FinishResult<Outcome>>
}

export interface FinishResult<Outcome> {
  readonly outcome: Outcome
  /** `true` if this call has written, and not an earlier one of the same lease. */
  readonly isWritten: boolean
}

/** Carries an outcome out of the body of a transaction that must be rolled back. */
export class RolledBack<Outcome> extends Error {
  readonly outcome: Outcome

  constructor(outcome: Outcome) {
    super('rolled back')
    this.outcome = outcome
  }
}

/** `refuse` of a transaction that completes its key. */
export function refuseCompletion(
  record: StoredRecord | undefined,
  lease: Lease,
): SettleOutcome | undefined {
  const trial = { kind: 'complete', lease, result: NO_BYTES, retentionMs: 0 } as const
  const { outcome, write } = decideSettle(record, trial, 0)
  return write === undefined ? outcome : undefined
}

/** Connections that transactions never use, so that a renewal finds a free one. */
const RESERVED = 2

export interface TransactionSlots {
  /** `undefined` if the pool has no connection to spare. */
  readonly slots: Slots | undefined
  /** The number of transactions that may be open at once; `undefined` if the pool has no limit. */
  readonly transactionsMax: number | undefined
}

/** Limits transactions to the connections that a pool of this size can spare. */
export function transactionSlots(connectionsMax: number): TransactionSlots {
  const spare = connectionsMax - (connectionsMax < 4 ? 1 : RESERVED)
  if (spare <= 0) return { slots: undefined, transactionsMax: undefined }
  return {
    slots: new Slots(spare),
    transactionsMax: Number.isFinite(spare) ? spare : undefined,
  }
}
