/**
 * Reports the errors of a route's handlers to the guard before an error handler of the application
 * turns them into replies. In a reply, a lost network call looks like any other 500, and a lost
 * call must not run again.
 *
 * The handlers behind the guard are wrapped where Express keeps them: in the layers of the
 * matched route. An additional layer in the route would move the handlers behind it, and a request
 * in progress would run one of them twice. Express 4 and 5 are the same here.
 *
 * Errors of `router.use()` and `router.param()` happen outside a route: `errors.ts` reports those.
 */
import type { NextFunction, Request, Response } from 'express'
import { isThenable } from '../../core/thenable.ts'
import { isGuard } from '../../http/guard/route-audit.ts'
import { stackOf, type Layer } from './stack.ts'

/** Receives the events of the route handlers of one request. */
export interface HandlerWatch {
  /** A handler of a route was called. */
  entered(): void
  /** A handler called `next()` without an error. */
  left(): void
  /** A handler threw, rejected, or called `next(error)`. */
  failed(error: unknown): void
  /** Whether `failed` was called. */
  readonly hasFailed: boolean
}

const WATCH = Symbol('oncekey.watch')
const ROUTE = Symbol('oncekey.route')
const WATCHED = Symbol('oncekey.watched')

type WatchedRequest = Request & { [WATCH]?: HandlerWatch; [ROUTE]?: unknown }
type Handler = (req: Request, res: Response, next: NextFunction) => unknown
type RouteLayer = Layer & { handle?: unknown }

/** Reports the handlers that this request runs from now on. */
export function watchHandlers(req: Request, watch: HandlerWatch, guard: unknown): void {
  const request = req as WatchedRequest
  request[WATCH] = watch
  const layers = stackOf(req.route ?? {}) as RouteLayer[]
  for (const layer of layers) watchLayer(layer)
  // `req.route` may be a route that the request has left: Express does not reset it.
  const at = layers.findIndex(({ handle }) => handle === guard)
  const behind = at === -1 ? [] : layers.slice(at + 1)
  if (behind.length === 0 || !behind.every(isHandler)) watchNextRoutes(request)
}

/** The guard of this request, if it has one. */
export function watchOf(req: Request): HandlerWatch | undefined {
  return (req as WatchedRequest)[WATCH]
}

/** Shared by all requests: separate functions would give each request its own hidden class. */
const ROUTE_PROPERTY: PropertyDescriptor & ThisType<WatchedRequest> = {
  configurable: true,
  enumerable: true,
  get() {
    return this[ROUTE]
  },
  set(route: unknown) {
    this[ROUTE] = route
    for (const layer of stackOf(route ?? {})) watchLayer(layer)
  },
}

/** Express sets `req.route` when a route matches, before it calls the handlers of the route. */
function watchNextRoutes(req: WatchedRequest): void {
  if (Object.hasOwn(req, ROUTE)) return
  req[ROUTE] = req.route
  Object.defineProperty(req, 'route', ROUTE_PROPERTY)
}

function watchLayer(layer: RouteLayer): void {
  if (isHandler(layer) && !(WATCHED in layer.handle)) layer.handle = watched(layer.handle)
}

/**
 * Whether the layer holds a request handler. A guard stays unwrapped, because an audit looks for it
 * in the layer. A router or app may contain error handlers, so only its routes are watched.
 */
function isHandler(layer: RouteLayer): layer is RouteLayer & { handle: Handler } {
  const { handle } = layer
  if (typeof handle !== 'function' || handle.length > 3 || isGuard(handle)) return false
  return !('handle' in handle)
}

function watched(handle: Handler): Handler {
  const handler: Handler = (req, res, next) => {
    const watch = watchOf(req)
    if (watch === undefined) return handle(req, res, next)
    watch.entered()
    try {
      const result = handle(req, res, watchedNext(req as WatchedRequest, watch, next))
      return isThenable(result) ? watchedPromise(result, watch) : result
    } catch (error) {
      watch.failed(error)
      throw error
    }
  }
  return Object.assign(handler, { [WATCHED]: true })
}

/** `next('route')` and `next('router')` skip handlers; every other truthy value is an error. */
const isError = (argument: unknown): boolean =>
  Boolean(argument) && argument !== 'route' && argument !== 'router'

function watchedNext(req: WatchedRequest, watch: HandlerWatch, next: NextFunction): NextFunction {
  return (argument?: unknown) => {
    if (isError(argument)) {
      watch.failed(argument)
    } else {
      watch.left()
      watchNextRoutes(req)
    }
    next(argument)
  }
}

/**
 * A thenable of another class may be a query that runs when `then` is called. Express 5 calls
 * `then` and Express 4 does not, so the returned object leaves that call to Express.
 */
function watchedPromise(result: PromiseLike<unknown>, watch: HandlerWatch): PromiseLike<unknown> {
  const settled = (): PromiseLike<unknown> => result.then(undefined, failure(watch))
  if (result instanceof Promise) return settled()
  // oxlint-disable-next-line unicorn/no-thenable -- Express 5 calls it, and awaits nothing else.
  return { then: (resolved, rejected) => settled().then(resolved, rejected) }
}

function failure(watch: HandlerWatch): (error: unknown) => never {
  return (error) => {
    watch.failed(error)
    throw error
  }
}
