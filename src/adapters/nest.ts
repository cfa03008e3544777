/**
 * NestJS adapter (10 and 11, on Express and on Fastify). Translates only: what a key means and
 * what each outcome answers is decided in `http/guard.ts`.
 *
 * @module
 */
export { currentIdempotency } from '../http/current.ts'
export { singleTenant } from '../http/guard-options.ts'
export { requireProtected } from '../http/route-audit.ts'
export { auditRoutes } from './nest-audit.ts'
export { IdempotencyContext, Idempotent, idempotencyOf } from './nest-decorators.ts'
export { IDEMPOTENCY_ENGINE, IdempotencyModule } from './nest-module.ts'
export { IdempotencyStatus } from './nest-status.ts'
export type { HandlerContext } from '../http/handler-context.ts'
export type { GivenReply } from '../http/http-reply.ts'
export type { AuditedRoute, AuditOptions, RouteAudit } from '../http/route-audit.ts'
export type { RouteOptions } from '../http/route-options.ts'
export type { IdempotencyContextOptions } from './nest-decorators.ts'
export type {
  IdempotencyModuleAsyncOptions,
  IdempotencyModuleOptions,
  IdempotencyOptionsFactory,
} from './nest-module.ts'
export type { NestRequest } from './nest-request.ts'
export type { IdempotencyStatusOptions } from './nest-status.ts'
