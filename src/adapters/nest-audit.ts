import type { INestApplicationContext } from '@nestjs/common'
import { ModulesContainer, type ApplicationConfig } from '@nestjs/core'
import {
  authenticatesBy,
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
  const authenticated = authenticatedBy(config, options)
  const methods = options?.methods ?? ['POST', 'PATCH']
  const found = routesOf(modules, config).flatMap((route) => {
    const verbs = route.method === 'ALL' ? methods : [route.method]
    return verbs.flatMap((method) =>
      route.paths.map((path): FoundRoute => {
        return {
          method,
          path,
          guarded: guarded(route, method),
          authenticated: authenticated(route),
        }
      }),
    )
  })
  return toAudit(found, options)
}

function guardedBy(app: INestApplicationContext): (route: NestRoute, method: string) => boolean {
  const routes = routesIn(app)
  return ({ controller, handler }, method) =>
    routes?.guardOf(controller, handler)?.protects(method) ?? false
}

/** The key under which `@UseGuards()` writes. Nest keeps it in a file that it does not export. */
const GUARDS = '__guards__'

/**
 * Nest runs all guards of a route before any interceptor, and so before ours: a guard that is there
 * comes first. Guards count by their class, without subclasses, which may let more callers pass.
 */
function authenticatedBy(
  config: ApplicationConfig,
  options: AuditOptions | undefined,
): (route: NestRoute) => boolean {
  const authenticates = authenticatesBy(options)
  const isOne = (guard: unknown) =>
    authenticates(guard) || authenticates((guard as object | undefined)?.constructor)
  const isGlobal =
    config.getGlobalGuards().some(isOne) ||
    config.getGlobalRequestGuards().some(({ metatype }) => isOne(metatype))
  const guardsOf = (target: object) => (Reflect.getMetadata(GUARDS, target) ?? []) as unknown[]
  return ({ controller, handler }) =>
    isGlobal || [...guardsOf(controller), ...guardsOf(handler)].some(isOne)
}

/** An app without the module has nothing that is protected. */
function routesIn(app: INestApplicationContext): NestRoutes | undefined {
  try {
    return app.get<NestRoutes>(ROUTES, { strict: false })
  } catch {
    return undefined
  }
}
