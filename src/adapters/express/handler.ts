/** One protected request in Express. */
import type { NextFunction, Request } from 'express'
import { looksLikeLostCall } from '../../core/attempt/failure.ts'
import { hasCode } from '../../core/errors.ts'
import { warnOnce } from '../../core/warn.ts'
import { forgetError, type HandlerContext } from '../../http/guard/handler-context.ts'
import type { NodeFlow } from '../node-http/node-handler.ts'
import { seesErrors } from './errors.ts'
import { watchNextRoutes, watchRequest } from './route-errors.ts'
import { frames, watchedNext, watchErrorHandlers, type HandlerWatch } from './watched-layers.ts'

/** Hands one request to Express, and records which of its handlers run, fail and reply. */
export class ExpressFlow implements NodeFlow, HandlerWatch {
  readonly #req: Request
  readonly #next: NextFunction
  readonly #middleware: object
  /** `req.next`, watched: `res.render()` and `res.sendFile()` pass their errors to it. */
  #routerNext: NextFunction | undefined
  /** The route handler that runs now. `undefined`: code may run that the guard cannot see. */
  #frame: object | undefined
  /**
   * A handler has called a router itself. The error handlers of that router cannot be found, so one
   * of them may recover from an error unseen.
   */
  #hasHiddenRouter = false
  /** The error that counts, of those that the watch has seen. */
  #error: unknown
  #isOwnReply = false

  constructor(req: Request, next: NextFunction, middleware: object) {
    this.#req = req
    this.#next = next
    this.#middleware = middleware
  }

  enter(context: HandlerContext): void {
    this.#req.idempotency = context
    watchRequest(this.#req, this, this.#middleware)
    this.#next()
  }

  entered(): object {
    if (this.#isInOtherRouter()) this.#hasHiddenRouter = true
    // No handler runs while Express looks for an error handler.
    this.recovered()
    this.#watchRouterNext()
    this.#frame = {}
    return this.#frame
  }

  left(isThrough: boolean): void {
    this.#frame = undefined
    if (isThrough) watchNextRoutes(this.#req)
  }

  failed(error: unknown): void {
    this.#frame = undefined
    if (this.#hasHiddenRouter && !isDoubtful(error)) return
    watchErrorHandlers(this.#req.app)
    this.reported(error)
  }

  /**
   * The first error counts, because error handlers replace errors. An error that leaves the outcome
   * in doubt counts in any case.
   */
  reported(error: unknown): void {
    if (this.#error !== undefined && (isDoubtful(this.#error) || !isDoubtful(error))) return
    this.#error = error
    this.#req.idempotency!.failed(error)
  }

  recovered(): void {
    if (this.#error === undefined || isDoubtful(this.#error)) return
    forgetError(this.#req.idempotency!, this.#error)
    this.#error = undefined
  }

  pass(): void {
    this.#next()
  }

  fail(error: unknown): void {
    this.#next(error)
  }

  seesErrors(): boolean {
    return this.#isOwnReply || seesErrors(this.#req.app, this.#middleware) || warnOfUnseenErrors()
  }

  /** A time limit, or middleware behind the guard, may reply while the handler still runs. */
  replied(): void {
    const isByHandler = this.#frame !== undefined && frames.getStore() === this.#frame
    this.#isOwnReply = isByHandler && !this.#isInOtherRouter()
  }

  #watchRouterNext(): void {
    const { next } = this.#req
    if (next === undefined || next === this.#routerNext) return
    this.#routerNext = watchedNext(this, next, () => true)
    this.#req.next = this.#routerNext
  }

  /** Whether the handler that runs now has called a router, which then sets `req.next`. */
  #isInOtherRouter(): boolean {
    return this.#frame !== undefined && this.#req.next !== this.#routerNext
  }

  parsedBody(): unknown {
    return parsedBody(this.#req)
  }
}

/** The work may have had an effect, even if the application recovers from the error. */
function isDoubtful(error: unknown): boolean {
  return error !== undefined && (looksLikeLostCall(error) || hasCode(error, 'OUTCOME_UNKNOWN'))
}

function warnOfUnseenErrors(): false {
  warnOnce(
    'a protected Express request got a 5xx from code that the guard cannot see (router.use, ' +
      'router.param, a router that a handler calls, a timer), and idempotencyErrors() is not the ' +
      'first error handler there. An outside call may have been lost, so the outcome counts as ' +
      'unknown. Add ' +
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
