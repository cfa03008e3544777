/**
 * Koa adapter (2 and 3). Translates only: what a key means and what each outcome answers is
 * decided in `http/guard.ts`.
 *
 * @module
 */
import type { Context, DefaultContext, DefaultState, Next, ParameterizedContext } from 'koa'
import type { Engine } from '../core/engine.ts'
import { InvalidOptionsError, InvalidRequestError } from '../core/errors.ts'
import type { ExchangeBody, HttpExchange } from '../http/exchange.ts'
import type { GuardOptions } from '../http/guard-options.ts'
import { createGuard } from '../http/guard.ts'
import type { HandlerContext } from '../http/handler-context.ts'
import { markGuard } from '../http/route-audit.ts'
import { forRoute, type RouteOptions } from '../http/route-options.ts'
import { http2Refusal } from './http-version.ts'
import { KoaHandler } from './koa-handler.ts'
import { routeOf, warnIfUseless } from './koa-route.ts'
import { splitUrl } from './node-handler.ts'

export { currentIdempotency } from '../http/current.ts'
export { singleTenant } from '../http/guard-options.ts'
export { requireProtected } from '../http/route-audit.ts'
export { auditRoutes } from './koa-audit.ts'
export { idempotencyStatus } from './koa-status.ts'
export type { HandlerContext } from '../http/handler-context.ts'
export type { GivenReply } from '../http/http-reply.ts'
export type { AuditedRoute, RouteAudit } from '../http/route-audit.ts'
export type { RouteOptions } from '../http/route-options.ts'
export type { KoaAuditOptions } from './koa-audit.ts'
export type { KoaStatusOptions, StatusHandler } from './koa-status.ts'

declare module 'koa' {
  // Every context has it, whatever the application says of its own.
  interface ExtendableContext {
    /** The key of this request and what its handler may do about it; absent where unprotected. */
    idempotency?: HandlerContext
  }
}

/** What options such as `tenant` are given. */
type Ctx<StateT, ContextT> = ParameterizedContext<StateT, ContextT>

export type KoaOptions<StateT = DefaultState, ContextT = DefaultContext> = GuardOptions<
  Ctx<StateT, ContextT>
>

export interface IdempotencyMiddleware<StateT = DefaultState, ContextT = DefaultContext> {
  (ctx: Ctx<StateT, ContextT>, next: Next): Promise<void>

  /** The engine behind it: `await middleware.engine.close()` belongs into a graceful stop. */
  readonly engine: Engine

  /** The same for a route that wants some of it otherwise: `guard.with({ keyRequired: false })`. */
  with(route: RouteOptions<Ctx<StateT, ContextT>>): IdempotencyMiddleware<StateT, ContextT>
}

/**
 * Runs each `Idempotency-Key` at most once and replays its reply after that.
 *
 * @example
 * ```ts
 * const store = sqliteStore({ path: 'data/keys.db' })
 * const guard = idempotency({ store, tenant: (ctx) => ctx.state.account })
 * router.post('/payments', guard, bodyParser(), pay)
 * ```
 */
export function idempotency<StateT = DefaultState, ContextT = DefaultContext>(
  options: KoaOptions<StateT, ContextT>,
): IdempotencyMiddleware<StateT, ContextT> {
  const guard = createGuard(options)

  async function idempotencyGuard(given: Ctx<StateT, ContextT>, next: Next): Promise<void> {
    // The same object: only what an application adds to it is not known here.
    const ctx = given as unknown as Context
    if (!guard.protects(ctx.method)) {
      warnIfUseless(ctx, idempotencyGuard, (method) => guard.protects(method))
      return void (await next())
    }
    check(ctx)
    const handler = new KoaHandler(ctx, next)
    guard
      .handle(given, new KoaExchange(ctx, idempotencyGuard, handler), handler)
      .then((answer) => handler.act(answer))
      .catch((error: unknown) => handler.act({ kind: 'error', error }))
    return handler.passed
  }

  markGuard(idempotencyGuard, (method) => guard.protects(method))
  return Object.assign(idempotencyGuard, {
    engine: guard.engine,
    with: (route: RouteOptions<Ctx<StateT, ContextT>>) => {
      return idempotency<StateT, ContextT>(forRoute(options, route))
    },
  })
}

/**
 * The key of this request and what its handler may do about it. Throws where the route is not
 * protected, so that a forgotten `idempotency()` is found by the first request.
 */
export function idempotencyOf(
  ctx: Pick<Context, 'idempotency' | 'method' | 'path'>,
): HandlerContext {
  if (ctx.idempotency !== undefined) return ctx.idempotency
  throw new InvalidRequestError(
    `${ctx.method} ${ctx.path} is not protected: mount idempotency() before its handler, and ` +
      'send a key with the request',
  )
}

function check(ctx: Context): void {
  if (ctx.idempotency !== undefined) {
    // The second guard would find the key held by the first, and refuse every request for ever.
    throw new InvalidOptionsError(
      'idempotency() is mounted twice on the way to this handler, as by app.use() and on its ' +
        'route: mount it once',
    )
  }
  const refusal = http2Refusal(ctx.req)
  if (refusal !== undefined) throw refusal
}

/** A class, as `ExecutionRequest`, and because an accessor of each request's own would keep it. */
class KoaExchange implements HttpExchange {
  readonly method: string
  readonly path: string
  readonly query: string
  readonly #ctx: Context
  readonly #guard: unknown
  readonly #handler: KoaHandler

  constructor(ctx: Context, guard: unknown, handler: KoaHandler) {
    const [path, query] = splitUrl(ctx.originalUrl)
    this.method = ctx.method
    this.path = path
    this.query = query
    this.#ctx = ctx
    this.#guard = guard
    this.#handler = handler
  }

  get route(): string {
    return routeOf(this.#ctx, this.#guard, this.path)
  }

  header(name: string): string | readonly string[] | undefined {
    return this.#ctx.req.headers[name]
  }

  body(bytesMax: number): Promise<ExchangeBody> | ExchangeBody {
    return this.#handler.body(bytesMax)
  }
}
