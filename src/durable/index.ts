/**
 * Durable operations: work that survives the death of its process.
 *
 * @module
 */
export { operation } from './operation.ts'
export type { Operation, OperationOptions } from './operation.ts'
export type {
  Effect,
  EffectAsked,
  EffectCall,
  Effects,
  Finding,
  OperationContext,
} from './operation-contract.ts'
export { createOutbox } from './outbox.ts'
export type { AddedMessage, AddOptions, Outbox, OutboxOptions } from './outbox.ts'
export type { Backoff } from './backoff.ts'
export { createRelay } from './relay.ts'
export type {
  MessageHandler,
  Relay,
  RelayCloseReport,
  Relayed,
  RelayMessage,
  RelayOptions,
  RelayReport,
} from './relay-contract.ts'
export { natsTarget } from './nats-target.ts'
export type { NatsJetstream, NatsPubAck, NatsTargetOptions } from './nats-target.ts'
export { rabbitmqTarget } from './rabbitmq-target.ts'
export type {
  RabbitmqChannel,
  RabbitmqConnection,
  RabbitmqProperties,
  RabbitmqTargetOptions,
} from './rabbitmq-target.ts'
export { ajvSchema } from './schema.ts'
export type { AjvValidate, Schema } from './schema.ts'
export { createWorker } from './worker.ts'
export type { Worker, WorkerPass } from './worker.ts'
export { operationPolicy } from './worker-options.ts'
export type { WorkerOptions } from './worker-options.ts'
export type { PlacesStats } from './places.ts'
export { createReconciler } from './reconciler.ts'
export type { ReconcileReport, Reconciler, Said } from './reconciler.ts'
export type { HandlerVerdict, ReconcileHandler, ReconcilerOptions } from './reconciler-options.ts'
export type { ReconcileSchedule } from './reconcile-schedule.ts'
export type { EffectTarget, EffectVerdict, KnownOperation, RecordTarget } from './desk.ts'
export { createOperator } from './operator.ts'
export type {
  DeadLetters,
  InspectedOperation,
  InspectedPhase,
  Inspection,
  Operator,
  OperatorOptions,
} from './operator.ts'
export { compareLedgers } from './ledger.ts'
export type { CompareOptions, Findings, Ledger, LedgerEntry, LedgerReport } from './ledger.ts'
export { ledgerJob } from './ledger-job.ts'
export type { LedgerJob, LedgerJobOptions, LedgerPeriod, LedgerRun } from './ledger-job.ts'
export { createMaintenance } from './maintenance.ts'
export type { Maintenance, MaintenanceReport, TaskEnd } from './maintenance.ts'
export type {
  MaintenanceIntervals,
  MaintenanceOptions,
  MaintenancePart,
} from './maintenance-options.ts'
export type {
  ActedBy,
  ActKind,
  ActOutcome,
  AuditEntry,
  MessageView,
  UnrelayedTopic,
  PhaseRef,
} from '../core/durable-store.ts'
