/**
 * Adapter for handlers of web-standard requests, `(request) => response`: Next.js routes, Bun,
 * Deno, Workers and others. It only translates: `http/guard/guard.ts` decides what a key means and
 * how each outcome is answered.
 *
 * @module
 */
export { idempotency, idempotencyOf, withIdempotency } from './guard.ts'
export type { FetchHandler, IdempotencyOptions, Protect, ProtectedHandler } from './guard.ts'
export { idempotencyStatus } from './status.ts'
export type { HandlerContext } from '../../http/guard/handler-context.ts'
export type { ReplyInit } from '../../http/reply/http-reply.ts'
export type { RouteOptions } from '../../http/guard/route-options.ts'
export type { IdempotencyStatusOptions, StatusHandler } from './status.ts'
export type { WebHandlerContext } from '../web/handler.ts'
