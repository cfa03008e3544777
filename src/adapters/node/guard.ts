/**
 * The wrapper for listeners of plain `node:http` servers. The adapter only translates:
 * `http/guard/guard.ts` decides what a key means and how each outcome is answered.
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import { InvalidOptionsError, InvalidRequestError } from '../../core/errors.ts'
import { describe, optionalFunction } from '../../core/options.ts'
import type { HttpExchange } from '../../http/guard/exchange.ts'
import { refuseRequest } from '../../http/guard/misplaced-guard.ts'
import type { GuardOptions } from '../../http/guard/guard-options.ts'
import { controlsOf, createGuard, type Guard, type GuardControls } from '../../http/guard/guard.ts'
import type { HandlerContext } from '../../http/guard/handler-context.ts'
import { markGuard } from '../../http/guard/route-audit.ts'
import { forRoute } from '../../http/guard/route-options.ts'
import { isHttp2 } from '../node-http/http-version.ts'
import { NodeHandler, splitUrl } from '../node-http/node-handler.ts'
import { answerWith, type AnswerError, type OnRequestError } from './request-errors.ts'

export interface IdempotencyOptions extends GuardOptions<IncomingMessage> {
  /**
   * Replies to a request whose listener threw, or which could not be protected, because a plain
   * server has no error handling. Its reply is recorded or released like any other reply. May be
   * asynchronous.
   *
   * @default replies 500 without details and emits a process warning
   */
  onRequestError?: OnRequestError
}

/** A request listener. May be asynchronous: a rejection is handled like a thrown error. */
export type NodeListener = (req: IncomingMessage, res: ServerResponse) => unknown

/** A listener behind a guard. */
export interface ProtectedListener extends GuardControls {
  (req: IncomingMessage, res: ServerResponse): void
}

/** Protects listeners that share their options. */
export interface Protect extends GuardControls {
  (listener: NodeListener): ProtectedListener
  /** Returns a copy with these options overridden: `protect.with({ operation: 'pay' })`. */
  with(route: Partial<IdempotencyOptions>): Protect
}

/** Set on the request itself: values of a WeakMap live until a full garbage collection. */
const CONTEXT = Symbol('oncekey.context')

type NodeRequest = IncomingMessage & { [CONTEXT]?: HandlerContext }

const protectedListeners = new WeakSet<NodeListener>()

/**
 * Protects several listeners with shared options: each `Idempotency-Key` runs at most once, and
 * its reply is replayed after that. Name the `operation` of each listener.
 *
 * @example
 * ```ts
 * const protect = idempotency({ store, tenant: (req) => accountOf(req) })
 * const pay = protect.with({ operation: 'pay' })(async (req, res) => { … })
 * const refund = protect.with({ operation: 'refund' })(async (req, res) => { … })
 * ```
 */
export function idempotency(options: IdempotencyOptions): Protect {
  refuseRequest(options)
  const { onRequestError, ...guardOptions } = options ?? {}
  optionalFunction('onRequestError', onRequestError)
  const guard = createGuard(guardOptions)
  const answer = answerWith(onRequestError)
  const protect = (listener: NodeListener) => protectedBy(guard, listener, answer)
  return Object.assign(protect, {
    ...controlsOf(guard),
    with: (route: Partial<IdempotencyOptions>) => idempotency(forRoute(options, route)),
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
export function withIdempotency(
  listener: NodeListener,
  options: IdempotencyOptions,
): ProtectedListener {
  return idempotency(options)(listener)
}

/**
 * The idempotency context of a request: its key, and the methods that its listener can call.
 * Throws if the request has none, so that the first request finds an unprotected route.
 */
export function idempotencyOf(req: IncomingMessage): HandlerContext {
  const { [CONTEXT]: context } = req as NodeRequest
  if (context !== undefined) return context
  throw new InvalidRequestError(
    `${req.method} ${req.url} is not protected: wrap its listener in withIdempotency(), and send ` +
      'a key with the request',
  )
}

function protectedBy(
  guard: Guard<IncomingMessage>,
  listener: NodeListener,
  answerError: AnswerError,
): ProtectedListener {
  checkListener(listener)
  const protectedListener = (req: NodeRequest, res: ServerResponse): void => {
    // Thrown, not answered, so that the outer guard sees the error.
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
  return Object.assign(protectedListener, controlsOf(guard))
}

function checkListener(listener: NodeListener): void {
  if (typeof listener !== 'function') {
    throw new InvalidOptionsError(`idempotency needs a request listener, got ${describe(listener)}`)
  }
  if (protectedListeners.has(listener)) throw wrappedTwice()
}

/** Responses of HTTP/2 look alike, but they cannot be captured in the same way. */
function notSupported(): InvalidOptionsError {
  return new InvalidOptionsError(
    'oncekey/node protects only listeners of node:http and node:https, because responses of ' +
      'node:http2 are different. Serve this route over HTTP/1.1, or with oncekey/fetch',
  )
}

/** The inner guard would find that the outer one holds the key, and refuse every request. */
function wrappedTwice(): InvalidOptionsError {
  return new InvalidOptionsError(
    'this listener is wrapped in withIdempotency() twice, for example alone and together with ' +
      'its server: wrap it once',
  )
}

function toExchange(req: IncomingMessage, handler: NodeHandler): HttpExchange {
  const [path, query] = splitUrl(req.url ?? '/')
  return {
    method: req.method ?? 'GET',
    path,
    query,
    // No router has matched the path, so each path is a separate route.
    route: path,
    header: (name) => req.headers[name],
    body: (bytesMax) => handler.body(bytesMax),
  }
}
