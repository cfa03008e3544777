/** Finds the routes of `@koa/router`, and whether a guard is on the way to each. */
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe } from '../../core/options.ts'
import {
  auditedMethods,
  authenticatedFirst,
  authenticatesBy,
  guards,
  toAudit,
  type AuditOptions,
  type Authenticates,
  type FoundRoute,
  type RouteStep,
  type RouteAudit,
} from '../../http/guard/route-audit.ts'
import type { RouterLayer } from './route.ts'

export interface KoaAuditOptions extends AuditOptions {
  /**
   * Middlewares of the app that answer no request that changes state. The audit cannot look into a
   * function, so it throws for each unnamed one. `'all'` trusts every middleware but the routers.
   *
   * @default []
   */
  passes?: 'all' | readonly unknown[]
}

/** The part of a router of `@koa/router` that the audit reads. */
interface AuditedRouter {
  readonly stack: readonly RouterLayer[]
  /** Only one matching layer runs, so the router runs none of its middlewares. */
  readonly exclusive?: boolean
}

interface AuditedApp {
  readonly middleware: readonly unknown[]
}

interface KoaRoute extends FoundRoute {
  /** A guard covers the route, but a request with another spelling of the path avoids it. */
  readonly evaded: boolean
}

/**
 * Lists the routes that change state, protected and unprotected. Takes a router, a list of routers,
 * or the app with everything that is mounted on it. Sees nested routers, prefixes and guards
 * mounted with `router.use()` or `app.use()`; throws if it cannot see all routes.
 *
 * @example
 * ```ts
 * requireProtected(auditRoutes(router, { except: ['/webhooks/stripe'] }))
 * ```
 */
export function auditRoutes(target: unknown, options: KoaAuditOptions = {}): RouteAudit {
  const { passes = [], ...audit } = options
  if (passes !== 'all' && !Array.isArray(passes)) {
    throw new InvalidOptionsError(
      `auditRoutes: passes must be 'all' or a list of middlewares, got ${describe(passes)}`,
    )
  }
  const search = { methods: [...auditedMethods(options)], authenticates: authenticatesBy(audit) }
  const targets: readonly unknown[] = Array.isArray(target) ? target : [target]
  if (targets.length === 0) throw notAuditable(target)
  const found = targets.flatMap((one) => {
    if (isApp(one)) return routesOfApp(one, search, passes)
    const router = routerOf(one)
    if (router === undefined) throw notAuditable(one)
    return routesOfRouter(router, search, [])
  })
  return refuseEvaded(found, toAudit(found, audit))
}

interface Search {
  readonly methods: readonly string[]
  readonly authenticates: Authenticates
}

function routesOfApp(
  { middleware }: AuditedApp,
  search: Search,
  passes: 'all' | readonly unknown[],
): KoaRoute[] {
  const { methods, authenticates } = search
  const isStep = (one: unknown) =>
    authenticates(one) || methods.some((method) => guards(one, method))
  const before: unknown[] = []
  const opaque: string[] = []
  const found: KoaRoute[] = []
  for (const [index, one] of middleware.entries()) {
    const isGuarded = methods.every((method) => before.some((guard) => guards(guard, method)))
    const router = routerOf(one)
    if (router !== undefined) found.push(...routesOfRouter(router, search, before))
    else if (isStep(one)) before.push(one)
    else if (!isGuarded && passes !== 'all' && !passes.includes(one)) {
      opaque.push(`number ${index + 1}, ${nameOf(one)}`)
    }
  }
  if (opaque.length > 0) throw cannotSee(opaque)
  return found
}

function routesOfRouter(
  { stack, exclusive }: AuditedRouter,
  { methods, authenticates }: Search,
  before: readonly unknown[],
): KoaRoute[] {
  return stack.flatMap((route, index) =>
    route.methods
      .filter((method) => methods.includes(method))
      .map((method): KoaRoute => {
        const kindOf: KindOf = (one) => {
          if (guards(one, method)) return 'guard'
          return authenticates(one) ? 'authentication' : undefined
        }
        const isGuard = (one: unknown) => kindOf(one) === 'guard'
        const layers = exclusive === true ? [] : stack.slice(0, index)
        const inTheWay = layers.filter(
          ({ methods: own }) => own.length === 0 || own.includes(method),
        )
        const steps = [
          ...stepsIn(before, kindOf, true),
          ...inTheWay.flatMap((layer) => stepsInLayer(layer, route, kindOf)),
        ]
        const guarded =
          steps.some(({ kind, isSure }) => kind === 'guard' && isSure) ||
          guardsHandler(route.stack, isGuard)
        const evaded =
          !guarded &&
          inTheWay.some((layer) => layer.stack.some(isGuard) && coversAsWritten(layer, route))
        const authenticated = authenticatedFirst([...steps, ...stepsIn(route.stack, kindOf, true)])
        return { method, path: String(route.path), guarded, evaded, authenticated }
      }),
  )
}

type KindOf = (middleware: unknown) => RouteStep['kind'] | undefined

function stepsIn(middlewares: readonly unknown[], kindOf: KindOf, isSure: boolean): RouteStep[] {
  return middlewares.flatMap((one) => {
    const kind = kindOf(one)
    return kind === undefined ? [] : [{ kind, isSure }]
  })
}

/** The steps in an earlier layer that requests to the route pass: surely, possibly or never. */
function stepsInLayer(layer: RouterLayer, route: RouterLayer, kindOf: KindOf): RouteStep[] {
  const steps = stepsIn(layer.stack, kindOf, true)
  if (steps.length === 0 || covers(layer, route)) return steps
  const samples = samplesOf(layer, route)
  const mayPass = samples.length === 0 || samples.some((path) => layer.match(path))
  return mayPass ? steps.map(({ kind }) => ({ kind, isSure: false })) : []
}

/** Whether a guard stands before the handler. A guard behind it protects nothing. */
function guardsHandler(stack: readonly unknown[], isGuard: (one: unknown) => boolean): boolean {
  const at = stack.findIndex(isGuard)
  return at !== -1 && (at < stack.length - 1 || stack.length === 1)
}

/** Paths of layers that every request enters. */
const EVERYWHERE: ReadonlySet<unknown> = new Set([String.raw`(?:\/|$)`, '{/*rest}', '(.*)'])

/** Whether every request to the route passes the layer, in every spelling of its path. */
function covers(layer: RouterLayer, route: RouterLayer): boolean {
  if (EVERYWHERE.has(layer.path)) return true
  const samples = samplesOf(layer, route)
  const spellings = samples.flatMap((one) => [one, one.toUpperCase(), one.toLowerCase()])
  const requests = spellings.filter((path) => route.match(path))
  return samples.length > 0 && requests.every((path) => layer.match(path))
}

function coversAsWritten(layer: RouterLayer, route: RouterLayer): boolean {
  const samples = samplesOf(layer, route)
  return samples.length > 0 && samples.every((path) => layer.match(path))
}

/** Limits the variants of one path. Real paths have fewer. */
const SAMPLES_MAX = 64

/** A segment that no real path contains. */
const SEGMENT = 'oncekey~0'

/**
 * Paths that represent everything the route matches. Empty if they cannot be derived, for example
 * from a regular expression.
 */
function samplesOf(layer: RouterLayer, route: RouterLayer): string[] {
  if (typeof layer.path !== 'string' || typeof route.path !== 'string') return []
  let variants = [route.path]
  for (;;) {
    const at = variants.findIndex((one) => VARIABLE.test(one))
    if (at === -1) break
    if (variants.length > SAMPLES_MAX) return []
    variants = variants.toSpliced(at, 1, ...variantsOf(variants[at]!))
  }
  return variants.every((path) => route.match(path)) ? variants : []
}

/** An optional group without a nested one, or a parameter. */
const VARIABLE = /\{([^{}]*)\}|([:*])(?:[\p{ID_Start}$_][\p{ID_Continue}$]*|"[^"]*")/u

function variantsOf(path: string): string[] {
  const put = (value: string) => path.replace(VARIABLE, () => value)
  const [, group, sign] = VARIABLE.exec(path)!
  if (group !== undefined) return [put(group), put('')]
  return sign === '*' ? [put(SEGMENT), put(`${SEGMENT}/${SEGMENT}`)] : [put(SEGMENT)]
}

function refuseEvaded(found: readonly KoaRoute[], audit: RouteAudit): RouteAudit {
  const isOpen = (one: KoaRoute) =>
    audit.unprotected.some(({ method, path }) => method === one.method && path === one.path)
  const evaded = found.filter((one) => one.evaded && isOpen(one))
  if (evaded.length === 0) return audit
  const list = evaded.map(({ method, path }) => `${method} ${path}`).join(', ')
  throw new InvalidOptionsError(
    `the guard of ${list} protects only paths in the case in which its path is written, while ` +
      'the route matches any case: @koa/router compares the prefix of router.use() by case. Put ' +
      'idempotency() on the routes, or on the app before router.routes(), or make the router ' +
      '{ sensitive: true }',
  )
}

function isApp(target: unknown): target is AuditedApp {
  const { middleware } = (target ?? {}) as Partial<AuditedApp>
  return Array.isArray(middleware)
}

/** A router, or the middleware that its `routes()` returns. */
function routerOf(target: unknown): AuditedRouter | undefined {
  const { router = target } = (target ?? {}) as { readonly router?: unknown }
  const { stack } = (router ?? {}) as { readonly stack?: unknown }
  if (!Array.isArray(stack)) return undefined
  const isLayer = (one: Partial<RouterLayer> | undefined) =>
    Array.isArray(one?.methods) && Array.isArray(one.stack) && typeof one.match === 'function'
  return stack.every(isLayer) ? (router as AuditedRouter) : undefined
}

function nameOf(middleware: unknown): string {
  const name = typeof middleware === 'function' ? middleware.name : ''
  return name === '' ? 'a function without a name' : name
}

function cannotSee(opaque: readonly string[]): InvalidOptionsError {
  return new InvalidOptionsError(
    `auditRoutes cannot look into these middlewares of the app: ${opaque.join('; ')}. If they ` +
      'answer no request that changes state, name them in { passes: [...] }, or write ' +
      "passes: 'all'. If one contains routes (koa-mount, koa-compose), audit its routers too: " +
      'auditRoutes([router, ...])',
  )
}

function notAuditable(target: unknown): InvalidOptionsError {
  return new InvalidOptionsError(
    'auditRoutes takes a router of @koa/router, a list of them, or an app, got ' +
      `${describe(target)}. It cannot see the routes of other routers: check those by hand`,
  )
}
