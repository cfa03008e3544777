import type { INestApplicationContext } from '@nestjs/common'
import { ModulesContainer, type ApplicationConfig } from '@nestjs/core'
import {
  toAudit,
  type AuditOptions,
  type FoundRoute,
  type RouteAudit,
} from '../http/route-audit.ts'
import { ROUTES } from './nest-decorators.ts'
import { routesOf, type NestRoute } from './nest-paths.ts'
import type { NestRoutes } from './nest-routes.ts'

/**
 * Every route of every controller that changes something, and whether it is protected. What was
 * mounted on Express or Fastify directly, Nest knows nothing of, and neither does this.
 *
 * @example
 * ```ts
 * const app = await NestFactory.create(AppModule)
 * app.setGlobalPrefix('api')
 * requireProtected(auditRoutes(app, { except: ['/api/login'] }))
 * await app.listen(3000)
 * ```
 */
export function auditRoutes(app: INestApplicationContext, options?: AuditOptions): RouteAudit {
  const { config } = app as unknown as { readonly config: ApplicationConfig }
  const modules = app.get(ModulesContainer, { strict: false })
  const guarded = guardedBy(app)
  const methods = options?.methods ?? ['POST', 'PATCH']
  const found = routesOf(modules, config).flatMap((route) => {
    const verbs = route.method === 'ALL' ? methods : [route.method]
    return verbs.flatMap((method) =>
      route.paths.map((path): FoundRoute => ({ method, path, guarded: guarded(route, method) })),
    )
  })
  return toAudit(found, options)
}

function guardedBy(app: INestApplicationContext): (route: NestRoute, method: string) => boolean {
  const routes = routesIn(app)
  return ({ controller, handler }, method) =>
    routes?.guardOf(controller, handler)?.protects(method) ?? false
}

/** An app without the module has nothing that is protected. */
function routesIn(app: INestApplicationContext): NestRoutes | undefined {
  try {
    return app.get<NestRoutes>(ROUTES, { strict: false })
  } catch {
    return undefined
  }
}
