import type { INestApplicationContext } from '@nestjs/common'
import { ModulesContainer, type ApplicationConfig } from '@nestjs/core'
import {
  authenticatesBy,
  toAudit,
  type AuditOptions,
  type FoundRoute,
  type RouteAudit,
} from '../../http/guard/route-audit.ts'
import { ROUTES } from './decorators.ts'
import { routesOf, type NestRoute } from './route.ts'
import type { NestRoutes } from './protected-routes.ts'

/**
 * Lists the routes of all controllers that change state, protected and unprotected. Routes that are
 * mounted directly on Express or Fastify are not listed, because Nest does not know them. Call it
 * after `setGlobalPrefix` and `enableVersioning`, which change the paths.
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

/** The metadata key of `@UseGuards()`. Nest defines it in a file that it does not export. */
const GUARDS = '__guards__'

/**
 * Nest runs all guards of a route before any interceptor, so every guard of the route comes before
 * `IdempotencyInterceptor`. Subclasses of an authentication guard do not count, because they may
 * let more callers pass.
 */
function authenticatedBy(
  config: ApplicationConfig,
  options: AuditOptions | undefined,
): (route: NestRoute) => boolean {
  const authenticates = authenticatesBy(options)
  const isAuthentication = (guard: unknown) =>
    authenticates(guard) || authenticates((guard as object | undefined)?.constructor)
  const isGlobal =
    config.getGlobalGuards().some(isAuthentication) ||
    config.getGlobalRequestGuards().some(({ metatype }) => isAuthentication(metatype))
  const guardsOf = (target: object) => (Reflect.getMetadata(GUARDS, target) ?? []) as unknown[]
  return ({ controller, handler }) =>
    isGlobal || [...guardsOf(controller), ...guardsOf(handler)].some(isAuthentication)
}

/** `undefined` for an app without the module: none of its routes is protected. */
function routesIn(app: INestApplicationContext): NestRoutes | undefined {
  try {
    return app.get<NestRoutes>(ROUTES, { strict: false })
  } catch {
    return undefined
  }
}
