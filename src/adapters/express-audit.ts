/** Finds the routes of an Express app, and whether a guard is in the way of each. */
import {
  auditedMethods,
  guards,
  toAudit,
  type AuditOptions,
  type FoundRoute,
  type RouteAudit,
} from '../http/route-audit.ts'
import {
  RESTS,
  isPlain,
  mountPathOf,
  mountSamplesOf,
  samplesOf,
  spellingsOf,
} from './express-paths.ts'
import {
  DEPTH_MAX,
  isMountedApp,
  matchLayer,
  matchesAll,
  nestedOf,
  splitPath,
  stackOf,
  type Layer,
  type Route,
} from './express-stack.ts'

export interface ExpressAuditOptions extends AuditOptions {
  /**
   * The paths that routers, apps and guards are mounted on with `use(path, …)`, as they are
   * written there. Express 5 does not tell them, so without this a router's routes are listed
   * under `/*`, and a guard that is mounted on a path does not count. Express 4 needs none.
   */
  mounts?: readonly string[]
}

/**
 * Lists the routes of an app or router that change something: those that a guard protects, and
 * those whose retries would change it again. Where it cannot be seen, a route counts as
 * unprotected. Call it when all routes are mounted.
 *
 * @example
 * ```ts
 * requireProtected(auditRoutes(app, { except: ['/login'] }))
 * ```
 */
export function auditRoutes(app: object, options: ExpressAuditOptions = {}): RouteAudit {
  const { mounts = [], ...rest } = options
  const prefix = prefixOf(app)
  const found = [...auditedMethods(rest)].flatMap((method): FoundRoute[] =>
    collect(stackOf(app), { method, mounts }, 0).map(({ path, guarded }) => ({
      method,
      path: joinPaths(prefix, path),
      guarded,
    })),
  )
  return toAudit(found, rest)
}

interface Search {
  readonly method: string
  readonly mounts: readonly string[]
}

/** Where requests end up, seen from the stack that it was found in. */
interface Target {
  readonly path: string
  readonly guarded: boolean
  /** Paths that stand for all that lead here; `undefined` where none can be made up. */
  readonly samples: readonly string[] | undefined
  readonly accepts: (path: string) => boolean
}

function collect(stack: readonly Layer[], search: Search, depth: number): Target[] {
  if (depth > DEPTH_MAX) return []
  const found: Target[] = []
  /** The guards that requests have met by now, if their paths match. */
  const met: Layer[] = []
  for (const layer of stack) {
    for (const target of targetsIn(layer, search, depth)) {
      const guarded = target.guarded || met.some((guard) => covers(guard, target))
      found.push({ ...target, guarded })
    }
    if (isGuard(layer, search.method)) met.push(layer)
  }
  return found
}

function targetsIn(layer: Layer, search: Search, depth: number): Target[] {
  if (layer.route !== undefined) return routeTargets(layer, layer.route, search.method)
  if (isMountedApp(layer)) return [behindMount(layer, search, ANYTHING)]
  const nested = collect(nestedOf(layer), search, depth + 1)
  return nested.map((target) => behindMount(layer, search, target))
}

/** What is in a mounted app cannot be seen. */
const ANYTHING: Target = {
  path: '/*',
  guarded: false,
  samples: ['/', ...RESTS.map((rest) => `/${rest}`)],
  accepts: () => true,
}

/** A target inside a router, seen from where the router is mounted. */
function behindMount(layer: Layer, { mounts }: Search, target: Target): Target {
  const mount = mountPathOf(layer, mounts)
  const bases = mountSamplesOf(layer, mounts)
  const samples = bases?.flatMap((base) => target.samples?.map((one) => joinPaths(base, one)) ?? [])
  const accepts = (path: string): boolean => {
    const match = matchLayer(layer, path)
    if (match === undefined) return false
    const [, rest] = splitPath(path, match)
    return target.accepts(rest === '' ? '/' : rest)
  }
  return {
    path: joinPaths(mount ?? '/*', target.path),
    guarded: target.guarded,
    samples: proven(target.samples === undefined ? undefined : samples, accepts),
    accepts,
  }
}

function routeTargets(layer: Layer, route: Route, method: string): Target[] {
  const handlers = handlersOf(route, method)
  const last = handlers.findLastIndex((handler) => !guards(handler, method))
  if (last === -1) return []
  const guarded = handlers.slice(0, last).some((handler) => guards(handler, method))
  const accepts = (path: string): boolean => matchLayer(layer, path) !== undefined
  const paths: readonly unknown[] = Array.isArray(route.path) ? route.path : [route.path]
  return paths.map((path) => {
    const samples = typeof path === 'string' ? samplesOf(path, layer) : undefined
    return { path: String(path), guarded, samples: proven(samples, accepts), accepts }
  })
}

/** Samples that do not lead where they should stand for nothing. */
function proven(
  samples: readonly string[] | undefined,
  accepts: (path: string) => boolean,
): readonly string[] | undefined {
  return samples?.every((sample) => accepts(sample)) === true ? samples : undefined
}

/** The handlers of a route that a request with this method goes through, in their order. */
function handlersOf(route: Route, method: string): unknown[] {
  const layers = stackOf(route) as readonly (Layer & { readonly method?: string })[]
  const own = method.toLowerCase()
  return layers
    .filter((layer) => layer.method === undefined || layer.method === own)
    .map(({ handle }) => handle)
}

/**
 * Whether requests that this layer matches have met a guard once they leave it. Of a route, only
 * if the guard comes first: what comes before it may send them past it, by `next('route')`.
 */
function isGuard(layer: Layer, method: string): boolean {
  if (layer.route === undefined) return guards(layer.handle, method)
  return guards(handlersOf(layer.route, method)[0], method)
}

/** Whether this guard is met by every request that leads to the target. */
function covers(guard: Layer, target: Target): boolean {
  if (guard.route === undefined && matchesAll(guard)) return true
  if (target.samples === undefined || !isPlain(guard)) return false
  return target.samples
    .flatMap((sample) => spellingsOf(sample))
    .every((path) => !target.accepts(path) || matchLayer(guard, path) !== undefined)
}

/** Where an app that is itself mounted says that it is. */
function prefixOf(app: object): string {
  const { path, parent } = app as { path?: unknown; parent?: unknown }
  return typeof path === 'function' && parent !== undefined ? String(path.call(app)) : ''
}

function joinPaths(base: string, path: string): string {
  const start = base.endsWith('/') ? base.slice(0, -1) : base
  return path === '/' && start !== '' ? start : start + path
}
