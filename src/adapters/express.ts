/**
 * Express adapter (4 and 5). Translates only: what a key means and what each outcome answers is
 * decided in `http/guard.ts`.
 *
 * @module
 */
import type { NextFunction, Request, RequestHandler, Response } from 'express'
import type { Engine } from '../core/engine.ts'
import { InvalidOptionsError, InvalidRequestError } from '../core/errors.ts'
import { warnOnce } from '../core/warn.ts'
import type { Answer, ExchangeBody, HeldHandler, HttpExchange, Produced } from '../http/exchange.ts'
import type { GuardOptions } from '../http/guard-options.ts'
import { createGuard } from '../http/guard.ts'
import type { HandlerContext } from '../http/handler-context.ts'
import { seesErrors } from './express-errors.ts'
import { routeOf } from './express-route.ts'
import { HeldResponse } from './held-response.ts'
import { sendReply } from './outgoing.ts'
import { HeldRequest, peekBody } from './request-body.ts'

export { singleTenant } from '../http/guard-options.ts'
export { idempotencyErrors } from './express-errors.ts'
export type { HandlerContext } from '../http/handler-context.ts'

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

export interface IdempotencyMiddleware extends RequestHandler {
  /** The engine behind it: `await middleware.engine.close()` belongs into a graceful stop. */
  readonly engine: Engine
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
  const guard = createGuard(options)

  function idempotency(req: Request, res: Response, next: NextFunction): void {
    if (!guard.protects(req.method)) return next()
    if (req.idempotency !== undefined) return next(mountedTwice())
    const sees = () => seesErrors(req.app, idempotency)
    const handler = new ExpressHandler(req, res, { next, sees })
    guard
      .handle(req, toExchange(req, handler), handler)
      .then((answer) => handler.act(answer))
      .catch(next)
  }

  return Object.assign(idempotency, { engine: guard.engine })
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

/**
 * A `verify` hook for body parsers mounted before the guard: it keeps the body as it was sent, so
 * that numbers too big for JavaScript still tell two requests apart.
 *
 * @example
 * ```ts
 * app.use(express.json({ verify: keepRawBody }))
 * ```
 */
export function keepRawBody(req: object, _res: unknown, body: Uint8Array): void {
  Object.assign(req, { rawBody: body })
}

class ExpressHandler implements HeldHandler {
  readonly #req: Request
  readonly #res: Response
  readonly #next: NextFunction
  readonly #sees: () => boolean
  #held: HeldResponse | undefined
  #heldRequest: HeldRequest | undefined

  constructor(
    req: Request,
    res: Response,
    { next, sees }: { readonly next: NextFunction; readonly sees: () => boolean },
  ) {
    this.#req = req
    this.#res = res
    this.#next = next
    this.#sees = sees
  }

  /** The whole body, which stays readable for as long as this request is ours. */
  async body(bytesMax: number): Promise<ExchangeBody> {
    const body = await toBody(this.#req, bytesMax)
    if (body.kind === 'bytes' && !this.#req.readableEnded) {
      this.#heldRequest = new HeldRequest(this.#req)
    }
    return body
  }

  enter(context: HandlerContext, replyBytesMax: number): void {
    this.#held = new HeldResponse(this.#res, replyBytesMax)
    this.#req.idempotency = context
    this.#next()
  }

  whole(): Promise<Produced> {
    return this.#held!.whole()
  }

  produced(): Produced | undefined {
    return this.#held?.produced()
  }

  reset(): void {
    this.#held?.reset()
  }

  failed(error: unknown): void {
    this.#held?.failed(error)
  }

  seesErrors(): boolean {
    if (this.#sees()) return true
    warnOnce(
      'a protected Express route replied with a 5xx, but idempotencyErrors() is not the first ' +
        'error handler behind it, so it cannot be seen whether an outside call was lost: the ' +
        'outcome counts as unknown. Add app.use(idempotencyErrors()) behind your routes, before ' +
        'other error handlers (in a router that has some: there too)',
    )
    return false
  }

  act(answer: Answer): void {
    const held = this.#held
    this.#heldRequest?.letGo()
    switch (answer.kind) {
      case 'pass':
        return this.#next()
      case 'deliver':
        return held?.deliver(answer.headers)
      case 'reply':
        return held === undefined ? sendReply(this.#res, answer.reply) : held.replace(answer.reply)
      case 'error':
        if (held === undefined || held.letGo()) this.#next(answer.error)
        return
    }
  }
}

/** The second guard would find the key held by the first, and refuse every request for ever. */
function mountedTwice(): InvalidOptionsError {
  return new InvalidOptionsError(
    'idempotency() is mounted twice on the way to this handler, as by app.use() and on its ' +
      'route: mount it once',
  )
}

function toExchange(req: Request, handler: ExpressHandler): HttpExchange {
  const [path, query] = split(req.originalUrl)
  return {
    method: req.method,
    path,
    query,
    get route() {
      return routeOf(req, path)
    },
    header: (name) => req.headers[name],
    body: (bytesMax) => handler.body(bytesMax),
  }
}

function toBody(req: Request, bytesMax: number): Promise<ExchangeBody> | ExchangeBody {
  if (req.rawBody instanceof Uint8Array) return sized(req.rawBody, bytesMax)
  const peeked = peekBody(req, bytesMax)
  if (peeked !== undefined) return peeked

  const value = parsedBody(req)
  if (value === undefined || (req.headers['content-type'] ?? '').startsWith('multipart/')) {
    throw new InvalidRequestError(
      'the body was read before idempotency() and cannot be compared with a retry: mount ' +
        'idempotency() before the parser, or let it keep req.rawBody (verify: keepRawBody)',
    )
  }
  return value instanceof Uint8Array ? sized(value, bytesMax) : { kind: 'value', value }
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

function sized(bytes: Uint8Array, bytesMax: number): ExchangeBody {
  return bytes.byteLength > bytesMax ? { kind: 'too_large' } : { kind: 'bytes', bytes }
}

function split(url: string): [path: string, query: string] {
  const at = url.indexOf('?')
  return at === -1 ? [url, ''] : [url.slice(0, at), url.slice(at + 1)]
}
