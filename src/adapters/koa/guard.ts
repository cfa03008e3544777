/**
 * The middleware for Koa 2 and 3. The adapter only translates: `http/guard/guard.ts` decides what a
 * key means and how each outcome is answered.
 */
import type { Context, DefaultContext, DefaultState, Next, ParameterizedContext } from 'koa'
import { InvalidRequestError } from '../../core/errors.ts'
import type { ExchangeBody, HttpExchange } from '../../http/guard/exchange.ts'
import type { GuardOptions } from '../../http/guard/guard-options.ts'
import { controlsOf, createGuard, type GuardControls } from '../../http/guard/guard.ts'
import type { HandlerContext } from '../../http/guard/handler-context.ts'
import { mountedTwice } from '../../http/guard/misplaced-guard.ts'
import { markGuard } from '../../http/guard/route-audit.ts'
import { forRoute, type RouteOptions } from '../../http/guard/route-options.ts'
import { http2Refusal } from '../node-http/http-version.ts'
import { KoaHandler } from './handler.ts'
import { routeOf, warnIfUseless } from './route.ts'
import { splitUrl } from '../node-http/node-handler.ts'

declare module 'koa' {
  // On the base type, so that contexts with an application's own types have it too.
  interface ExtendableContext {
    /** The idempotency context. `undefined` on routes without a guard: see `idempotencyOf`. */
    idempotency?: HandlerContext
  }
}

/** The context that is passed to options such as `tenant`. */
type Ctx<StateT, ContextT> = ParameterizedContext<StateT, ContextT>

export type IdempotencyOptions<StateT = DefaultState, ContextT = DefaultContext> = GuardOptions<
  Ctx<StateT, ContextT>
>

export interface IdempotencyMiddleware<
  StateT = DefaultState,
  ContextT = DefaultContext,
> extends GuardControls {
  (ctx: Ctx<StateT, ContextT>, next: Next): Promise<void>

  /** Returns a copy with these options overridden: `guard.with({ keyRequired: false })`. */
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
  options: IdempotencyOptions<StateT, ContextT>,
): IdempotencyMiddleware<StateT, ContextT> {
  const guard = createGuard(options)

  async function idempotencyGuard(typedCtx: Ctx<StateT, ContextT>, next: Next): Promise<void> {
    // The same object without the types that an application adds.
    const ctx = typedCtx as unknown as Context
    if (!guard.protects(ctx.method)) {
      warnIfUseless(ctx, idempotencyGuard, (method) => guard.protects(method))
      return void (await next())
    }
    check(ctx)
    const handler = new KoaHandler(ctx, next)
    guard
      .handle(typedCtx, new KoaExchange(ctx, idempotencyGuard, handler), handler)
      .then((answer) => handler.act(answer))
      .catch((error: unknown) => handler.act({ kind: 'error', error }))
    return handler.passed
  }

  markGuard(idempotencyGuard, (method) => guard.protects(method))
  return Object.assign(idempotencyGuard, {
    ...controlsOf(guard),
    with: (route: RouteOptions<Ctx<StateT, ContextT>>) => {
      return idempotency<StateT, ContextT>(forRoute(options, route))
    },
  })
}

/**
 * The idempotency context of a request: its key, and the methods that its handler can call. Throws
 * if the request has none, so that the first request finds a forgotten `idempotency()`.
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
  if (ctx.idempotency !== undefined) throw mountedTwice()
  const refusal = http2Refusal(ctx.req)
  if (refusal !== undefined) throw refusal
}

/** A class, because an accessor per request would keep the request until a full collection. */
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
