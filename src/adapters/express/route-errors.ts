/**
 * Lets the guard of a request see the errors of handlers before an error handler of the application
 * turns them into replies. In a reply, a lost network call looks like any other 500, and a lost
 * call must not run again.
 *
 * The guard sees every handler of a route, and every error handler that one of their errors can
 * reach (`watched-layers.ts`). The guard does not see `router.use()` and `router.param()`:
 * `errors.ts` reports their errors. A 5xx from code that the guard cannot see counts as unknown.
 *
 * Tests: test/adapters/express/failures/.
 */
import type { Request } from 'express'
import { handleOf, stackOf } from './stack.ts'
import { isHandler, setWatch, watchLayers, type HandlerWatch } from './watched-layers.ts'

const ROUTE = Symbol('oncekey.route')

interface RouteField {
  [ROUTE]?: unknown
}

/** Reports the handlers that this request runs from now on. Returns `false` if it cannot. */
export function watchRequest(req: Request, watch: HandlerWatch, guard: unknown): boolean {
  setWatch(req, watch)
  // `req.route` may be a route that the request has left: Express does not reset it.
  const stack = stackOf(req.route)
  const at = stack.findIndex((layer) => handleOf(layer) === guard)
  const behind = stack.slice(at + 1)
  watchLayers(behind)
  const staysInRoute = at !== -1 && behind.length > 0 && behind.every(isHandler)
  return staysInRoute || watchNextRoutes(req)
}

/**
 * Watches the routes that this request reaches: Express sets `req.route` before it calls the
 * handlers of a route. Called only if needed, because a request with an accessor is slower. Returns
 * `false` if another package has made `req.route` an accessor.
 */
export function watchNextRoutes(req: Request): boolean {
  if (Object.hasOwn(req, ROUTE)) return true
  const own = Object.getOwnPropertyDescriptor(req, 'route')
  if (own !== undefined && !('value' in own)) return false
  ;(req as RouteField)[ROUTE] = req.route
  return Reflect.defineProperty(req, 'route', ROUTE_PROPERTY)
}

/** Shared by all requests: separate functions would give each request its own hidden class. */
const ROUTE_PROPERTY: PropertyDescriptor & ThisType<RouteField> = {
  configurable: true,
  enumerable: true,
  get() {
    return this[ROUTE]
  },
  set(route: unknown) {
    this[ROUTE] = route
    watchLayers(stackOf(route))
  },
}
