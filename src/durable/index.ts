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
export { ajvSchema } from './schema.ts'
export type { AjvValidate, Schema } from './schema.ts'
export { createWorker, operationPolicy } from './worker.ts'
export type { Worker, WorkerOptions, WorkerPass } from './worker.ts'
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
  PhaseRef,
} from '../core/durable-store.ts'
