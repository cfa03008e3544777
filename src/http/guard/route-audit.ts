import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, rejectUnknownOptions } from '../../core/options.ts'

/** A route, with the method and the path of its framework. */
export interface AuditedRoute {
  readonly method: string
  readonly path: string
}

/** The result of `auditRoutes`. */
export interface RouteAudit {
  /** Routes with a guard for their method. */
  readonly protected: readonly AuditedRoute[]
  /** Routes without one: a retry may change state a second time. */
  readonly unprotected: readonly AuditedRoute[]
  /**
   * Protected routes whose guard may be reached without authentication. Absent without the option
   * `authentication`.
   */
  readonly unauthenticated?: readonly AuditedRoute[]
  /**
   * Express only: protected routes where code outside of a route runs after the guard. The guard
   * sees errors of such code only if `idempotencyErrors()` is the first error handler after it;
   * otherwise a 5xx that such an error causes counts as unknown. Absent if there are none.
   */
  readonly unseenErrors?: readonly UnseenErrors[]
}

/** A protected route, and the code before its handlers whose errors the guard does not see. */
export interface UnseenErrors extends AuditedRoute {
  /** Such as `use(json)` or `param(id)`. */
  readonly from: readonly string[]
}

export interface AuditOptions {
  /**
   * The methods that must be protected, in capitals. HTTP defines PUT and DELETE as safe to repeat;
   * add them if yours are not.
   *
   * @default ['POST', 'PATCH']
   */
  methods?: readonly string[]

  /**
   * Routes that need no protection: paths as the audit lists them, or patterns.
   *
   * @default []
   */
  except?: readonly (string | RegExp)[]

  /**
   * The middleware, hook (Fastify) or guard class (Nest) that authenticates callers, as it is
   * mounted, or a list of which one is enough. Protected routes where none of them certainly comes
   * before the guard are listed as `unauthenticated`, because a replay skips everything after the
   * guard.
   *
   * @default none: authentication is not checked
   */
  authentication?: object | readonly object[]
}

/** A route that an adapter has found. */
export interface FoundRoute extends AuditedRoute {
  /** Whether every request to the route certainly passes a guard for this method. */
  readonly guarded: boolean
  /** Whether authentication certainly comes before that guard. Used if the audit checks it. */
  readonly authenticated?: boolean
  /** See `RouteAudit`. */
  readonly unseenErrors?: readonly string[]
}

const MARK = Symbol.for('oncekey.guard')

/** Marks a guard, so that an audit can find it. */
export function markGuard<Target extends object>(
  target: Target,
  protects: (method: string) => boolean,
): Target {
  return Object.defineProperty(target, MARK, { value: protects })
}

/** Whether this is a guard, for any methods. */
export function isGuard(
  target: unknown,
): target is { readonly [MARK]: (method: string) => boolean } {
  if (typeof target !== 'function' && (typeof target !== 'object' || target === null)) return false
  return MARK in target
}

/** Whether this is a guard that protects requests with this method. */
export function guards(target: unknown, method: string): boolean {
  return isGuard(target) && target[MARK](method)
}

/** The methods that an audit looks for. */
export function auditedMethods({ methods }: AuditOptions = {}): ReadonlySet<string> {
  if (methods === undefined) return new Set(['POST', 'PATCH'])
  const list: readonly unknown[] = Array.isArray(methods) ? methods : []
  const isMethod = (one: unknown) => typeof one === 'string' && /^[A-Z]+$/.test(one)
  // With a wrong list, the audit would find no routes and report nothing.
  if (list.length > 0 && list.every(isMethod)) return new Set(methods)
  throw new InvalidOptionsError(
    `auditRoutes.methods must be a list of HTTP methods in capitals, got ${describe(methods)}`,
  )
}

/** Whether this part is in the option `authentication`. Always `false` without the option. */
export type Authenticates = (part: unknown) => boolean

/** Checks the option `authentication`. */
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

/** A part of the app that a request may pass on the way to its route. */
export interface RouteStep {
  readonly kind: 'guard' | 'authentication' | 'middleware'
  /** Whether every request to the route passes it; otherwise only some may. */
  readonly isSure: boolean
}

/** Whether no request to the route can reach a guard before its authentication. */
export function authenticatedFirst(met: Iterable<RouteStep>): boolean {
  for (const { kind, isSure } of met) {
    if (kind === 'guard') return false
    if (kind === 'authentication' && isSure) return true
  }
  return true
}

/** Builds the audit from the routes that an adapter has found. */
export function toAudit(routes: Iterable<FoundRoute>, options: AuditOptions = {}): RouteAudit {
  rejectUnknownOptions('auditRoutes', options, ['methods', 'except', 'authentication'])
  const methods = auditedMethods(options)
  const except = checkExcept(options.except ?? [])
  const isAudited = ({ method, path }: AuditedRoute) =>
    methods.has(method) && !except.some((one) => isExcepted(path, one))
  const audited = [...routes].filter(isAudited)
  const plain = ({ method, path }: AuditedRoute): AuditedRoute => ({ method, path })
  const guarded = audited.filter((route) => route.guarded)
  const unseenErrors = guarded.flatMap((route) => unseenIn(route))
  const audit: RouteAudit = {
    protected: guarded.map(plain),
    unprotected: audited.filter((route) => !route.guarded).map(plain),
    ...(unseenErrors.length > 0 && { unseenErrors }),
  }
  if (options.authentication === undefined) return audit
  const open = guarded.filter((route) => route.authenticated !== true)
  return { ...audit, unauthenticated: open.map(plain) }
}

function unseenIn({ method, path, unseenErrors = [] }: FoundRoute): UnseenErrors[] {
  return unseenErrors.length === 0 ? [] : [{ method, path, from: unseenErrors }]
}

function checkExcept(except: unknown): readonly (string | RegExp)[] {
  const isPath = (one: unknown) => typeof one === 'string' || one instanceof RegExp
  if (Array.isArray(except) && except.every(isPath)) return except
  throw new InvalidOptionsError(
    `auditRoutes.except must be a list of paths and patterns, got ${describe(except)}`,
  )
}

function isExcepted(path: string, one: string | RegExp): boolean {
  // `search`, because `test` with the flag g continues where the last call stopped.
  return typeof one === 'string' ? one === path : path.search(one) !== -1
}

/** Throws if a route is unprotected or unauthenticated. Call it when the server starts. */
export function requireProtected({ unprotected, unauthenticated = [] }: RouteAudit): void {
  if (unprotected.length > 0) {
    throw new InvalidOptionsError(
      `not protected against retries: ${listed(unprotected)}. Mount idempotency() before their ` +
        'handlers, or list their paths in { except: [...] }',
    )
  }
  if (unauthenticated.length > 0) {
    throw new InvalidOptionsError(
      `the guard comes before authentication: ${listed(unauthenticated)}. A replay skips ` +
        'everything behind the guard, so an unauthenticated caller that sends a used key and the ' +
        'same request gets the reply: mount the authentication before idempotency()',
    )
  }
}

function listed(routes: readonly AuditedRoute[]): string {
  return routes.map(({ method, path }) => `${method} ${path}`).join(', ')
}
