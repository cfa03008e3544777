/** Finds the routes of `@koa/router` that no guard stands before. */
import { InvalidOptionsError } from '../core/errors.ts'
import { describe } from '../core/options.ts'
import {
  auditedMethods,
  authenticatedFirst,
  authenticatesBy,
  guards,
  toAudit,
  type AuditOptions,
  type Authenticates,
  type FoundRoute,
  type Met,
  type RouteAudit,
} from '../http/route-audit.ts'
import type { RouterLayer } from './koa-route.ts'

export interface KoaAuditOptions extends AuditOptions {
  /**
   * Middlewares of the app that answer no request that changes something: an audit cannot look
   * into a function. `'all'`: none does but the routers.
   *
   * @default []
   */
  passes?: 'all' | readonly unknown[]
}

/** A router of `@koa/router`, as far as an audit looks at it. */
interface AuditedRouter {
  readonly stack: readonly RouterLayer[]
  /** Of the layers that match, only one runs: no middleware of the router itself. */
  readonly exclusive?: boolean
}

interface AuditedApp {
  readonly middleware: readonly unknown[]
}

interface Found extends FoundRoute {
  /** A guard stands before it, but a request may take another spelling of the path around it. */
  readonly evaded: boolean
}

/**
 * Sorts the routes that change something by whether a guard stands before them. Takes a router,
 * several, or the app with everything that is mounted on it. Nested routers, prefixes and guards
 * mounted by `router.use()` or `app.use()` are seen; where it cannot see, it throws.
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
    if (isApp(one)) return foundInApp(one, search, passes)
    const router = routerOf(one)
    if (router === undefined) throw notAuditable(one)
    return foundInRouter(router, search, [])
  })
  return refuseEvaded(found, toAudit(found, audit))
}

interface Search {
  readonly methods: readonly string[]
  readonly authenticates: Authenticates
}

function foundInApp(
  { middleware }: AuditedApp,
  search: Search,
  passes: 'all' | readonly unknown[],
): Found[] {
  const { methods, authenticates } = search
  const isMet = (one: unknown) =>
    authenticates(one) || methods.some((method) => guards(one, method))
  const before: unknown[] = []
  const opaque: string[] = []
  const found: Found[] = []
  for (const [index, one] of middleware.entries()) {
    const isGuarded = methods.every((method) => before.some((guard) => guards(guard, method)))
    const router = routerOf(one)
    if (router !== undefined) found.push(...foundInRouter(router, search, before))
    else if (isMet(one)) before.push(one)
    else if (!isGuarded && passes !== 'all' && !passes.includes(one)) {
      opaque.push(`number ${index + 1}, ${nameOf(one)}`)
    }
  }
  if (opaque.length > 0) throw cannotSee(opaque)
  return found
}

function foundInRouter(
  { stack, exclusive }: AuditedRouter,
  { methods, authenticates }: Search,
  before: readonly unknown[],
): Found[] {
  return stack.flatMap((route, index) =>
    route.methods
      .filter((method) => methods.includes(method))
      .map((method): Found => {
        const kindOf: KindOf = (one) => {
          if (guards(one, method)) return 'guard'
          return authenticates(one) ? 'authentication' : undefined
        }
        const isGuard = (one: unknown) => kindOf(one) === 'guard'
        const layers = exclusive === true ? [] : stack.slice(0, index)
        const inTheWay = layers.filter(
          ({ methods: own }) => own.length === 0 || own.includes(method),
        )
        const met = [
          ...metIn(before, kindOf, true),
          ...inTheWay.flatMap((layer) => metInLayer(layer, route, kindOf)),
        ]
        const guarded =
          met.some(({ kind, isSure }) => kind === 'guard' && isSure) ||
          guardsHandler(route.stack, isGuard)
        const evaded =
          !guarded &&
          inTheWay.some((layer) => layer.stack.some(isGuard) && coversAsWritten(layer, route))
        const authenticated = authenticatedFirst([...met, ...metIn(route.stack, kindOf, true)])
        return { method, path: String(route.path), guarded, evaded, authenticated }
      }),
  )
}

type KindOf = (middleware: unknown) => Met['kind'] | undefined

function metIn(middlewares: readonly unknown[], kindOf: KindOf, isSure: boolean): Met[] {
  return middlewares.flatMap((one) => {
    const kind = kindOf(one)
    return kind === undefined ? [] : [{ kind, isSure }]
  })
}

/** What requests to the route meet in an earlier layer: surely, perhaps, or not at all. */
function metInLayer(layer: RouterLayer, route: RouterLayer, kindOf: KindOf): Met[] {
  const met = metIn(layer.stack, kindOf, true)
  if (met.length === 0 || covers(layer, route)) return met
  const samples = samplesOf(layer, route)
  const mayMeet = samples.length === 0 || samples.some((path) => layer.match(path))
  return mayMeet ? met.map(({ kind }) => ({ kind, isSure: false })) : []
}

/** A guard behind the handler protects nothing. */
function guardsHandler(stack: readonly unknown[], isGuard: (one: unknown) => boolean): boolean {
  const at = stack.findIndex(isGuard)
  return at !== -1 && (at < stack.length - 1 || stack.length === 1)
}

/** Layers with these paths are entered by every request. */
const EVERYWHERE: ReadonlySet<unknown> = new Set([String.raw`(?:\/|$)`, '{/*rest}', '(.*)'])

/** Whether every request for the route passes through the layer, however its path is spelt. */
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

/** More variants than this no path has. */
const SAMPLES_MAX = 64

/** A segment that no path names. */
const SEGMENT = 'oncekey~0'

/**
 * Paths that stand for all that the route matches. None where that cannot be told, as for a
 * regular expression.
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

/** An optional group without another in it, or a parameter. */
const VARIABLE = /\{([^{}]*)\}|([:*])(?:[\p{ID_Start}$_][\p{ID_Continue}$]*|"[^"]*")/u

function variantsOf(path: string): string[] {
  const put = (value: string) => path.replace(VARIABLE, () => value)
  const [, group, sign] = VARIABLE.exec(path)!
  if (group !== undefined) return [put(group), put('')]
  return sign === '*' ? [put(SEGMENT), put(`${SEGMENT}/${SEGMENT}`)] : [put(SEGMENT)]
}

function refuseEvaded(found: readonly Found[], audit: RouteAudit): RouteAudit {
  const isOpen = (one: Found) =>
    audit.unprotected.some(({ method, path }) => method === one.method && path === one.path)
  const evaded = found.filter((one) => one.evaded && isOpen(one))
  if (evaded.length === 0) return audit
  const list = evaded.map(({ method, path }) => `${method} ${path}`).join(', ')
  throw new InvalidOptionsError(
    `a guard stands before ${list}, but only for the case in which its path is written, while ` +
      'the route matches any: @koa/router compares the prefix of router.use() by case. Put ' +
      'idempotency() on the routes, or on the app before router.routes(), or make the router ' +
      '{ sensitive: true }',
  )
}

function isApp(target: unknown): target is AuditedApp {
  const { middleware } = (target ?? {}) as Partial<AuditedApp>
  return Array.isArray(middleware)
}

/** A router, or what its `routes()` returns. */
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
      'answer no request that changes something, name them in { passes: [...] }, or write ' +
      "passes: 'all'; if one has routes in it (koa-mount, koa-compose), audit its routers too: " +
      'auditRoutes([router, ...])',
  )
}

function notAuditable(target: unknown): InvalidOptionsError {
  return new InvalidOptionsError(
    'auditRoutes takes a router of @koa/router, a list of them, or an app, got ' +
      `${describe(target)}. Routes of other routers it cannot see: check those by hand`,
  )
}
