/**
 * The contract between an engine and its store, for authors of stores. Implement `Store`, and run
 * the `storeCases` of `oncekey/testing` against it: they define what each call must do. For a store
 * with `durable`, run the `durableCases` too.
 *
 * @module
 */
export { MOVES, RECORD_STATES } from '../record/record.ts'
export type { AfterExpiry, MoveName, OnLapse, Proof, StoredRecord } from '../record/record.ts'
export type { StoreBatching, StoreLanes } from './batching.ts'
export type {
  ClaimedFrom,
  ClaimMode,
  ClaimOutcome,
  ClaimRequest,
  Completion,
  Discard,
  DiscardOutcome,
  HistoryQuery,
  Lease,
  ListQuery,
  ReapReport,
  ReapRequest,
  RecordRef,
  Renewal,
  ResolveOutcome,
  SettleOutcome,
  Settlement,
  Store,
  SweptRecord,
  Verdict,
} from './store.ts'
export type {
  DueOperation,
  DueQuery,
  DurableStore,
  HeldMessage,
  MessageClaim,
  MessageError,
  MessageLease,
  MessageSettlement,
  MessageState,
  NewMessage,
  NewOperation,
  OperationName,
  OrphanedOperation,
  OutboxStore,
  PhaseName,
  PhaseStep,
  PhaseStore,
  Step,
  StepEnd,
  StepOutcome,
  StoredOperation,
  StoredPhase,
  UnrelayedQuery,
} from './durable-store.ts'
export type {
  Act,
  DiscardedReply,
  OperatorStore,
  DueUnknown,
  Postponement,
  UnknownOperation,
  UnknownRequest,
} from './operator-store.ts'
