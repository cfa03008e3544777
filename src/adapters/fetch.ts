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
import { createGuard } from '../http/guard.ts'
import { markGuard } from '../http/route-audit.ts'
import { forRoute, type RouteOptions } from '../http/route-options.ts'
import { readRequest } from './web-body.ts'
import { WebHandler, type WebHandlerContext } from './web-handler.ts'

export { currentIdempotency } from '../http/current.ts'
export { singleTenant } from '../http/guard-options.ts'
export type { HandlerContext } from '../http/handler-context.ts'
export type { GivenReply } from '../http/http-reply.ts'
export type { RouteOptions } from '../http/route-options.ts'
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

const contexts = new WeakMap<Request, WebHandlerContext>()
/** Those whose handler runs right now. */
const entered = new WeakSet<Request>()

/**
 * Runs each `Idempotency-Key` at most once and replays its reply after that. Where one handler
 * serves several routes, or a route has parameters in its path, say what it does: `operation`.
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
  if (typeof handler !== 'function') {
    throw new InvalidOptionsError(`withIdempotency needs a handler, got ${describe(handler)}`)
  }
  const guard = createGuard(options)

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

  markGuard(protectedHandler, (method) => guard.protects(method))
  return Object.assign(protectedHandler, { engine: guard.engine })
}

/**
 * The options of one handler, from those of all: what it says itself comes first.
 *
 * @example
 * ```ts
 * const all = { store, tenant: accountOf }
 * export const POST = withIdempotency(pay, routeOptions(all, { operation: 'pay' }))
 * ```
 */
export function routeOptions<Req extends Request = Request>(
  options: FetchOptions<Req>,
  route: RouteOptions<Req>,
): FetchOptions<Req> {
  return forRoute(options, route)
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

/** The second guard would find the key held by the first, and refuse every request for ever. */
function protectedTwice(): InvalidOptionsError {
  return new InvalidOptionsError('this handler is wrapped in withIdempotency() twice: wrap it once')
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
