/**
 * Adapter for plain `node:http` servers. Translates only: what a key means and what each outcome
 * answers is decided in `http/guard.ts`.
 *
 * @module
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Engine } from '../core/engine.ts'
import { InvalidOptionsError, InvalidRequestError } from '../core/errors.ts'
import { describe } from '../core/options.ts'
import type { HttpExchange } from '../http/exchange.ts'
import type { GuardOptions } from '../http/guard-options.ts'
import { createGuard } from '../http/guard.ts'
import type { HandlerContext } from '../http/handler-context.ts'
import { forRoute, type RouteOptions } from '../http/route-options.ts'
import { NodeHandler, splitUrl } from './node-handler.ts'
import { sendReply } from './outgoing.ts'

export { currentIdempotency } from '../http/current.ts'
export { singleTenant } from '../http/guard-options.ts'
export type { HandlerContext } from '../http/handler-context.ts'
export type { RouteOptions } from '../http/route-options.ts'

export interface NodeOptions extends GuardOptions<IncomingMessage> {
  /**
   * Answers a request whose listener failed, or which could not be protected. A plain server has
   * no error handling of its own.
   *
   * @default 500, and a warning of the process
   */
  onRequestError?: (error: unknown, req: IncomingMessage, res: ServerResponse) => void
}

/** What a plain server calls. It may be asynchronous. */
export type NodeListener = (req: IncomingMessage, res: ServerResponse) => unknown

export interface ProtectedListener {
  (req: IncomingMessage, res: ServerResponse): void
  /** The engine behind it: `await listener.engine.close()` belongs into a graceful stop. */
  readonly engine: Engine
}

const contexts = new WeakMap<IncomingMessage, HandlerContext>()

/**
 * Runs each `Idempotency-Key` at most once and replays its reply after that.
 *
 * @example
 * ```ts
 * http.createServer(withIdempotency(listener, { store, tenant: (req) => accountOf(req) }))
 * ```
 */
export function withIdempotency(listener: NodeListener, options: NodeOptions): ProtectedListener {
  if (typeof listener !== 'function') {
    throw new InvalidOptionsError(
      `withIdempotency needs a request listener, got ${describe(listener)}`,
    )
  }
  const { onRequestError = answerFailure, ...guardOptions } = options
  const guard = createGuard(guardOptions)

  const protectedListener = (req: IncomingMessage, res: ServerResponse): void => {
    if (contexts.has(req)) throw wrappedTwice()
    const fail = (error: unknown) => onRequestError(error, req, res)
    const run = async (context?: HandlerContext) => {
      try {
        await listener(req, res)
      } catch (error) {
        context?.failed(error)
        fail(error)
      }
    }
    const handler = new NodeHandler(req, res, {
      enter: (context) => {
        contexts.set(req, context)
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
  return Object.assign(protectedListener, { engine: guard.engine })
}

/** The key of this request and what its listener may do about it. Throws where there is none. */
export function idempotencyOf(req: IncomingMessage): HandlerContext {
  const context = contexts.get(req)
  if (context !== undefined) return context
  throw new InvalidRequestError(
    `${req.method} ${req.url} is not protected: wrap its listener in withIdempotency(), and send ` +
      'a key with the request',
  )
}

/** The second guard would find the key held by the first, and refuse every request for ever. */
function wrappedTwice(): InvalidOptionsError {
  return new InvalidOptionsError(
    'this listener is wrapped in withIdempotency() twice, as by itself and with its server: ' +
      'wrap it once',
  )
}

/** The options of one route, for servers that have several. */
export function routeOptions(
  options: NodeOptions,
  route: RouteOptions<IncomingMessage>,
): NodeOptions {
  return forRoute(options, route)
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

function answerFailure(error: unknown, _req: IncomingMessage, res: ServerResponse): void {
  process.emitWarning(error instanceof Error ? error : new Error(String(error)))
  if (res.writableEnded) return
  // What has begun cannot become an error any more; cut off, its client knows that it failed.
  if (res.headersSent) return void res.destroy()
  const headers = [['Content-Type', 'text/plain; charset=utf-8']] as const
  sendReply(res, { status: 500, headers, body: Buffer.from('Internal Server Error') })
}
