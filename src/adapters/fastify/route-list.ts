/** Reads the routes of a Fastify app, with their hooks, from its router. */
import type { FastifyInstance } from 'fastify'
import { InvalidOptionsError } from '../../core/errors.ts'

/** Fastify's internal context of a route. The methods of one route share it. */
export interface RouteContext {
  readonly config: { readonly url: string; readonly idempotency?: unknown }
  /** Absent until all plugins are loaded; `null` without hooks. */
  readonly preParsing?: unknown[] | null
  readonly preHandler: unknown[] | null
  readonly onError: unknown[] | null
  readonly onSend: unknown[] | null
}

export interface RouterRoute {
  readonly method: string
  readonly path: string
  readonly context: RouteContext
}

/**
 * All routes of the app. Fastify lists them only as text, so this uses the callback that the router
 * calls for each route while it prints. Throws if it cannot read all of them.
 */
export function routesOf(app: FastifyInstance): RouterRoute[] {
  const routes: RouterRoute[] = []
  const print = { includeMeta: true } as unknown as Parameters<FastifyInstance['printRoutes']>[0]
  const describeRoute = (route: unknown) => {
    routes.push(toRoute(route))
    return {}
  }
  Object.defineProperty(print, 'buildPrettyMeta', {
    get: () => describeRoute,
    // Ignores the router's own callback, which does not get the route.
    set() {},
  })
  const printed = app.printRoutes(print)
  if (routes.length === 0 && printed.trim() !== '(empty tree)') throw unknownRouter()
  return routes
}

function toRoute(route: unknown): RouterRoute {
  const { method, path, store } = route as Partial<Record<'method' | 'path' | 'store', unknown>>
  const context = store as Partial<RouteContext> | undefined
  if (typeof method !== 'string' || typeof path !== 'string') throw unknownRouter()
  if (typeof context?.config?.url !== 'string') throw unknownRouter()
  return { method, path, context: context as RouteContext }
}

function unknownRouter(): InvalidOptionsError {
  return new InvalidOptionsError(
    'oncekey/fastify cannot read the routes of this version of Fastify, so it does not know ' +
      'which are protected: use a version of Fastify 5 that it was tested with, and report this',
  )
}
