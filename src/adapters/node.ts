/**
 * Adapter for plain `node:http` servers. Translates only: what a key means and what each outcome
 * answers is decided in `http/guard.ts`.
 *
 * @module
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Engine } from '../core/engine.ts'
import { InvalidOptionsError, InvalidRequestError } from '../core/errors.ts'
import { describe, optionalFunction } from '../core/options.ts'
import type { HttpExchange } from '../http/exchange.ts'
import { refuseRequest } from '../http/given-request.ts'
import type { GuardOptions } from '../http/guard-options.ts'
import { createGuard, type Guard } from '../http/guard.ts'
import type { HandlerContext } from '../http/handler-context.ts'
import { markGuard } from '../http/route-audit.ts'
import { forRoute } from '../http/route-options.ts'
import type { StatusOptions } from '../http/status-options.ts'
import { createStatus, lastSegment } from '../http/status.ts'
import { isHttp2 } from './http-version.ts'
import { NodeHandler, splitUrl } from './node-handler.ts'
import { sendReply } from './outgoing.ts'

export { currentIdempotency } from '../http/current.ts'
export { singleTenant } from '../http/guard-options.ts'
export type { HandlerContext } from '../http/handler-context.ts'
export type { GivenReply } from '../http/http-reply.ts'
export type { RouteOptions } from '../http/route-options.ts'

export interface NodeOptions extends GuardOptions<IncomingMessage> {
  /**
   * Answers a request whose listener threw, or which could not be protected: a plain server has
   * no error handling of its own. What it replies is judged like any other reply. It may be
   * asynchronous.
   *
   * @default 500 without details, and a warning of the process
   */
  onRequestError?: (error: unknown, req: IncomingMessage, res: ServerResponse) => unknown
}

export interface NodeStatusOptions extends StatusOptions<IncomingMessage> {
  /** As for protected listeners: answers where `tenant` has thrown, for example. */
  onRequestError?: NodeOptions['onRequestError']
}

/** What a plain server calls. It may be asynchronous: what it rejects with is not lost. */
export type NodeListener = (req: IncomingMessage, res: ServerResponse) => unknown

export interface ProtectedListener {
  (req: IncomingMessage, res: ServerResponse): void
  /** The engine behind it: `await listener.engine.close()` belongs into a graceful stop. */
  readonly engine: Engine
}

/** Protects listeners that share their options. */
export interface Protect {
  (listener: NodeListener): ProtectedListener
  /** The engine behind it: `await protect.engine.close()` belongs into a graceful stop. */
  readonly engine: Engine

  /** The same for a route that wants some of it otherwise: `protect.with({ operation: 'pay' })`. */
  with(route: Partial<NodeOptions>): Protect
}

/** On the request itself: what a WeakMap refers to lives until a full collection. */
const CONTEXT = Symbol('oncekey.context')

type Entered = IncomingMessage & { [CONTEXT]?: HandlerContext }

const protectedListeners = new WeakSet<NodeListener>()

/**
 * Protects the listeners of a server that has several: each `Idempotency-Key` runs at most once,
 * and its reply is replayed after that. Say what each of them does: `operation`.
 *
 * @example
 * ```ts
 * const protect = idempotency({ store, tenant: (req) => accountOf(req) })
 * const pay = protect.with({ operation: 'pay' })(async (req, res) => { … })
 * const refund = protect.with({ operation: 'refund' })(async (req, res) => { … })
 * ```
 */
export function idempotency(options: NodeOptions): Protect {
  refuseRequest(options)
  const { onRequestError, ...guardOptions } = options ?? {}
  optionalFunction('onRequestError', onRequestError)
  const guard = createGuard(guardOptions)
  const answer = answerWith(onRequestError)
  const protect = (listener: NodeListener) => protectedBy(guard, listener, answer)
  return Object.assign(protect, {
    engine: guard.engine,
    with: (route: Partial<NodeOptions>) => idempotency(forRoute(options, route)),
  })
}

/**
 * Protects one listener: each `Idempotency-Key` runs at most once, and its reply is replayed after
 * that.
 *
 * @example
 * ```ts
 * http.createServer(withIdempotency(listener, { store, tenant: (req) => accountOf(req) }))
 * ```
 */
export function withIdempotency(listener: NodeListener, options: NodeOptions): ProtectedListener {
  return idempotency(options)(listener)
}

/**
 * Tells a client what became of its request, by the id in the `Location` of its 202. A plain server
 * knows no parameters, so the id is the last part of the path.
 *
 * @example
 * ```ts
 * const status = idempotencyStatus({ engine, tenant: (req) => accountOf(req) })
 * if (req.url.startsWith('/operations/')) status(req, res)
 * ```
 */
export function idempotencyStatus(
  options: NodeStatusOptions,
): (req: IncomingMessage, res: ServerResponse) => void {
  const { onRequestError, ...statusOptions } = options ?? {}
  optionalFunction('onRequestError', onRequestError)
  const answerError = answerWith(onRequestError)
  const status = createStatus(statusOptions, ({ url = '/' }) => lastSegment(splitUrl(url)[0]))
  return (req, res) => {
    const { method = 'GET', headers } = req
    status
      .reply(req, { method, accepted: headers['accept-encoding'] })
      .then((reply) => {
        // A time limit may have answered meanwhile.
        if (!res.headersSent) sendReply(res, reply)
      })
      .catch((error: unknown) => void answerError(error, req, res))
  }
}

/** The key of this request and what its listener may do about it. Throws where there is none. */
export function idempotencyOf(req: IncomingMessage): HandlerContext {
  const { [CONTEXT]: context } = req as Entered
  if (context !== undefined) return context
  throw new InvalidRequestError(
    `${req.method} ${req.url} is not protected: wrap its listener in withIdempotency(), and send ` +
      'a key with the request',
  )
}

/** Never throws, and never rejects: nobody would hear of it. */
type AnswerError = (error: unknown, req: IncomingMessage, res: ServerResponse) => Promise<void>

function protectedBy(
  guard: Guard<IncomingMessage>,
  listener: NodeListener,
  answerError: AnswerError,
): ProtectedListener {
  checkListener(listener)
  const protectedListener = (req: Entered, res: ServerResponse): void => {
    // Thrown, not answered: the guard around us is to see it.
    if (req[CONTEXT] !== undefined) throw wrappedTwice()
    const fail = (error: unknown) => void answerError(error, req, res)
    const run = async (context?: HandlerContext) => {
      try {
        await listener(req, res)
      } catch (error) {
        context?.failed(error)
        fail(error)
      }
    }
    if (!guard.protects(req.method ?? '')) return void run()
    if (isHttp2(req)) return fail(notSupported())
    const handler = new NodeHandler(req, res, {
      enter: (context) => {
        req[CONTEXT] = context
        void run(context)
      },
      pass: () => void run(),
      fail,
    })
    guard
      .handle(req, toExchange(req, handler), handler)
      .then((answer) => handler.act(answer))
      .catch(fail)
  }
  protectedListeners.add(protectedListener)
  markGuard(protectedListener, (method) => guard.protects(method))
  return Object.assign(protectedListener, { engine: guard.engine })
}

function checkListener(listener: NodeListener): void {
  if (typeof listener !== 'function') {
    throw new InvalidOptionsError(`idempotency needs a request listener, got ${describe(listener)}`)
  }
  if (protectedListeners.has(listener)) throw wrappedTwice()
}

/** Its responses look alike, but what holds them back would not. */
function notSupported(): InvalidOptionsError {
  return new InvalidOptionsError(
    'oncekey/node protects listeners of node:http and node:https only: the compatibility API of ' +
      'node:http2 has other responses. Serve this route over HTTP/1.1, or by oncekey/fetch',
  )
}

/** The second guard would find the key held by the first, and refuse every request for ever. */
function wrappedTwice(): InvalidOptionsError {
  return new InvalidOptionsError(
    'this listener is wrapped in withIdempotency() twice, as by itself and with its server: ' +
      'wrap it once',
  )
}

function toExchange(req: IncomingMessage, handler: NodeHandler): HttpExchange {
  const [path, query] = splitUrl(req.url ?? '/')
  return {
    method: req.method ?? 'GET',
    path,
    query,
    // Nobody has matched it: every path is a route of its own.
    route: path,
    header: (name) => req.headers[name],
    body: (bytesMax) => handler.body(bytesMax),
  }
}

function answerWith(onRequestError: NodeOptions['onRequestError']): AnswerError {
  return async (error, req, res) => {
    try {
      if (onRequestError === undefined) answerFailure(error, res)
      else await onRequestError(error, req, res)
    } catch (second) {
      answerFailure(second, res)
    }
  }
}

function answerFailure(error: unknown, res: ServerResponse): void {
  // A client that gave up its own upload is nobody's failure, and not there to be answered.
  if (isAborted(error)) return void res.destroy()
  process.emitWarning(error instanceof Error ? error : new Error(String(error)))
  if (res.writableEnded) return
  // What has begun cannot become an error any more; cut off, its client knows that it failed.
  if (res.headersSent) return void res.destroy()
  const headers = [['Content-Type', 'text/plain; charset=utf-8']] as const
  sendReply(res, { status: 500, headers, body: Buffer.from('Internal Server Error') })
}

/** As the guard and body parsers say it. */
function isAborted(error: unknown): boolean {
  return error instanceof Error && 'type' in error && error.type === 'request.aborted'
}
