/** The routes of a Fastify app with the hooks on their way, as the router has them. */
import type { FastifyInstance } from 'fastify'
import { InvalidOptionsError } from '../core/errors.ts'
import { guards, toAudit, type AuditOptions, type RouteAudit } from '../http/route-audit.ts'
import { authenticationOf } from './fastify-authentication.ts'

/** What Fastify keeps for a route. Several methods of one route share it. */
export interface RouteContext {
  readonly config: { readonly url: string; readonly idempotency?: unknown }
  /** Absent until all plugins are loaded, `null` where there are none. */
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
 * All routes, whoever has added them and when. Fastify lists them only as text, so this listens to
 * the router while it prints: it asks what to print about each of them. Throws where it cannot
 * know them all.
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
    // The router puts its own function there, which knows less.
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
    'oncekey/fastify cannot read the routes of this version of Fastify, so it cannot tell which ' +
      'of them are protected: use a version of Fastify 5 that it was tested with, and report this',
  )
}

/**
 * Lists the routes that change something, and whether a guard is in their way: all of them, also
 * those that were added before the plugin or beside it. Call it when the app is ready.
 *
 * Handlers that are no routes are not listed: those of `setNotFoundHandler`, and middleware.
 *
 * @example
 * ```ts
 * await app.ready()
 * requireProtected(auditRoutes(app, { except: ['/webhooks'] }))
 * ```
 */
export function auditRoutes(app: FastifyInstance, options?: AuditOptions): RouteAudit {
  const routes = routesOf(app)
  // Without any there may still be some to come.
  if (routes.length === 0 || routes.some(({ context }) => !('preParsing' in context))) {
    throw new InvalidOptionsError(
      routes.length === 0
        ? 'auditRoutes found no route at all: call it after await app.ready(), or in onReady'
        : 'auditRoutes cannot know yet which routes are protected, since plugins are still to be ' +
            'loaded: call it after await app.ready(), or in onReady',
    )
  }
  const isAuthenticated = authenticationOf(options)
  const found = routes.map(({ method, path, context }) => {
    const guarded = (context.preHandler ?? []).some((hook) => guards(hook, method))
    return { method, path, guarded, authenticated: isAuthenticated(context) }
  })
  return toAudit(found, options)
}

/** `/users/:id` without its names, which may change: `/users/:`. Patterns of parameters stay. */
export function eraseNames(template: string): string {
  let erased = ''
  let at = 0
  while (at < template.length) {
    // Two colons are how Fastify writes one that is no parameter.
    if (template.startsWith('::', at)) {
      erased += '::'
      at += 2
    } else if (template[at] === ':') {
      const name = /^:[^/.(-]*/.exec(template.slice(at))![0]
      erased += name.endsWith('?') ? ':?' : ':'
      const end = patternEnd(template, at + name.length)
      erased += template.slice(at + name.length, end)
      at = end
    } else {
      erased += template[at]!
      at++
    }
  }
  return erased
}

/** Where the pattern in brackets that begins at `start` ends; `start` where there is none. */
function patternEnd(template: string, start: number): number {
  if (template[start] !== '(') return start
  let depth = 0
  for (let at = start; at < template.length; at++) {
    if (template[at] === '\\') at++
    else if (template[at] === '(') depth++
    else if (template[at] === ')' && --depth === 0) return at + 1
  }
  return template.length
}
