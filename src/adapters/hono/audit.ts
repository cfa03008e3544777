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

/** The part of a Hono app that the audit reads. */
export interface AuditedApp {
  readonly routes: readonly AppRoute[]
}

interface AppRoute {
  readonly method: string
  readonly path: string
  readonly handler: unknown
}

/** The method name of Hono for routes of every method. Middlewares are such routes. */
const ALL = 'ALL'

/**
 * Lists the routes that change state, protected and unprotected. Hono keeps handlers and
 * middlewares in one list, so a function with a second parameter (`next`) counts as a middleware if
 * a route on its path follows. A route counts as unprotected if its guard is inside `every()` or
 * `some()`, or is mounted on a path that may not match every path of the route. Call it when all
 * routes are added.
 *
 * @example
 * ```ts
 * requireProtected(auditRoutes(app, { except: ['/webhooks'] }))
 * ```
 */
export function auditRoutes(app: AuditedApp, options: AuditOptions = {}): RouteAudit {
  const methods = [...auditedMethods(options)]
  const authenticates = authenticatesBy(options)
  const found = new Map<string, FoundRoute>()
  for (const [index, { method: own, path }] of app.routes.entries()) {
    if (!mayAnswer(app.routes, index, methods)) continue
    for (const method of own === ALL ? methods : [own]) {
      const name = `${method} ${path}`
      const steps = stepsBefore(app.routes, index, { method, authenticates })
      const isGuarded = steps.some(({ kind, isSure }) => kind === 'guard' && isSure)
      // If a route has several handlers, one unprotected handler makes the route unprotected.
      const guarded = isGuarded && found.get(name)?.guarded !== false
      const authenticated = authenticatedFirst(steps) && found.get(name)?.authenticated !== false
      found.set(name, { method, path, guarded, authenticated })
    }
  }
  return toAudit(found.values(), options)
}

/** Whether the function at this index may answer a request, and is not only a middleware. */
function mayAnswer(
  routes: readonly AppRoute[],
  index: number,
  methods: readonly string[],
): boolean {
  const { method, path, handler } = routes[index]!
  if (isGuard(handler, methods)) return false
  if (parametersOf(handler) < 2) return true
  return !routes.slice(index + 1).some((later) => {
    return (
      sharesMethod(method, later.method) &&
      covers(path, later.path) &&
      !isGuard(later.handler, methods)
    )
  })
}

interface Search {
  readonly method: string
  readonly authenticates: Authenticates
}

/** The guards and authentications that run before a route, in their order. */
function stepsBefore(
  routes: readonly AppRoute[],
  index: number,
  { method, authenticates }: Search,
): RouteStep[] {
  const { path } = routes[index]!
  return routes.slice(0, index).flatMap((earlier): RouteStep[] => {
    const handler = unwrapped(earlier.handler)
    const isGuard = guards(handler, method)
    if (!isGuard && !authenticates(handler)) return []
    if (!sharesMethod(earlier.method, method) || !mayOverlap(earlier.path, path)) return []
    const kind = isGuard ? 'guard' : 'authentication'
    return [{ kind, isSure: covers(earlier.path, path) }]
  })
}

function sharesMethod(one: string, other: string): boolean {
  return one === other || one === ALL || other === ALL
}

function isGuard(handler: unknown, methods: readonly string[]): boolean {
  return methods.some((method) => guards(unwrapped(handler), method))
}

function parametersOf(handler: unknown): number {
  const { length } = unwrapped(handler) as { readonly length?: unknown }
  return typeof length === 'number' ? length : 0
}

/** The handler without the wrapper that a nested app with its own `onError` puts around it. */
function unwrapped(handler: unknown): unknown {
  let current = handler
  for (;;) {
    const inner = (current as { readonly __COMPOSED_HANDLER?: unknown }).__COMPOSED_HANDLER
    if (inner === undefined) return current
    current = inner
  }
}

/** Whether `wide` is sure to match every path that `narrow` matches. */
function covers(wide: string, narrow: string): boolean {
  const outer = segmentsOf(wide)
  const inner = segmentsOf(narrow)
  const last = outer.length - 1
  const isOpen = outer[last] === '*'
  const fixed = isOpen ? outer.slice(0, last) : outer
  if (isOpen ? inner.length < fixed.length : inner.length !== fixed.length) return false
  return fixed.every((segment, index) => coversSegment(segment, inner[index]!))
}

/** Whether a path may match both templates. True if that is not certain. */
function mayOverlap(one: string, other: string): boolean {
  const [left, right] = [segmentsOf(one), segmentsOf(other)]
  const isOpen = [...left, ...right].some((segment) => /[*?{}]/.test(segment))
  if (!isOpen && left.length !== right.length) return false
  const shared = left.slice(0, right.length)
  const isFixed = (segment: string) => !/[:*?{}]/.test(segment)
  const differs = (segment: string, index: number) =>
    isFixed(segment) && isFixed(right[index]!) && segment !== right[index]
  // Behind a part that matches no or several segments, the others cannot be compared by index.
  const end = shared.findIndex((segment, index) => /[*?{}]/.test(segment + right[index]!))
  return !shared.slice(0, end === -1 ? undefined : end).some(differs)
}

/** A parameter matches exactly one segment, so it covers no part that may match none or several. */
function coversSegment(wide: string, narrow: string): boolean {
  if (wide === narrow) return true
  return (wide === ':' || wide === '*') && !/[*?{}]/.test(narrow)
}

/** The segments of a path, with the names of parameters removed. */
function segmentsOf(path: string): string[] {
  return path.split('/').map((segment) => segment.replace(/^:[^{}?]+/, ':'))
}
