/**
 * Durable operations: work that survives a crash of its process.
 *
 * @module
 */
export { defineOperation } from './operations/operation.ts'
export type { Operation, OperationOptions } from './operations/operation.ts'
export type {
  Effect,
  ReconcileCall,
  EffectCall,
  Effects,
  Finding,
  OperationContext,
} from './operations/operation-contract.ts'
export { keyedFetch } from './operations/keyed-fetch.ts'
export type { KeyedCall, KeyedFetchOptions } from './operations/keyed-fetch.ts'
export { createOutbox } from './outbox/outbox.ts'
export type { AddedMessage, AddOptions, Outbox, OutboxOptions } from './outbox/outbox.ts'
export { createRelay } from './outbox/relay.ts'
export type {
  Backoff,
  MessageHandler,
  Relay,
  RelayCloseReport,
  RelayResult,
  RelayMessage,
  RelayOptions,
  RelayReport,
} from './outbox/relay-contract.ts'
export { natsTarget } from './outbox/targets/nats-target.ts'
export type { NatsJetstream, NatsPubAck, NatsTargetOptions } from './outbox/targets/nats-target.ts'
export { rabbitmqTarget } from './outbox/targets/rabbitmq-target.ts'
export type {
  RabbitmqChannel,
  RabbitmqConnection,
  RabbitmqProperties,
  RabbitmqTargetOptions,
} from './outbox/targets/rabbitmq-target.ts'
export { ajvSchema } from './operations/schema.ts'
export type { AjvValidate, Schema } from './operations/schema.ts'
export { createWorker } from './operations/worker.ts'
export type { Worker, WorkerPass } from './operations/worker.ts'
export { operationPolicy } from './operations/worker-options.ts'
export type { WorkerOptions } from './operations/worker-options.ts'
export type { PlacesStats } from './places/places.ts'
export { createReconciler } from './reconciliation/reconciler.ts'
export type { ReconcileReport, Reconciler, Attribution } from './reconciliation/reconciler.ts'
export type {
  HandlerVerdict,
  ReconcileHandler,
  ReconcilerOptions,
} from './reconciliation/reconciler-options.ts'
export type { ReconcileSchedule } from './reconciliation/reconcile-schedule.ts'
export type {
  EffectTarget,
  EffectVerdict,
  OperationInfo,
  RecordTarget,
} from './operator/operator-acts.ts'
export type { DiscardOptions } from './operator/discard-reply.ts'
export { createOperator } from './operator/operator.ts'
export { UnreadableValue } from './operator/inspected-operation.ts'
export type { InspectedOperation, InspectedPhase } from './operator/inspected-operation.ts'
export type {
  DeadLetters,
  InspectedReply,
  Inspection,
  Operator,
  OperatorOptions,
} from './operator/operator.ts'
export type { StoredReply } from '../http/reply/reply-codec.ts'
export { compareLedgers } from './reconciliation/ledger.ts'
export type {
  CompareOptions,
  Findings,
  Ledger,
  LedgerEntry,
  LedgerReport,
} from './reconciliation/ledger.ts'
export { ledgerJob } from './reconciliation/ledger-job.ts'
export type {
  LedgerJob,
  LedgerJobOptions,
  LedgerPeriod,
  LedgerRun,
} from './reconciliation/ledger-job.ts'
export { createMaintenance } from './maintenance/maintenance.ts'
export type { Maintenance, MaintenanceReport, TaskResult } from './maintenance/maintenance.ts'
export type {
  MaintenanceIntervals,
  MaintenanceOptions,
  MaintenancePart,
} from './maintenance/maintenance-options.ts'
export type { MessageView, UnrelayedTopic } from '../core/store/durable-store.ts'
export type {
  Actor,
  ActKind,
  ActOutcome,
  AuditEntry,
  PhaseRef,
  RefusalReason,
} from '../core/store/operator-store.ts'
