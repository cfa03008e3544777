import { InvalidOptionsError } from '../core/errors.ts'
import { rejectUnknownOptions } from '../core/options.ts'

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
}

/** A route, and the methods for which a guard is in its way. */
export interface FoundRoute extends AuditedRoute {
  readonly guarded: boolean
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

/** Sorts the routes an adapter has found. */
export function toAudit(routes: Iterable<FoundRoute>, options: AuditOptions = {}): RouteAudit {
  rejectUnknownOptions('auditRoutes', options, ['methods', 'except'])
  const methods = new Set(options.methods ?? ['POST', 'PATCH'])
  const except = options.except ?? []
  const isMeant = ({ method, path }: AuditedRoute) =>
    methods.has(method) &&
    !except.some((one) => (typeof one === 'string' ? one === path : one.test(path)))
  const meant = [...routes].filter(isMeant)
  const plain = ({ method, path }: AuditedRoute): AuditedRoute => ({ method, path })
  return {
    protected: meant.filter((route) => route.guarded).map(plain),
    unprotected: meant.filter((route) => !route.guarded).map(plain),
  }
}

/** Throws where a route is left open: for the start of a server. */
export function requireProtected({ unprotected }: RouteAudit): void {
  if (unprotected.length === 0) return
  const list = unprotected.map(({ method, path }) => `${method} ${path}`).join(', ')
  throw new InvalidOptionsError(
    `not protected against retries: ${list}. Put idempotency() in their way, or name them in ` +
      '{ except: [...] }',
  )
}
