/**
 * The wrapper for handlers of web-standard requests, `(request) => response`. The adapter only
 * translates: `http/guard/guard.ts` decides what a key means and how each outcome is answered.
 */
import { InvalidOptionsError, InvalidRequestError } from '../../core/errors.ts'
import { describe } from '../../core/options.ts'
import type { HttpExchange } from '../../http/guard/exchange.ts'
import type { GuardOptions } from '../../http/guard/guard-options.ts'
import { controlsOf, createGuard, type Guard, type GuardControls } from '../../http/guard/guard.ts'
import { markGuard } from '../../http/guard/route-audit.ts'
import { forRoute, type RouteOptions } from '../../http/guard/route-options.ts'
import { readRequest } from '../web/body.ts'
import { WebHandler, type WebHandlerContext } from '../web/handler.ts'

export type IdempotencyOptions<Req extends Request = Request> = GuardOptions<Req>

/** A request handler. Further arguments from the runtime are passed on. */
export type FetchHandler<Req extends Request, Rest extends readonly unknown[]> = (
  request: Req,
  ...rest: Rest
) => Response | Promise<Response>

/** A handler behind a guard. */
export interface ProtectedHandler<
  Req extends Request,
  Rest extends readonly unknown[],
> extends GuardControls {
  (request: Req, ...rest: Rest): Promise<Response>
}

/** Protects handlers that share their options. */
export interface Protect<Req extends Request = Request> extends GuardControls {
  <Own extends Req = Req, Rest extends readonly unknown[] = []>(
    handler: FetchHandler<Own, Rest>,
  ): ProtectedHandler<Own, Rest>

  /** Returns a copy with these options overridden: `protect.with({ operation: 'pay' })`. */
  with(route: RouteOptions<Req>): Protect<Req>
}

const contexts = new WeakMap<Request, WebHandlerContext>()
/** Requests whose handler runs now. */
const entered = new WeakSet<Request>()
const protectedHandlers = new WeakSet<object>()

/**
 * Protects several handlers with shared options: each `Idempotency-Key` runs at most once, and its
 * reply is replayed after that. Name the `operation` of each handler.
 *
 * @example
 * ```ts
 * export const protect = idempotency({ store, tenant: accountOf })
 * // app/api/payments/route.ts
 * export const POST = protect.with({ operation: 'pay' })(async (request) => { … })
 * ```
 */
export function idempotency<Req extends Request = Request>(
  options: IdempotencyOptions<Req>,
): Protect<Req> {
  const guard = createGuard(options)
  const protect = <Own extends Req, Rest extends readonly unknown[]>(
    handler: FetchHandler<Own, Rest>,
  ) => protectedBy(guard, handler)
  return Object.assign(protect, {
    ...controlsOf(guard),
    with: (route: RouteOptions<Req>) => idempotency<Req>(forRoute(options, route)),
  })
}

/**
 * Protects one handler: each `Idempotency-Key` runs at most once, and its reply is replayed after
 * that. Name the `operation` if the handler serves several routes or its route has parameters:
 * without a name, every path is a separate operation.
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
>(handler: FetchHandler<Req, Rest>, options: IdempotencyOptions<Req>): ProtectedHandler<Req, Rest> {
  return idempotency<Req>(options)(handler)
}

/**
 * The idempotency context of a request: its key, and the methods that its handler can call. Throws
 * if the request has none, so that the first request finds an unprotected handler.
 */
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
  if (protectedHandlers.has(handler)) throw wrappedTwice()

  const protectedHandler = async (request: Req, ...rest: Rest): Promise<Response> => {
    if (entered.has(request)) throw wrappedTwice()
    const webHandler = new WebHandler(async (context) => {
      contexts.set(request, context)
      entered.add(request)
      try {
        return await handler(request, ...rest)
      } finally {
        entered.delete(request)
      }
    })
    const answer = await guard.handle(request, toExchange(request), webHandler)
    return webHandler.answer(answer, () => handler(request, ...rest))
  }

  protectedHandlers.add(protectedHandler)
  markGuard(protectedHandler, (method) => guard.protects(method))
  return Object.assign(protectedHandler, controlsOf(guard))
}

/** The inner guard would find that the outer one holds the key, and refuse every request. */
function wrappedTwice(): InvalidOptionsError {
  return new InvalidOptionsError(
    'this handler is wrapped in withIdempotency() twice, for example alone and together with ' +
      'its router: wrap it once',
  )
}

function toExchange(request: Request): HttpExchange {
  const { pathname, search } = new URL(request.url)
  return {
    method: request.method,
    path: pathname,
    query: search.slice(1),
    // No router has matched the path, so each path is a separate route.
    route: pathname,
    header: (name) => request.headers.get(name) ?? undefined,
    body: (bytesMax) => readRequest(request, bytesMax),
  }
}
