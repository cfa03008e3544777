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
