/**
 * The contract between an engine and its store, for authors of stores. Implement `Store`, and run
 * the `storeCases` of `oncekey/testing` against it: they define what each call must do. For a store
 * with `durable`, run the `durableCases` too.
 *
 * @module
 */
export { MOVES, RECORD_STATES } from '../record/record.ts'
export type { AfterExpiry, MoveName, OnLapse, Proof, StoredRecord } from '../record/record.ts'
export type {
  ClaimedFrom,
  ClaimMode,
  ClaimOutcome,
  ClaimRequest,
  Completion,
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
  StoreBatching,
  StoreLanes,
  SweptRecord,
  Verdict,
} from './store.ts'
export type {
  Act,
  OperatorStore,
  DueOperation,
  DueQuery,
  DueUnknown,
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
  Postponement,
  Step,
  StepEnd,
  StepOutcome,
  StoredOperation,
  StoredPhase,
  UnknownOperation,
  UnknownRequest,
  UnrelayedQuery,
} from './durable-store.ts'
