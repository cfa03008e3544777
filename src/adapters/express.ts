/**
 * Express adapter (4 and 5). Translates only: what a key means and what each outcome answers is
 * decided in `http/guard.ts`.
 *
 * @module
 */
import type { NextFunction, Request, Response } from 'express'
import type { Engine } from '../core/engine.ts'
import { InvalidOptionsError, InvalidRequestError } from '../core/errors.ts'
import { warnOnce } from '../core/warn.ts'
import type { ExchangeBody, HttpExchange } from '../http/exchange.ts'
import type { GuardOptions } from '../http/guard-options.ts'
import { createGuard } from '../http/guard.ts'
import type { HandlerContext } from '../http/handler-context.ts'
import { markGuard } from '../http/route-audit.ts'
import { forRoute, type RouteOptions } from '../http/route-options.ts'
import { seesErrors } from './express-errors.ts'
import { routeOf } from './express-route.ts'
import { warnIfUseless } from './express-useless.ts'
import { http2Refusal } from './http-version.ts'
import { NodeHandler, splitUrl, type NodeFlow } from './node-handler.ts'

export { currentIdempotency } from '../http/current.ts'
export { singleTenant } from '../http/guard-options.ts'
export { requireProtected } from '../http/route-audit.ts'
export { auditRoutes } from './express-audit.ts'
export { idempotencyErrors } from './express-errors.ts'
export { idempotencyStatus } from './express-status.ts'
export { keepRawBody } from './node-handler.ts'
export type { HandlerContext } from '../http/handler-context.ts'
export type { GivenReply } from '../http/http-reply.ts'
export type { AuditedRoute, RouteAudit } from '../http/route-audit.ts'
export type { RouteOptions } from '../http/route-options.ts'
export type { ExpressAuditOptions } from './express-audit.ts'
export type { ExpressStatusOptions, StatusHandler } from './express-status.ts'

declare global {
  namespace Express {
    interface Request {
      /** The key of this request and what its handler may do about it; absent where unprotected. */
      idempotency?: HandlerContext
      /** The unparsed body, where a parser's `verify` hook has kept it (see `keepRawBody`). */
      rawBody?: Uint8Array
    }
  }
}

export type ExpressOptions = GuardOptions<Request>

export interface IdempotencyMiddleware {
  /** Of any types: the handlers behind it keep those that their path and parser give them. */
  <Params, Sent, Body, Query, Locals extends Record<string, unknown>>(
    req: Request<Params, Sent, Body, Query, Locals>,
    res: Response<Sent, Locals>,
    next: NextFunction,
  ): void

  /** The engine behind it: `await middleware.engine.close()` belongs into a graceful stop. */
  readonly engine: Engine

  /** The same for a route that wants some of it otherwise: `guard.with({ keyRequired: false })`. */
  with(route: RouteOptions<Request>): IdempotencyMiddleware
}

/**
 * Runs each `Idempotency-Key` at most once and replays its reply after that. Mount
 * `idempotencyErrors()` behind your routes, before other error handlers.
 *
 * @example
 * ```ts
 * const store = sqliteStore({ path: 'data/keys.db' })
 * app.post('/payments', idempotency({ store, tenant: (req) => req.user.account }), pay)
 * app.use(idempotencyErrors())
 * ```
 */
export function idempotency(options: ExpressOptions): IdempotencyMiddleware {
  return makeMiddleware(options)
}

function makeMiddleware(options: ExpressOptions): IdempotencyMiddleware {
  const guard = createGuard(options)

  function idempotency(req: Request, res: Response, next: NextFunction): void {
    if (!guard.protects(req.method)) {
      warnIfUseless(req, idempotency, (method) => guard.protects(method))
      return next()
    }
    const refusal = req.idempotency === undefined ? http2Refusal(req) : mountedTwice()
    if (refusal !== undefined) return next(refusal)
    const handler = new NodeHandler(req, res, new ExpressFlow(req, next, idempotency))
    guard
      .handle(req, new ExpressExchange(req, handler), handler)
      .then((answer) => handler.act(answer))
      .catch(next)
  }

  markGuard(idempotency, (method) => guard.protects(method))
  // Which types a request has makes no difference to us.
  return Object.assign(idempotency as unknown as IdempotencyMiddleware, {
    engine: guard.engine,
    with: (route: RouteOptions<Request>) => makeMiddleware(forRoute(options, route)),
  })
}

function warnBlind(): false {
  warnOnce(
    'a protected Express route replied with a 5xx, but idempotencyErrors() is not the first ' +
      'error handler behind it, so it cannot be seen whether an outside call was lost: the ' +
      'outcome counts as unknown. Add app.use(idempotencyErrors()) behind your routes, before ' +
      'other error handlers (in a router that has some: there too)',
  )
  return false
}

/**
 * The key of this request and what its handler may do about it. Throws where the route is not
 * protected, so that a forgotten `idempotency()` is found by the first request.
 */
export function idempotencyOf(req: Request): HandlerContext {
  if (req.idempotency !== undefined) return req.idempotency
  throw new InvalidRequestError(
    `${req.method} ${req.path} is not protected: mount idempotency() before its handler, and ` +
      'send a key with the request',
  )
}

/** The second guard would find the key held by the first, and refuse every request for ever. */
function mountedTwice(): InvalidOptionsError {
  return new InvalidOptionsError(
    'idempotency() is mounted twice on the way to this handler, as by app.use() and on its ' +
      'route: mount it once',
  )
}

/** What Express does with a request. */
class ExpressFlow implements NodeFlow {
  readonly #req: Request
  readonly #next: NextFunction
  readonly #middleware: object

  constructor(req: Request, next: NextFunction, middleware: object) {
    this.#req = req
    this.#next = next
    this.#middleware = middleware
  }

  enter(context: HandlerContext): void {
    this.#req.idempotency = context
    this.#next()
  }

  pass(): void {
    this.#next()
  }

  fail(error: unknown): void {
    this.#next(error)
  }

  seesErrors(): boolean {
    return seesErrors(this.#req.app, this.#middleware) || warnBlind()
  }

  parsedBody(): unknown {
    return parsedBody(this.#req)
  }
}

class ExpressExchange implements HttpExchange {
  readonly method: string
  readonly path: string
  readonly query: string
  readonly #req: Request
  readonly #handler: NodeHandler

  constructor(req: Request, handler: NodeHandler) {
    this.#req = req
    this.#handler = handler
    this.method = req.method
    const [path, query] = splitUrl(req.originalUrl)
    this.path = path
    this.query = query
  }

  get route(): string {
    return routeOf(this.#req, this.path)
  }

  header(name: string): string | readonly string[] | undefined {
    return this.#req.headers[name]
  }

  body(bytesMax: number): ExchangeBody | Promise<ExchangeBody> {
    return this.#handler.body(bytesMax)
  }
}

/**
 * Parsers of Express 4 that leave a body alone still leave an empty object in its place. What
 * they do parse they mark; those of Express 5 do not, but make one of JSON and forms only.
 */
function parsedBody(req: Request & { readonly _body?: unknown }): unknown {
  const value: unknown = req.body
  const isEmpty = typeof value === 'object' && value !== null && Object.keys(value).length === 0
  if (!isEmpty || value instanceof Uint8Array || req._body === true) return value
  return /json|urlencoded/i.test(req.headers['content-type'] ?? '') ? value : undefined
}
