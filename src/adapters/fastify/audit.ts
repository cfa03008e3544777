/** Finds the routes of a Fastify app, and whether a guard is on the way to each. */
import type { FastifyInstance } from 'fastify'
import { InvalidOptionsError } from '../../core/errors.ts'
import {
  guards,
  toAudit,
  type AuditOptions,
  type RouteAudit,
} from '../../http/guard/route-audit.ts'
import { authenticationOf } from './audit-authentication.ts'
import { routesOf } from './route-list.ts'

/**
 * Lists the routes that change state, protected and unprotected, including those that were added
 * before the plugin or outside its context. Call it when the app is ready.
 *
 * Handlers that are not routes are not listed: those of `setNotFoundHandler`, and middleware.
 *
 * @example
 * ```ts
 * await app.ready()
 * requireProtected(auditRoutes(app, { except: ['/webhooks'] }))
 * ```
 */
export function auditRoutes(app: FastifyInstance, options?: AuditOptions): RouteAudit {
  const routes = routesOf(app)
  // An app without routes may still load plugins that add some.
  if (routes.length === 0 || routes.some(({ context }) => !('preParsing' in context))) {
    throw new InvalidOptionsError(
      routes.length === 0
        ? 'auditRoutes found no route: call it after await app.ready(), or in onReady'
        : 'auditRoutes does not know yet which routes are protected, because plugins are still ' +
            'being loaded: call it after await app.ready(), or in onReady',
    )
  }
  const isAuthenticated = authenticationOf(options)
  const found = routes.map(({ method, path, context }) => {
    const guarded = (context.preHandler ?? []).some((hook) => guards(hook, method))
    return { method, path, guarded, authenticated: isAuthenticated(context) }
  })
  return toAudit(found, options)
}
