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
  RabbitmqProperties,
  RabbitmqTargetOptions,
} from './rabbitmq-target.ts'
export { ajvSchema } from './schema.ts'
export type { AjvValidate, Schema } from './schema.ts'
export { createWorker, operationPolicy } from './worker.ts'
export type { Worker, WorkerOptions, WorkerPass } from './worker.ts'
