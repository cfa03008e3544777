/**
 * NestJS adapter (10, 11 and 12, on Express and on Fastify). It only translates:
 * `http/guard/guard.ts` decides what a key means and how each outcome is answered.
 *
 * @module
 */
export { requireProtected } from '../../http/guard/route-audit.ts'
export { auditRoutes } from './audit.ts'
export { IdempotencyContext, Idempotent, idempotencyOf } from './decorators.ts'
export { IDEMPOTENCY_ENGINE, IdempotencyModule } from './module.ts'
export { IdempotencyStatus } from './status.ts'
export type { HandlerContext } from '../../http/guard/handler-context.ts'
export type { ReplyInit } from '../../http/reply/http-reply.ts'
export type { AuditedRoute, AuditOptions, RouteAudit } from '../../http/guard/route-audit.ts'
export type { RouteOptions } from '../../http/guard/route-options.ts'
export type { IdempotencyContextOptions } from './decorators.ts'
export type {
  IdempotencyModuleAsyncOptions,
  IdempotencyOptions,
  IdempotencyOptionsFactory,
} from './module.ts'
export type { NestRequest } from './platform-request.ts'
export type { IdempotencyStatusOptions } from './status.ts'
