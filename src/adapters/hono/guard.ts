/**
 * The middleware for Hono. The adapter only translates: `http/guard/guard.ts` decides what a key
 * means and how each outcome is answered.
 */
import type { Context, Env, MiddlewareHandler } from 'hono'
import { InvalidRequestError, NotExecutedError, OutcomeUnknownError } from '../../core/errors.ts'
import { looksLikeLostCall } from '../../core/attempt/failure.ts'
import type { ExchangeBody, HttpExchange } from '../../http/guard/exchange.ts'
import type { GuardOptions } from '../../http/guard/guard-options.ts'
import { controlsOf, createGuard, type GuardControls } from '../../http/guard/guard.ts'
import { mountedTwice } from '../../http/guard/misplaced-guard.ts'
import { markGuard } from '../../http/guard/route-audit.ts'
import { forRoute, type RouteOptions } from '../../http/guard/route-options.ts'
import { AnswerWatch } from './answer-watch.ts'
import { readBody } from './body.ts'
import { routeOf, warnIfUseless } from './route.ts'
import { WebHandler, type WebHandlerContext } from '../web/handler.ts'

declare module 'hono' {
  interface ContextVariableMap {
    /** The idempotency context. `undefined` if the request is unprotected: see `idempotencyOf`. */
    idempotency: WebHandlerContext | undefined
  }
}

// oxlint-disable-next-line typescript/no-explicit-any -- Fits every app, like Hono's middlewares.
export type IdempotencyOptions<E extends Env = any> = GuardOptions<Context<E>>

// oxlint-disable-next-line typescript/no-explicit-any -- As above.
export interface IdempotencyMiddleware<E extends Env = any>
  extends MiddlewareHandler<E>, GuardControls {
  /** Returns a copy with these options overridden: `guard.with({ keyRequired: false })`. */
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
// oxlint-disable-next-line typescript/no-explicit-any -- As above.
export function idempotency<E extends Env = any>(
  options: IdempotencyOptions<E>,
): IdempotencyMiddleware<E> {
  const guard = createGuard(options)

  const middleware: MiddlewareHandler<E> = async function idempotency(c, next) {
    if (!guard.protects(c.req.method)) {
      warnIfUseless(c, (method) => guard.protects(method))
      return next()
    }
    if (c.get('idempotency') !== undefined) throw mountedTwice()
    // A copy that does not read `c.res`: Hono merges headers differently after `c.res` was read.
    const before = new Headers(c.newResponse(null).headers)
    const watch = new AnswerWatch(c)
    const handler = new WebHandler((context) => {
      if (watch.isAnswered) throw answeredBeforeHandler()
      c.set('idempotency', context)
      watch.enter(context)
      return respond(c, context, { next, watch })
    })
    const answer = await guard.handle(c, new HonoExchange(c), handler)
    const wasAnswered = watch.end()
    if (answer.kind === 'pass') return next()
    // Cleared first, because Hono merges the headers of the old response into the new one, and into
    // the reply to an error.
    if (c.finalized && !wasAnswered) c.res = undefined
    const response = await handler.answer(answer, unreachable)
    if (wasAnswered) return void response.body?.cancel().catch(() => undefined)
    c.res = answer.kind === 'reply' ? withHeaders(before, response) : response
  }

  markGuard(middleware, (method) => guard.protects(method))
  return Object.assign(middleware, {
    ...controlsOf(guard),
    with: (route: RouteOptions<Context<E>>) => idempotency<E>(forRoute(options, route)),
  })
}

/**
 * The idempotency context of a request: its key, and the methods that its handler can call. Throws
 * if the request has none, so that the first request finds a forgotten `idempotency()`.
 */
export function idempotencyOf(c: Context): WebHandlerContext {
  const context = c.get('idempotency')
  if (context !== undefined) return context
  throw new InvalidRequestError(
    `${c.req.method} ${c.req.path} is not protected: mount idempotency() before its handler, and ` +
      'send a key with the request',
  )
}

/** Runs the handlers behind the guard, and returns the response that they set on the context. */
async function respond(
  c: Context,
  context: WebHandlerContext,
  { next, watch }: { readonly next: () => Promise<void>; readonly watch: AnswerWatch },
): Promise<Response> {
  try {
    await next()
  } catch (error) {
    // If `app.onError` throws, the error of the handler counts and not the one of `app.onError`.
    throw watch.isAnswered ? error : (c.error ?? error)
  }
  if (watch.isAnswered) throw answeredBeforeEnd()
  reportError(c, context)
  // Without a response, reading `c.res` would create an empty 200.
  return c.finalized ? c.res : (undefined as unknown as Response)
}

/**
 * Reports an error that Hono has turned into a reply. An HTTPException is a thrown reply, whose
 * status decides: it is reported only if it has a cause or a code, or looks like a lost call.
 */
function reportError(c: Context, context: WebHandlerContext): void {
  const { error } = c
  if (error === undefined) return
  const isReply = 'getResponse' in error && error.cause === undefined && !('code' in error)
  if (!isReply || looksLikeLostCall(error)) context.failed(error)
}

/** A middleware before the guard has stopped waiting, so the handler's reply would be lost. */
function answeredBeforeHandler(): NotExecutedError {
  return new NotExecutedError(
    'the request was answered before its handler could run: every middleware before ' +
      'idempotency() must await next()',
  )
}

/** The reply of the handler is lost, but its effects are not. */
function answeredBeforeEnd(): OutcomeUnknownError {
  return new OutcomeUnknownError(
    'the request was answered before its handler ended, so the reply of the handler is lost',
  )
}

/** A class, because an accessor per request would keep the request until a full collection. */
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

/** A reply of the guard, with the headers that were set before it: CORS, request ids, cookies. */
function withHeaders(before: Headers, response: Response): Response {
  for (const [name, value] of before) {
    if (!response.headers.has(name) || name === 'set-cookie') response.headers.append(name, value)
  }
  return response
}

function unreachable(): never {
  throw new Error('unreachable: next() answers a request that passes')
}
