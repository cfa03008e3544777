export { createEngine } from './core/engine.ts'
export { memoryStore } from './stores/memory/memory-store.ts'
export { currentIdempotency } from './http/current.ts'
export { EXPOSED_HEADERS } from './http/exposed-headers.ts'
export { singleTenant } from './http/guard-options.ts'
export { encodeAbandonedReply, encodeHttpReply } from './http/http-reply.ts'

export {
  ERROR_CODES,
  EngineClosedError,
  InvalidOptionsError,
  InvalidRequestError,
  LeaseLostError,
  NotExecutedError,
  OncekeyError,
  OperationChangedError,
  OutcomeNotRecordedError,
  OutcomeUnknownError,
  StoreFailedError,
  isOncekeyError,
} from './core/errors.ts'
export { EVENT_COUNTERS } from './core/events.ts'
export { MOVES, RECORD_STATES } from './core/record.ts'
export { PROBLEMS } from './protocol/problems.ts'

export type { BreakerState } from './core/breaker.ts'
export type { BreakerOptions } from './core/breaker-options.ts'
export type { Clock } from './core/clock.ts'
export type {
  CloseReport,
  Engine,
  EngineOptions,
  ReapOptions,
  ResolveResult,
  ResolveTarget,
  ResolveVerdict,
  RunRequest,
} from './core/engine.ts'
export type { Encryption, EncryptionContext } from './core/encryption.ts'
export type { ErrorCode, StoreFailure } from './core/errors.ts'
export type { EngineEvent, EventListener, EventSubject } from './core/events.ts'
export type { RunOutcome, Work, WorkEnd } from './core/execution.ts'
export type { ForeignTransaction } from './core/foreign-transaction.ts'
export type { Failure, FailureChoice, OnError } from './core/failure.ts'
export type { Scope } from './core/identity.ts'
export type { Policy, PolicyOptions, WhileInProgress } from './core/policy.ts'
export type { AfterExpiry, OnLapse, Proof, RecordState } from './core/record.ts'
export type { RunContext } from './core/run-context.ts'
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
  RecordView,
  Renewal,
  ResolveOutcome,
  SettleOutcome,
  Settlement,
  Store,
  StoreBatching,
  SweptRecord,
  Verdict,
} from './core/store.ts'
export type { Profile } from './http/answers.ts'
export type { HttpReply } from './http/exchange.ts'
export type { FingerprintSecret } from './http/fingerprint.ts'
export type { GuardOptions } from './http/guard-options.ts'
export type { HandlerContext } from './http/handler-context.ts'
export type { AbandonedReplyInput, GivenReply, HttpReplyInput } from './http/http-reply.ts'
export type { HeaderPair } from './http/stored-headers.ts'
export type { Problem, ProblemCode, ProblemName } from './protocol/problems.ts'
export type { MemoryStoreOptions } from './stores/memory/memory-store.ts'
