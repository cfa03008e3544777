import { InvalidOptionsError } from '../core/errors.ts'
import { describe, rejectUnknownOptions } from '../core/options.ts'

/** A route as its framework knows it. */
export interface AuditedRoute {
  readonly method: string
  readonly path: string
}

/** What `auditRoutes` finds. */
export interface RouteAudit {
  readonly protected: readonly AuditedRoute[]
  /** Routes that change something and whose retries would change it again. */
  readonly unprotected: readonly AuditedRoute[]
  /**
   * Protected routes whose guard may be reached without authentication. Absent unless the audit
   * was given `authentication`.
   */
  readonly unauthenticated?: readonly AuditedRoute[]
}

export interface AuditOptions {
  /**
   * Methods whose routes must be protected. HTTP itself makes PUT and DELETE safe to repeat; name
   * them where yours are not.
   *
   * @default ['POST', 'PATCH']
   */
  methods?: readonly string[]

  /** Paths that need no protection, as they are written where they are mounted. */
  except?: readonly (string | RegExp)[]

  /**
   * What authenticates callers, as it is mounted: a middleware, a hook (Fastify), a guard class
   * (Nest), or several, of which any is enough. Protected routes where none of them surely comes
   * before the guard are listed as `unauthenticated`, because a replay skips everything that
   * stands behind the guard.
   */
  authentication?: object | readonly object[]
}

/** A route that an adapter has found. */
export interface FoundRoute extends AuditedRoute {
  /** Whether a guard for this method is in the way of every request to it. Unsure: no. */
  readonly guarded: boolean
  /** Whether authentication surely comes before that guard. Looked at where the audit asks. */
  readonly authenticated?: boolean
}

const MARK = Symbol.for('oncekey.guard')

/** Marks what protects the routes behind it, so that an audit can find it. */
export function markGuard<Target extends object>(
  target: Target,
  protects: (method: string) => boolean,
): Target {
  return Object.defineProperty(target, MARK, { value: protects })
}

/** Whether this is a guard that protects requests with this method. */
export function guards(target: unknown, method: string): boolean {
  if (typeof target !== 'function' && (typeof target !== 'object' || target === null)) return false
  const protects = (target as { readonly [MARK]?: (method: string) => boolean })[MARK]
  return protects?.(method) ?? false
}

/** The methods that an audit looks for. */
export function auditedMethods({ methods }: AuditOptions = {}): ReadonlySet<string> {
  if (methods === undefined) return new Set(['POST', 'PATCH'])
  const list: readonly unknown[] = Array.isArray(methods) ? methods : []
  const isMethod = (one: unknown) => typeof one === 'string' && /^[A-Z]+$/.test(one)
  // Otherwise nothing would be found, and all would seem well.
  if (list.length > 0 && list.every(isMethod)) return new Set(methods)
  throw new InvalidOptionsError(
    `auditRoutes.methods must be a list of HTTP methods in capitals, got ${describe(methods)}`,
  )
}

/** Whether this is one of the parts that authenticate; always `false` where none was named. */
export type Authenticates = (part: unknown) => boolean

/** What the audit was told about authentication. */
export function authenticatesBy({ authentication }: AuditOptions = {}): Authenticates {
  if (authentication === undefined) return () => false
  const parts: readonly unknown[] = Array.isArray(authentication)
    ? authentication
    : [authentication]
  const wrong = parts.filter(
    (one) => typeof one !== 'function' && (typeof one !== 'object' || one === null),
  )
  if (parts.length > 0 && wrong.length === 0) return (part) => parts.includes(part)
  throw new InvalidOptionsError(
    'auditRoutes.authentication must be the middleware, hook or guard that authenticates ' +
      `callers, or a list of them, got ${wrong.length > 0 ? describe(wrong[0]) : 'an empty list'}`,
  )
}

/** A guard or an authentication on the way to a route. */
export interface Met {
  readonly kind: 'guard' | 'authentication'
  /** Whether every request to the route meets it; otherwise some may. */
  readonly isSure: boolean
}

/** Whether no request to the route can meet a guard before it was authenticated. */
export function authenticatedFirst(met: Iterable<Met>): boolean {
  for (const { kind, isSure } of met) {
    if (kind === 'guard') return false
    if (isSure) return true
  }
  return true
}

/** Sorts the routes an adapter has found. */
export function toAudit(routes: Iterable<FoundRoute>, options: AuditOptions = {}): RouteAudit {
  rejectUnknownOptions('auditRoutes', options, ['methods', 'except', 'authentication'])
  const methods = auditedMethods(options)
  const except = checkExcept(options.except ?? [])
  const isMeant = ({ method, path }: AuditedRoute) =>
    methods.has(method) && !except.some((one) => isExcepted(path, one))
  const meant = [...routes].filter(isMeant)
  const plain = ({ method, path }: AuditedRoute): AuditedRoute => ({ method, path })
  const guarded = meant.filter((route) => route.guarded)
  const audit: RouteAudit = {
    protected: guarded.map(plain),
    unprotected: meant.filter((route) => !route.guarded).map(plain),
  }
  if (options.authentication === undefined) return audit
  const open = guarded.filter((route) => route.authenticated !== true)
  return { ...audit, unauthenticated: open.map(plain) }
}

function checkExcept(except: unknown): readonly (string | RegExp)[] {
  const isPath = (one: unknown) => typeof one === 'string' || one instanceof RegExp
  if (Array.isArray(except) && except.every(isPath)) return except
  throw new InvalidOptionsError(
    `auditRoutes.except must be a list of paths and patterns, got ${describe(except)}`,
  )
}

function isExcepted(path: string, one: string | RegExp): boolean {
  // Not `test`: a pattern with the flag g would remember where it stopped.
  return typeof one === 'string' ? one === path : path.search(one) !== -1
}

/** Throws where a route is left open: for the start of a server. */
export function requireProtected({ unprotected, unauthenticated = [] }: RouteAudit): void {
  if (unprotected.length > 0) {
    throw new InvalidOptionsError(
      `not protected against retries: ${listed(unprotected)}. Put idempotency() in their way, or ` +
        'name them in { except: [...] }',
    )
  }
  if (unauthenticated.length > 0) {
    throw new InvalidOptionsError(
      `the guard comes before authentication: ${listed(unauthenticated)}. A replay skips ` +
        'everything behind the guard, so a stranger who sends a used key and the same request ' +
        'gets the reply: mount the authentication before idempotency()',
    )
  }
}

function listed(routes: readonly AuditedRoute[]): string {
  return routes.map(({ method, path }) => `${method} ${path}`).join(', ')
}
