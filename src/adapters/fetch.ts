/**
 * Adapter for handlers of web-standard requests: Next.js routes, Bun, Deno, Workers and whatever
 * else calls `(request) => response`. Translates only: what a key means and what each outcome
 * answers is decided in `http/guard.ts`.
 *
 * @module
 */
import type { Engine } from '../core/engine.ts'
import { InvalidOptionsError, InvalidRequestError } from '../core/errors.ts'
import { describe } from '../core/options.ts'
import type { HttpExchange } from '../http/exchange.ts'
import type { GuardOptions } from '../http/guard-options.ts'
import { createGuard, type Guard } from '../http/guard.ts'
import { markGuard } from '../http/route-audit.ts'
import { forRoute, type RouteOptions } from '../http/route-options.ts'
import { readRequest } from './web-body.ts'
import { WebHandler, type WebHandlerContext } from './web-handler.ts'

export { currentIdempotency } from '../http/current.ts'
export { singleTenant } from '../http/guard-options.ts'
export { idempotencyStatus } from './fetch-status.ts'
export type { HandlerContext } from '../http/handler-context.ts'
export type { GivenReply } from '../http/http-reply.ts'
export type { RouteOptions } from '../http/route-options.ts'
export type { FetchStatusOptions, StatusHandler } from './fetch-status.ts'
export type { WebHandlerContext } from './web-handler.ts'

export type FetchOptions<Req extends Request = Request> = GuardOptions<Req>

/** A handler of requests. What its runtime gives it besides the request is passed on. */
export type FetchHandler<Req extends Request, Rest extends readonly unknown[]> = (
  request: Req,
  ...rest: Rest
) => Response | Promise<Response>

export interface ProtectedHandler<Req extends Request, Rest extends readonly unknown[]> {
  (request: Req, ...rest: Rest): Promise<Response>
  /** The engine behind it: `await handler.engine.close()` belongs into a graceful stop. */
  readonly engine: Engine
}

/** Protects handlers that share their options. */
export interface Protect<Req extends Request = Request> {
  <Own extends Req = Req, Rest extends readonly unknown[] = []>(
    handler: FetchHandler<Own, Rest>,
  ): ProtectedHandler<Own, Rest>

  /** The engine behind it: `await protect.engine.close()` belongs into a graceful stop. */
  readonly engine: Engine

  /** The same for a route that wants some of it otherwise: `protect.with({ operation: 'pay' })`. */
  with(route: RouteOptions<Req>): Protect<Req>
}

const contexts = new WeakMap<Request, WebHandlerContext>()
/** Those whose handler runs right now. */
const entered = new WeakSet<Request>()
const protectedHandlers = new WeakSet<object>()

/**
 * Protects handlers of several routes: each `Idempotency-Key` runs at most once, and its reply is
 * replayed after that. Say what each of them does: `operation`.
 *
 * @example
 * ```ts
 * export const protect = idempotency({ store, tenant: accountOf })
 * // app/api/payments/route.ts
 * export const POST = protect.with({ operation: 'pay' })(async (request) => { … })
 * ```
 */
export function idempotency<Req extends Request = Request>(
  options: FetchOptions<Req>,
): Protect<Req> {
  const guard = createGuard(options)
  const protect = <Own extends Req, Rest extends readonly unknown[]>(
    handler: FetchHandler<Own, Rest>,
  ) => protectedBy(guard, handler)
  return Object.assign(protect, {
    engine: guard.engine,
    with: (route: RouteOptions<Req>) => idempotency<Req>(forRoute(options, route)),
  })
}

/**
 * Protects one handler: each `Idempotency-Key` runs at most once, and its reply is replayed after
 * that. Where it serves several routes, or its route has parameters, say what it does: `operation`.
 *
 * @example
 * ```ts
 * // app/api/payments/route.ts
 * export const POST = withIdempotency(pay, { store, tenant: accountOf, operation: 'pay' })
 * ```
 */
export function withIdempotency<
  Req extends Request = Request,
  Rest extends readonly unknown[] = [],
>(handler: FetchHandler<Req, Rest>, options: FetchOptions<Req>): ProtectedHandler<Req, Rest> {
  return idempotency<Req>(options)(handler)
}

/** The key of this request and what its handler may do about it. Throws where there is none. */
export function idempotencyOf(request: Request): WebHandlerContext {
  const context = contexts.get(request)
  if (context !== undefined) return context
  throw new InvalidRequestError(
    `${request.method} ${new URL(request.url).pathname} is not protected: wrap its handler in ` +
      'withIdempotency(), and send a key with the request',
  )
}

function protectedBy<Req extends Request, Rest extends readonly unknown[]>(
  guard: Guard<Req>,
  handler: FetchHandler<Req, Rest>,
): ProtectedHandler<Req, Rest> {
  if (typeof handler !== 'function') {
    throw new InvalidOptionsError(`idempotency needs a handler, got ${describe(handler)}`)
  }
  if (protectedHandlers.has(handler)) throw protectedTwice()

  const protectedHandler = async (request: Req, ...rest: Rest): Promise<Response> => {
    if (entered.has(request)) throw protectedTwice()
    const held = new WebHandler(async (context) => {
      contexts.set(request, context)
      entered.add(request)
      try {
        return await handler(request, ...rest)
      } finally {
        entered.delete(request)
      }
    })
    const answer = await guard.handle(request, toExchange(request), held)
    return held.answer(answer, () => handler(request, ...rest))
  }

  protectedHandlers.add(protectedHandler)
  markGuard(protectedHandler, (method) => guard.protects(method))
  return Object.assign(protectedHandler, { engine: guard.engine })
}

/** The second guard would find the key held by the first, and refuse every request for ever. */
function protectedTwice(): InvalidOptionsError {
  return new InvalidOptionsError(
    'this handler is wrapped in withIdempotency() twice, as by itself and with its router: ' +
      'wrap it once',
  )
}

function toExchange(request: Request): HttpExchange {
  const { pathname, search } = new URL(request.url)
  return {
    method: request.method,
    path: pathname,
    query: search.slice(1),
    // Nobody has matched it: every path is a route of its own.
    route: pathname,
    header: (name) => request.headers.get(name) ?? undefined,
    body: (bytesMax) => readRequest(request, bytesMax),
  }
}
