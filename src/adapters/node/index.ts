/**
 * Adapter for plain `node:http` servers. It only translates: `http/guard/guard.ts`
 * decides what a key means and how each outcome is answered.
 *
 * @module
 */
export { idempotency, idempotencyOf, withIdempotency } from './guard.ts'
export type { NodeListener, IdempotencyOptions, Protect, ProtectedListener } from './guard.ts'
export { idempotencyStatus } from './status.ts'
export type { IdempotencyStatusOptions } from './status.ts'
export type { HandlerContext } from '../../http/guard/handler-context.ts'
export type { ReplyInit } from '../../http/reply/http-reply.ts'
export type { RouteOptions } from '../../http/guard/route-options.ts'
