/**
 * Hono adapter. It only translates: `http/guard/guard.ts` decides what a key means and how each
 * outcome is answered.
 *
 * @module
 */
export { idempotency, idempotencyOf } from './guard.ts'
export type { IdempotencyOptions, IdempotencyMiddleware } from './guard.ts'
export { requireProtected } from '../../http/guard/route-audit.ts'
export { auditRoutes } from './audit.ts'
export { idempotencyStatus } from './status.ts'
export type { HandlerContext } from '../../http/guard/handler-context.ts'
export type { ReplyInit } from '../../http/reply/http-reply.ts'
export type { AuditedRoute, AuditOptions, RouteAudit } from '../../http/guard/route-audit.ts'
export type { RouteOptions } from '../../http/guard/route-options.ts'
export type { IdempotencyStatusOptions, StatusHandler } from './status.ts'
export type { WebHandlerContext } from '../web/handler.ts'
