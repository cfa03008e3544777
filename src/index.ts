export { createEngine } from './core/engine/engine.ts'
export { memoryStore } from './stores/memory/store.ts'
export { currentIdempotency } from './http/guard/current.ts'
export { EXPOSED_HEADERS } from './http/reply/stored-headers.ts'
export { singleTenant } from './http/guard/guard-options.ts'
export { encodeAbandonedReply, encodeHttpReply } from './http/reply/http-reply.ts'

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
export { PROBLEMS } from './protocol/problems.ts'

export type { BreakerState } from './core/health/breaker.ts'
export type { BreakerOptions } from './core/health/breaker-options.ts'
export type { Clock } from './core/time/clock.ts'
export type {
  CloseReport,
  Engine,
  EngineOptions,
  ReapOptions,
  ResolveResult,
  ResolveTarget,
  ResolveVerdict,
  RunRequest,
} from './core/engine/engine-contract.ts'
export type {
  Encryption,
  EncryptionContext,
  EncryptionPurpose,
  EncryptionSubject,
} from './core/encryption.ts'
export type { HashKeysOptions } from './core/record/stored-keys.ts'
export type { Limiter, LimiterState } from './http/limits/limiter.ts'
export type { LimitOptions } from './http/limits/limit-options.ts'
export type { ErrorCode, StoreFailure } from './core/errors.ts'
export type { EngineEvent, EventListener, EventSubject } from './core/events.ts'
export type { ForeignTransaction } from './stores/kit/foreign-transaction.ts'
export type { Failure, FailureChoice, OnError } from './core/attempt/failure.ts'
export type { Scope } from './core/record/identity.ts'
export type { Policy, PolicyOptions, WhileInProgress } from './core/engine/policy.ts'
export type { RecordState } from './core/record/record.ts'
export type { RunContext, Work, WorkResult } from './core/attempt/run-context.ts'
export type { RunOutcome } from './core/attempt/run-outcome.ts'
export type { RecordView, Store } from './core/store/store.ts'
export type { Profile } from './http/guard/answers.ts'
export type { HttpReply } from './http/guard/exchange.ts'
export type { FingerprintSecret } from './http/fingerprint/fingerprint.ts'
export type { GuardOptions } from './http/guard/guard-options.ts'
export type { HandlerContext } from './http/guard/handler-context.ts'
export type { AbandonedReplyInput, ReplyInit, HttpReplyInput } from './http/reply/http-reply.ts'
export type { HeaderPair } from './http/reply/stored-headers.ts'
export type { Problem, ProblemCode, ProblemName } from './protocol/problems.ts'
export type { MemoryStoreOptions } from './stores/memory/store.ts'
