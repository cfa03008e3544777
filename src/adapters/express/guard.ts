/**
 * The middleware for Express 4 and 5. The adapter only translates: `http/guard/guard.ts` decides
 * what a key means and how each outcome is answered.
 */
import type { NextFunction, Request, Response } from 'express'
import { InvalidRequestError } from '../../core/errors.ts'
import type { ExchangeBody, HttpExchange } from '../../http/guard/exchange.ts'
import type { GuardOptions } from '../../http/guard/guard-options.ts'
import { controlsOf, createGuard, type GuardControls } from '../../http/guard/guard.ts'
import type { HandlerContext } from '../../http/guard/handler-context.ts'
import { mountedTwice } from '../../http/guard/misplaced-guard.ts'
import { markGuard } from '../../http/guard/route-audit.ts'
import { forRoute, type RouteOptions } from '../../http/guard/route-options.ts'
import { ExpressFlow } from './handler.ts'
import { watchOf } from './watched-layers.ts'
import { routeOf, warnIfUseless } from './route.ts'
import { http2Refusal } from '../node-http/http-version.ts'
import { NodeHandler, splitUrl } from '../node-http/node-handler.ts'

declare global {
  namespace Express {
    interface Request {
      /** The idempotency context. `undefined` on routes without a guard: see `idempotencyOf`. */
      idempotency?: HandlerContext
      /** The unparsed body, if the `verify` hook of a parser keeps it (see `keepRawBody`). */
      rawBody?: Uint8Array
    }
  }
}

export type IdempotencyOptions = GuardOptions<Request>

export interface IdempotencyMiddleware extends GuardControls {
  /** Generic, so that handlers behind it keep the types that their path and parser give them. */
  <Params, ResBody, ReqBody, Query, Locals extends Record<string, unknown>>(
    req: Request<Params, ResBody, ReqBody, Query, Locals>,
    res: Response<ResBody, Locals>,
    next: NextFunction,
  ): void

  /** Returns a copy with these options overridden: `guard.with({ keyRequired: false })`. */
  with(route: RouteOptions<Request>): IdempotencyMiddleware
}

/**
 * Runs each `Idempotency-Key` at most once and replays its reply after that.
 *
 * @example
 * ```ts
 * const store = sqliteStore({ path: 'data/keys.db' })
 * app.post('/payments', idempotency({ store, tenant: (req) => req.user.account }), pay)
 * ```
 */
export function idempotency(options: IdempotencyOptions): IdempotencyMiddleware {
  return makeMiddleware(options)
}

function makeMiddleware(options: IdempotencyOptions): IdempotencyMiddleware {
  const guard = createGuard(options)

  function idempotency(req: Request, res: Response, next: NextFunction): void {
    if (!guard.protects(req.method)) {
      warnIfUseless(req, idempotency, (method) => guard.protects(method))
      return next()
    }
    const refusal = req.idempotency === undefined ? http2Refusal(req) : mountedTwice()
    if (refusal !== undefined) {
      watchOf(req)?.reported(refusal)
      return next(refusal)
    }
    const flow = new ExpressFlow(req, res, { next, middleware: idempotency })
    const handler = new NodeHandler(req, res, flow)
    guard
      .handle(req, new ExpressExchange(req, handler), handler)
      .then((answer) => handler.act(answer))
      .catch(next)
  }

  markGuard(idempotency, (method) => guard.protects(method))
  // The guard does not depend on the types of the request.
  return Object.assign(idempotency as unknown as IdempotencyMiddleware, {
    ...controlsOf(guard),
    with: (route: RouteOptions<Request>) => makeMiddleware(forRoute(options, route)),
  })
}

/**
 * The idempotency context of a request: its key, and the methods that its handler can call. Throws
 * if the request has none, so that the first request finds a forgotten `idempotency()`.
 */
export function idempotencyOf(req: Request): HandlerContext {
  if (req.idempotency !== undefined) return req.idempotency
  throw new InvalidRequestError(
    `${req.method} ${req.path} is not protected: mount idempotency() before its handler, and ` +
      'send a key with the request',
  )
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
