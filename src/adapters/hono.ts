/**
 * Hono adapter. Translates only: what a key means and what each outcome answers is decided in
 * `http/guard.ts`.
 *
 * @module
 */
import type { Context, Env, MiddlewareHandler } from 'hono'
import type { Engine } from '../core/engine.ts'
import {
  InvalidOptionsError,
  InvalidRequestError,
  NotExecutedError,
  OutcomeUnknownError,
} from '../core/errors.ts'
import { looksLikeLostCall } from '../core/failure.ts'
import type { ExchangeBody, HttpExchange } from '../http/exchange.ts'
import type { GuardOptions } from '../http/guard-options.ts'
import { createGuard } from '../http/guard.ts'
import { markGuard } from '../http/route-audit.ts'
import { forRoute, type RouteOptions } from '../http/route-options.ts'
import { AnswerWatch } from './hono-answer.ts'
import { readBody } from './hono-body.ts'
import { routeOf, warnIfUseless } from './hono-route.ts'
import { WebHandler, type WebHandlerContext } from './web-handler.ts'

export { currentIdempotency } from '../http/current.ts'
export { singleTenant } from '../http/guard-options.ts'
export { requireProtected } from '../http/route-audit.ts'
export { auditRoutes } from './hono-audit.ts'
export { idempotencyStatus } from './hono-status.ts'
export type { HandlerContext } from '../http/handler-context.ts'
export type { GivenReply } from '../http/http-reply.ts'
export type { AuditedRoute, AuditOptions, RouteAudit } from '../http/route-audit.ts'
export type { RouteOptions } from '../http/route-options.ts'
export type { HonoStatusOptions, StatusHandler } from './hono-status.ts'
export type { WebHandlerContext } from './web-handler.ts'

declare module 'hono' {
  interface ContextVariableMap {
    /** The key of this request and what its handler may do about it; absent where unprotected. */
    idempotency: WebHandlerContext | undefined
  }
}

// oxlint-disable-next-line typescript/no-explicit-any -- As Hono's own middlewares: fits every app.
export type HonoOptions<E extends Env = any> = GuardOptions<Context<E>>

// oxlint-disable-next-line typescript/no-explicit-any -- The same.
export interface IdempotencyMiddleware<E extends Env = any> extends MiddlewareHandler<E> {
  /** The engine behind it: `await middleware.engine.close()` belongs into a graceful stop. */
  readonly engine: Engine

  /** The same for a route that wants some of it otherwise: `guard.with({ keyRequired: false })`. */
  with(route: RouteOptions<Context<E>>): IdempotencyMiddleware<E>
}

/**
 * Runs each `Idempotency-Key` at most once and replays its reply after that.
 *
 * @example
 * ```ts
 * const guard = idempotency({ store, tenant: (c) => c.get('account') })
 * app.post('/payments', guard, (c) => c.json({ paid: true }, 201))
 * ```
 */
// oxlint-disable-next-line typescript/no-explicit-any -- The same.
export function idempotency<E extends Env = any>(
  options: HonoOptions<E>,
): IdempotencyMiddleware<E> {
  const guard = createGuard(options)

  const middleware: MiddlewareHandler<E> = async function idempotency(c, next) {
    if (!guard.protects(c.req.method)) {
      warnIfUseless(c, (method) => guard.protects(method))
      return next()
    }
    if (c.get('idempotency') !== undefined) throw mountedTwice()
    // A copy, and without a look at `c.res`: Hono merges headers differently once that was seen.
    const before = new Headers(c.newResponse(null).headers)
    const watch = new AnswerWatch(c)
    const held = new WebHandler((context) => {
      if (watch.isAnswered) throw tooEarly()
      c.set('idempotency', context)
      watch.enter(context)
      return respond(c, context, { next, watch })
    })
    const answer = await guard.handle(c, new HonoExchange(c), held)
    const wasAnswered = watch.end()
    if (answer.kind === 'pass') return next()
    // Forgotten first: Hono merges the headers of the old response into the new one, and into what
    // it makes of an error.
    if (c.finalized && !wasAnswered) c.res = undefined
    const response = await held.answer(answer, unreachable)
    if (wasAnswered) return void response.body?.cancel().catch(() => undefined)
    c.res = answer.kind === 'reply' ? withHeaders(before, response) : response
  }

  markGuard(middleware, (method) => guard.protects(method))
  return Object.assign(middleware, {
    engine: guard.engine,
    with: (route: RouteOptions<Context<E>>) => idempotency<E>(forRoute(options, route)),
  })
}

/**
 * The key of this request and what its handler may do about it. Throws where the route is not
 * protected, so that a forgotten `idempotency()` is found by the first request.
 */
export function idempotencyOf(c: Context): WebHandlerContext {
  const context = c.get('idempotency')
  if (context !== undefined) return context
  throw new InvalidRequestError(
    `${c.req.method} ${c.req.path} is not protected: mount idempotency() before its handler, and ` +
      'send a key with the request',
  )
}

/** Runs what is behind the guard, and gives the response that it has left on the context. */
async function respond(
  c: Context,
  context: WebHandlerContext,
  { next, watch }: { readonly next: () => Promise<void>; readonly watch: AnswerWatch },
): Promise<Response> {
  try {
    await next()
  } catch (error) {
    // What app.onError throws says nothing of the work; the error that it was given does.
    throw watch.isAnswered ? error : (c.error ?? error)
  }
  if (watch.isAnswered) throw tooLate()
  report(c, context)
  // What is asked for and not there would be made up, as an empty 200.
  return c.finalized ? c.res : (undefined as unknown as Response)
}

/**
 * Hono has made a reply of the error by now, and kept it. An HTTPException is a reply that was
 * thrown: where it tells no more than its status, that counts.
 */
function report(c: Context, context: WebHandlerContext): void {
  const { error } = c
  if (error === undefined) return
  const isReply = 'getResponse' in error && error.cause === undefined && !('code' in error)
  if (!isReply || looksLikeLostCall(error)) context.failed(error)
}

/** The second guard would find the key held by the first, and refuse every request for ever. */
function mountedTwice(): InvalidOptionsError {
  return new InvalidOptionsError(
    'idempotency() is mounted twice on the way to this handler, as by app.use() and on its ' +
      'route: mount it once',
  )
}

/** A middleware before us has given up waiting: nobody would hear of what the handler does. */
function tooEarly(): NotExecutedError {
  return new NotExecutedError('the request was answered before its handler could run')
}

/** Its reply is lost, but not what it has done. */
function tooLate(): OutcomeUnknownError {
  return new OutcomeUnknownError('the handler has ended after its request was answered')
}

/** A class, as `ExecutionRequest`, and because an accessor of each request's own would keep it. */
class HonoExchange implements HttpExchange {
  readonly method: string
  readonly path: string
  readonly query: string
  readonly #c: Context

  constructor(c: Context) {
    const { pathname, search } = new URL(c.req.url)
    this.method = c.req.method
    this.path = pathname
    this.query = search.slice(1)
    this.#c = c
  }

  get route(): string {
    return routeOf(this.#c, this.path)
  }

  header(name: string): string | undefined {
    return this.#c.req.header(name)
  }

  body(bytesMax: number): Promise<ExchangeBody> {
    return readBody(this.#c, bytesMax)
  }
}

/** A reply of ours, with what was set before us and is not about it: CORS, request ids, cookies. */
function withHeaders(before: Headers, response: Response): Response {
  for (const [name, value] of before) {
    if (!response.headers.has(name) || name === 'set-cookie') response.headers.append(name, value)
  }
  return response
}

function unreachable(): never {
  throw new Error('a request that passes is not answered here')
}
