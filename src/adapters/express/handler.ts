/** One protected request in Express. */
import type { NextFunction, Request, Response } from 'express'
import { looksLikeLostCall } from '../../core/attempt/failure.ts'
import { hasCode } from '../../core/errors.ts'
import { warnOnce } from '../../core/warn.ts'
import { forgetError, type HandlerContext } from '../../http/guard/handler-context.ts'
import type { NodeFlow } from '../node-http/node-handler.ts'
import { seesErrors } from './errors.ts'
import { watchNextRoutes, watchRequest } from './route-errors.ts'
import { parentsOf } from './stack.ts'
import {
  frames,
  isVisible,
  watchedNext,
  watchErrorHandlers,
  type HandlerWatch,
} from './watched-layers.ts'

/**
 * The code that runs now, as far as the guard knows it:
 *
 * - `outside`: code that is not watched. Before the first handler, and between handlers.
 * - `handler`: a handler of a route. `left` leads to `outside`, `failed` to `failing`.
 * - `failing`: an error is on its way to an error handler, or to the default one of Express.
 * - `error_handler`: an error handler with that error. `left` leads to `outside`: the application
 *   has recovered. `failed` leads to `failing`, with another error or the same.
 * - `lost`: something else has happened. The guard then knows nothing more about this request.
 */
type Track =
  | { readonly kind: 'outside' | 'lost' }
  | { readonly kind: 'handler'; readonly frame: object }
  | { readonly kind: 'failing'; readonly error: unknown }
  | { readonly kind: 'error_handler'; readonly frame: object; readonly error: unknown }

const OUTSIDE: Track = { kind: 'outside' }
const LOST: Track = { kind: 'lost' }

/** Apps whose error handlers are watched. */
const watchedApps = new WeakSet<object>()

/** Hands one request to Express, and follows its handlers. */
export class ExpressFlow implements NodeFlow, HandlerWatch {
  readonly #req: Request
  readonly #res: Response
  readonly #next: NextFunction
  readonly #middleware: object
  readonly #app: object
  #context!: HandlerContext
  #track: Track = OUTSIDE
  /** `req.next`, watched: `res.render()` and `res.sendFile()` pass their errors to it. */
  #routerNext: NextFunction | undefined
  /** The error that counts. */
  #error: unknown
  #isReported = false
  #isOwnReply = false

  constructor(req: Request, res: Response, flow: { next: NextFunction; middleware: object }) {
    this.#req = req
    this.#res = res
    this.#next = flow.next
    this.#middleware = flow.middleware
    this.#app = req.app
  }

  enter(context: HandlerContext): void {
    this.#req.idempotency = context
    this.#context = context
    if (!watchedApps.has(this.#app)) {
      watchedApps.add(this.#app)
      watchErrorHandlers(this.#app)
    }
    if (!watchRequest(this.#req, this, this.#middleware)) this.#track = LOST
    this.#next()
  }

  entered(): object {
    const frame = {}
    // In another state, a handler has called a router, or an error handler has recovered unseen.
    if (this.#track.kind === 'outside') this.#track = { kind: 'handler', frame }
    else this.#lose()
    this.#watchRouterNext()
    return frame
  }

  caught(error: unknown): object {
    const frame = {}
    const track = this.#track
    const isKnown = track.kind === 'failing' && track.error === error
    if (isKnown) this.#track = { kind: 'error_handler', frame, error }
    else this.#lose()
    this.#watchRouterNext()
    return frame
  }

  left(frame: object | undefined, isThrough: boolean): void {
    if (!this.#isCurrent(frame)) this.#lose()
    else if (this.#track.kind === 'error_handler') this.#recover()
    else this.#track = OUTSIDE
    if (isThrough && !watchNextRoutes(this.#req)) this.#lose()
  }

  failed(frame: object | undefined, error: unknown): void {
    const app: unknown = this.#req.app ?? this.#app
    watchErrorHandlers(app)
    const isKnown = this.#isCurrent(frame) && !this.#isInOtherRouter() && this.#isVisible(app)
    if (isKnown) this.#track = { kind: 'failing', error }
    else this.#lose()
    if (isKnown || isDoubtful(error)) this.#count(error)
  }

  reported(error: unknown): void {
    this.#isReported = true
    this.#count(error)
  }

  pass(): void {
    this.#next()
  }

  fail(error: unknown): void {
    this.#next(error)
  }

  seesErrors(): boolean {
    return this.#isOwnReply || seesErrors(this.#app, this.#middleware) || warnOfUnseenErrors()
  }

  /** Called in the async context of the code that replied. */
  replied(): void {
    const track = this.#track
    const isInFrame = this.#isCurrent(frames.getStore()) && !this.#isInOtherRouter()
    const isDefault = isDefaultReply(this.#res)
    if (track.kind === 'handler') this.#isOwnReply = isInFrame && !isDefault
    else if (track.kind === 'failing' && !isDefault) this.#lose()
    else if (track.kind === 'error_handler' && !isInFrame) this.#lose()
  }

  parsedBody(): unknown {
    return parsedBody(this.#req)
  }

  #isCurrent(frame: object | undefined): boolean {
    return 'frame' in this.#track && this.#track.frame === frame
  }

  /** The last error counts, except that none replaces one that leaves the outcome in doubt. */
  #count(error: unknown): void {
    if (hasCode(this.#error, 'OUTCOME_UNKNOWN')) return
    if (isDoubtful(this.#error) && !isDoubtful(error)) return
    this.#error = error
    this.#context.failed(error)
  }

  /** An effect that may have happened is not undone by an error handler that recovers. */
  #recover(): void {
    this.#track = isDoubtful(this.#error) ? LOST : OUTSIDE
    this.#forget()
  }

  #lose(): void {
    this.#track = LOST
    if (!this.#isReported && !isDoubtful(this.#error)) this.#forget()
  }

  #forget(): void {
    if (this.#error !== undefined) forgetError(this.#context, this.#error)
    this.#error = undefined
  }

  #watchRouterNext(): void {
    const { next } = this.#req
    if (next === undefined || next === this.#routerNext) return
    this.#routerNext = watchedNext(this, next, () => frames.getStore())
    this.#req.next = this.#routerNext
  }

  /** Whether the code that runs now has called a router or an app. */
  #isInOtherRouter(): boolean {
    return this.#req.next !== this.#routerNext
  }

  /** Whether all error handlers between the route of the error and the guard can be watched. */
  #isVisible(app: unknown): boolean {
    return [app, ...parentsOf(app)].includes(this.#app) && isVisible(app, this.#req.route)
  }
}

/** The work may have had an effect, even if the application recovers from the error. */
function isDoubtful(error: unknown): boolean {
  return error !== undefined && (looksLikeLostCall(error) || hasCode(error, 'OUTCOME_UNKNOWN'))
}

/** Whether the default error handler of Express has replied. */
function isDefaultReply(res: Response): boolean {
  return res.getHeader('content-security-policy') === "default-src 'none'"
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
