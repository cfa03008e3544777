/** The routes that the plugin protects, each with its guard. */
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { InvalidOptionsError } from '../../core/errors.ts'
import type { GuardOptions } from '../../http/guard/guard-options.ts'
import { controlsOf, createGuard, type Guard, type GuardControls } from '../../http/guard/guard.ts'
import { markGuard } from '../../http/guard/route-audit.ts'
import { forRoute, type RouteOptions } from '../../http/guard/route-options.ts'
import { REQUEST_BODY_BYTES_MAX } from '../../protocol/limits.ts'
import type { ProtectedRoute } from './handler.ts'
import { routesOf, type RouteContext } from './route-list.ts'
import { eraseNames } from './route.ts'

/** The state of one hook of the plugin on one route. */
interface RouteHook {
  readonly routes: ProtectedRoutes
  /** `undefined` until the app is ready; `null` for a route that opts out. */
  route: ProtectedRoute | null | undefined
}

const routeHooks = new WeakMap<object, RouteHook>()

/** Returns the route of a hook; `undefined` for an unprotected request. */
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

  get controls(): GuardControls {
    return controlsOf(this.#guard)
  }

  /**
   * Creates a separate hook for each route: Fastify calls `bind` on a hook once per route, and this
   * `bind` returns a new one.
   */
  hookPerRoute<Hook extends object>(make: (routeOf: RouteOf) => Hook): Hook {
    const unbound = () => {
      throw new InvalidOptionsError(
        'oncekey/fastify does not support this version of Fastify: use a version of Fastify 5 ' +
          'that it was tested with',
      )
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

  /** Creates the guards of all routes when all plugins are loaded. Throws for wrong options. */
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
        `${name} has config.idempotency, but no plugin protects it: register idempotency in its ` +
          'context or in one around it',
      )
    }
    if (routeHooks.get(hook)!.routes !== this) return
    const route = this.#toRoute(context, name)
    if (own !== undefined && !canApply(route, own, methods)) {
      throw new InvalidOptionsError(
        `${name} has config.idempotency, but its method is not protected: name it in methods`,
      )
    }
    for (const one of [...hooksOn(context.preParsing), hook]) routeHooks.get(one)!.route = route
    moveToEnd(context.preHandler!, hook)
    // First, because hooks behind a failing hook do not run, and hooks behind a slow one run late.
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
      `${method} ${url} was added after the app was ready, so it is not protected: add all ` +
        'routes before app.ready()',
    )
  }
  return route?.guard.protects(method) === true ? route : undefined
}

function hooksOn(list: unknown[] | null | undefined): object[] {
  return (list ?? []).filter((hook): hook is object => routeHooks.has(hook as object))
}

/** Whether the options of a route can apply. Options without a protected method are a mistake. */
function canApply(route: ProtectedRoute | null, own: unknown, methods: readonly string[]): boolean {
  if (route === null || (own as RouteOptions<FastifyRequest>).methods !== undefined) return true
  // Fastify adds HEAD to routes.
  return methods.some((method) => method === 'HEAD' || route.guard.protects(method))
}

/**
 * Hooks of a route come behind those of its context, and some of them authenticate the caller. A
 * replay must not be sent before all of them have run.
 */
function moveToEnd(list: unknown[], hook: unknown): void {
  list.splice(list.indexOf(hook), 1)
  list.push(hook)
}

function moveToStart(list: unknown[], hook: unknown): void {
  list.splice(list.indexOf(hook), 1)
  list.unshift(hook)
}

/** The second guard would find that the first one holds the key, and refuse every request. */
export function registeredTwice(where: string): InvalidOptionsError {
  return new InvalidOptionsError(
    `idempotency is registered twice on the way to ${where}, for example in the app and in a ` +
      'plugin: register it once, and override its options for a route in config.idempotency',
  )
}
