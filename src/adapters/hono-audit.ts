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

/** The part of a Hono app that is looked at. */
export interface AuditedApp {
  readonly routes: readonly AppRoute[]
}

interface AppRoute {
  readonly method: string
  readonly path: string
  readonly handler: unknown
}

/** What Hono calls a route for every method; middlewares are such routes. */
const ALL = 'ALL'

/**
 * Lists the routes that change something, and whether a guard is in their way. Hono keeps
 * handlers and middlewares in one list, so a function with a second parameter (`next`) counts as a
 * middleware while there is something behind it. What cannot be told counts as unprotected: a
 * guard hidden in `every()` or `some()`, or on a path that need not match all that the route
 * matches. Call it once all routes are there.
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
    if (!isEnd(app.routes, index, methods)) continue
    for (const method of own === ALL ? methods : [own]) {
      const name = `${method} ${path}`
      const met = metBefore(app.routes, index, { method, authenticates })
      const isGuarded = met.some(({ kind, isSure }) => kind === 'guard' && isSure)
      // Of several handlers on one route, the one that is open is the one to know about.
      const guarded = isGuarded && found.get(name)?.guarded !== false
      const authenticated = authenticatedFirst(met) && found.get(name)?.authenticated !== false
      found.set(name, { method, path, guarded, authenticated })
    }
  }
  return toAudit(found.values(), options)
}

/** Whether a request may end here. */
function isEnd(routes: readonly AppRoute[], index: number, methods: readonly string[]): boolean {
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

/** The guards and authentications on the way to a route, in their order. */
function metBefore(
  routes: readonly AppRoute[],
  index: number,
  { method, authenticates }: Search,
): Met[] {
  const { path } = routes[index]!
  return routes.slice(0, index).flatMap((earlier): Met[] => {
    const handler = plain(earlier.handler)
    const isGuard = guards(handler, method)
    if (!isGuard && !authenticates(handler)) return []
    if (!sharesMethod(earlier.method, method) || !mayShare(earlier.path, path)) return []
    const kind = isGuard ? 'guard' : 'authentication'
    return [{ kind, isSure: covers(earlier.path, path) }]
  })
}

function sharesMethod(one: string, other: string): boolean {
  return one === other || one === ALL || other === ALL
}

function isGuard(handler: unknown, methods: readonly string[]): boolean {
  return methods.some((method) => guards(plain(handler), method))
}

function parametersOf(handler: unknown): number {
  const { length } = plain(handler) as { readonly length?: unknown }
  return typeof length === 'number' ? length : 0
}

/** The handler as it was given: a sub-app with an `onError` of its own wraps each of its own. */
function plain(handler: unknown): unknown {
  let current = handler
  for (;;) {
    const inner = (current as { readonly __COMPOSED_HANDLER?: unknown }).__COMPOSED_HANDLER
    if (inner === undefined) return current
    current = inner
  }
}

/** Whether every path that the one matches is surely matched by the other. */
function covers(wide: string, narrow: string): boolean {
  const outer = segmentsOf(wide)
  const inner = segmentsOf(narrow)
  const last = outer.length - 1
  const isOpen = outer[last] === '*'
  const fixed = isOpen ? outer.slice(0, last) : outer
  if (isOpen ? inner.length < fixed.length : inner.length !== fixed.length) return false
  return fixed.every((segment, index) => coversSegment(segment, inner[index]!))
}

/** Whether some path may match both. Unsure: yes. */
function mayShare(one: string, other: string): boolean {
  const [left, right] = [segmentsOf(one), segmentsOf(other)]
  const isOpen = [...left, ...right].some((segment) => /[*?{}]/.test(segment))
  if (!isOpen && left.length !== right.length) return false
  const shared = left.slice(0, right.length)
  const isFixed = (segment: string) => !/[:*?{}]/.test(segment)
  const differs = (segment: string, index: number) =>
    isFixed(segment) && isFixed(right[index]!) && segment !== right[index]
  // Behind a part that may be several segments or none, the others no longer stand in line.
  const end = shared.findIndex((segment, index) => /[*?{}]/.test(segment + right[index]!))
  return !shared.slice(0, end === -1 ? undefined : end).some(differs)
}

/** A parameter takes any one segment, but nothing that may be none or several. */
function coversSegment(wide: string, narrow: string): boolean {
  if (wide === narrow) return true
  return (wide === ':' || wide === '*') && !/[*?{}]/.test(narrow)
}

/** Names of parameters make no difference. */
function segmentsOf(path: string): string[] {
  return path.split('/').map((segment) => segment.replace(/^:[^{}?]+/, ':'))
}
