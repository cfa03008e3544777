/** One protected request in Express. */
import type { NextFunction, Request } from 'express'
import { warnOnce } from '../../core/warn.ts'
import { isWithin } from '../../http/guard/current.ts'
import type { HandlerContext } from '../../http/guard/handler-context.ts'
import type { NodeFlow } from '../node-http/node-handler.ts'
import { seesErrors } from './errors.ts'
import { watchHandlers, type HandlerWatch } from './route-errors.ts'

/** Hands one request to Express, and records which of its handlers run, fail and reply. */
export class ExpressFlow implements NodeFlow, HandlerWatch {
  readonly #req: Request
  readonly #next: NextFunction
  readonly #middleware: object
  #isInRoute = false
  #isOwnReply = false
  hasFailed = false

  constructor(req: Request, next: NextFunction, middleware: object) {
    this.#req = req
    this.#next = next
    this.#middleware = middleware
  }

  enter(context: HandlerContext): void {
    this.#req.idempotency = context
    watchHandlers(this.#req, this, this.#middleware)
    this.#next()
  }

  entered(): void {
    this.#isInRoute = true
  }

  left(): void {
    this.#isInRoute = false
  }

  failed(error: unknown): void {
    this.hasFailed = true
    this.#req.idempotency!.failed(error)
  }

  pass(): void {
    this.#next()
  }

  fail(error: unknown): void {
    this.#next(error)
  }

  seesErrors(): boolean {
    return (
      (this.#isInRoute && this.#isOwnReply) ||
      seesErrors(this.#req.app, this.#middleware) ||
      warnOfUnseenErrors()
    )
  }

  /**
   * A time limit before the guard may reply while the handler runs. That reply comes from another
   * async context than the handler's, and the guard cannot see whether an error caused it.
   */
  replied(): void {
    const context = this.#req.idempotency
    this.#isOwnReply = context !== undefined && isWithin(context)
  }

  parsedBody(): unknown {
    return parsedBody(this.#req)
  }
}

function warnOfUnseenErrors(): false {
  warnOnce(
    'a protected Express request got a 5xx outside a route (from router.use or router.param), ' +
      'and idempotencyErrors() is not the first error handler there. The guard cannot see ' +
      'whether an outside call was lost, so the outcome counts as unknown. Add ' +
      'app.use(idempotencyErrors()) behind your routes, before other error handlers (in a router ' +
      'that has some: there too). auditRoutes(app).unseenErrors lists such places',
  )
  return false
}

/**
 * Parsers of Express 4 set `req.body` to an empty object also when they do not parse the body;
 * they mark parsed bodies with `_body`. Parsers of Express 5 set no mark, but produce an empty
 * object only for JSON and forms.
 */
function parsedBody(req: Request & { readonly _body?: unknown }): unknown {
  const value: unknown = req.body
  const isEmpty = typeof value === 'object' && value !== null && Object.keys(value).length === 0
  if (!isEmpty || value instanceof Uint8Array || req._body === true) return value
  return /json|urlencoded/i.test(req.headers['content-type'] ?? '') ? value : undefined
}
