/** What the plugin knows of the routes that it protects. */
import type { FastifyInstance, FastifyRequest } from 'fastify'
import type { Engine } from '../core/engine.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import type { GuardOptions } from '../http/guard-options.ts'
import { createGuard, type Guard } from '../http/guard.ts'
import { markGuard } from '../http/route-audit.ts'
import { forRoute, type RouteOptions } from '../http/route-options.ts'
import { REQUEST_BODY_BYTES_MAX } from '../protocol/limits.ts'
import type { ProtectedRoute } from './fastify-guard.ts'
import { eraseNames, routesOf, type RouteContext } from './fastify-routes.ts'

/** A hook of ours on its way to one route. */
interface RouteHook {
  readonly routes: ProtectedRoutes
  /** `undefined` until the app is ready; `null` where the route is to be left alone. */
  route: ProtectedRoute | null | undefined
}

const routeHooks = new WeakMap<object, RouteHook>()

/** Gives a hook its route: none where it is not protected. */
export type RouteOf = (request: FastifyRequest) => ProtectedRoute | undefined

export class ProtectedRoutes {
  readonly #app: FastifyInstance
  readonly #options: GuardOptions<FastifyRequest>
  readonly #guard: Guard<FastifyRequest>
  readonly #byOptions = new Map<unknown, Guard<FastifyRequest>>()
  #isPrepared = false

  constructor(app: FastifyInstance, options: GuardOptions<FastifyRequest>) {
    this.#app = app
    this.#options = options
    this.#guard = createGuard(options)
  }

  get engine(): Engine {
    return this.#guard.engine
  }

  /**
   * Makes a hook of which every route has its own: Fastify binds hooks to their context once for
   * each route, and here it gets a new one when it does.
   */
  hookPerRoute<Hook extends object>(make: (routeOf: RouteOf) => Hook): Hook {
    const unbound = () => {
      throw new InvalidOptionsError('oncekey/fastify does not know this version of Fastify')
    }
    const bind = () => {
      const state: RouteHook = { routes: this, route: undefined }
      const hook = make((request) => toRoute(state, request))
      routeHooks.set(hook, state)
      return markGuard(hook, (method) => {
        this.prepare()
        return state.route?.guard.protects(method) ?? false
      })
    }
    return Object.defineProperty(unbound, 'bind', { value: bind }) as unknown as Hook
  }

  /** Makes the guards of all routes, once all plugins are loaded. What is wrong is said here. */
  prepare(): void {
    if (this.#isPrepared) return
    this.#isPrepared = true
    const routes = routesOf(this.#app)
    for (const context of new Set(routes.map((one) => one.context))) {
      const same = routes.filter((one) => one.context === context)
      const methods = same.map(({ method }) => method)
      this.#prepareRoute(context, { methods, name: `${methods.join('|')} ${same[0]!.path}` })
    }
  }

  #prepareRoute(context: RouteContext, { methods, name }: NamedRoute): void {
    const hooks = hooksOn(context.preHandler)
    if (hooks.length > 1) throw registeredTwice(name)
    const [hook] = hooks
    const own: unknown = context.config.idempotency
    if (hook === undefined) {
      if (own === undefined || own === false) return
      throw new InvalidOptionsError(
        `${name} has config.idempotency, but nothing protects it: register idempotency in its ` +
          'context or in one around it',
      )
    }
    if (routeHooks.get(hook)!.routes !== this) return
    const route = this.#toRoute(context, name)
    if (own !== undefined && !isMeant(route, own, methods)) {
      throw new InvalidOptionsError(
        `${name} has config.idempotency, but its method is not protected: name it in methods`,
      )
    }
    for (const one of [...hooksOn(context.preParsing), hook]) routeHooks.get(one)!.route = route
    moveToEnd(context.preHandler!, hook)
    // Those behind one that fails see nothing, and those behind a slow one see it too late.
    for (const list of [context.onError!, context.onSend!]) moveToStart(list, hooksOn(list)[0]!)
  }

  #toRoute({ config }: RouteContext, name: string): ProtectedRoute | null {
    if (config.idempotency === false) return null
    try {
      const options =
        config.idempotency === undefined
          ? this.#options
          : forRoute(this.#options, config.idempotency as RouteOptions<FastifyRequest>)
      return {
        guard: this.#guardFor(config.idempotency, options),
        requestBytesMax: options.requestBytesMax ?? REQUEST_BODY_BYTES_MAX,
        template: eraseNames(config.url),
      }
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error)
      throw new InvalidOptionsError(`config.idempotency of ${name}: ${message}`, { cause: error })
    }
  }

  #guardFor(own: unknown, options: GuardOptions<FastifyRequest>): Guard<FastifyRequest> {
    if (own === undefined) return this.#guard
    const made = this.#byOptions.get(own) ?? createGuard(options)
    this.#byOptions.set(own, made)
    return made
  }
}

interface NamedRoute {
  readonly methods: readonly string[]
  readonly name: string
}

function toRoute(
  { route }: RouteHook,
  { is404, method, url }: FastifyRequest,
): ProtectedRoute | undefined {
  if (route === undefined && !is404) {
    throw new InvalidOptionsError(
      `${method} ${url} was added after the start, so nobody knows how to protect it`,
    )
  }
  return route?.guard.protects(method) === true ? route : undefined
}

function hooksOn(list: unknown[] | null | undefined): object[] {
  return (list ?? []).filter((hook): hook is object => routeHooks.has(hook as object))
}

/** Whether options of a route can mean anything: who writes them believes that it is protected. */
function isMeant(route: ProtectedRoute | null, own: unknown, methods: readonly string[]): boolean {
  if (route === null || (own as RouteOptions<FastifyRequest>).methods !== undefined) return true
  // Fastify adds HEAD to routes by itself.
  return methods.some((method) => method === 'HEAD' || route.guard.protects(method))
}

/**
 * Hooks of a route come behind those of its context, and some of them ask who the caller is. A
 * replay must not be shown before all of them have been asked.
 */
function moveToEnd(list: unknown[], hook: unknown): void {
  list.splice(list.indexOf(hook), 1)
  list.push(hook)
}

function moveToStart(list: unknown[], hook: unknown): void {
  list.splice(list.indexOf(hook), 1)
  list.unshift(hook)
}

/** The second guard would find the key held by the first, and refuse every request for ever. */
export function registeredTwice(where: string): InvalidOptionsError {
  return new InvalidOptionsError(
    `idempotency is registered twice on the way to ${where}, as for the app and in a plugin of ` +
      'it: register it once, and change it for a route by its config.idempotency',
  )
}
