/** Finds the routes of an Express app, and whether a guard is in the way of each. */
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
  const authenticates = authenticatesBy(rest)
  const found = [...auditedMethods(rest)].flatMap((method): FoundRoute[] =>
    collect(stackOf(app), { method, mounts, authenticates }, 0).map(({ path, guarded, met }) => ({
      method,
      path: joinPaths(prefix, path),
      guarded,
      authenticated: authenticatedFirst(met),
    })),
  )
  return toAudit(found, rest)
}

interface Search {
  readonly method: string
  readonly mounts: readonly string[]
  readonly authenticates: Authenticates
}

/** Where requests end up, seen from the stack that it was found in. */
interface Target {
  readonly path: string
  readonly guarded: boolean
  /** The guards and authentications on the way, in their order. */
  readonly met: readonly Met[]
  /** Paths that stand for all that lead here; `undefined` where none can be made up. */
  readonly samples: readonly string[] | undefined
  readonly accepts: (path: string) => boolean
}

function collect(stack: readonly Layer[], search: Search, depth: number): Target[] {
  if (depth > DEPTH_MAX) return []
  const found: Target[] = []
  /** What requests have met by now, if its path matches. */
  const before: { readonly layer: Layer; readonly kind: Met['kind'] }[] = []
  for (const layer of stack) {
    for (const target of targetsIn(layer, search, depth)) {
      const met = before
        .map(({ layer: earlier, kind }) => ({ earlier, kind, isSure: covers(earlier, target) }))
        .filter(({ earlier, isSure }) => isSure || mayMeet(earlier, target))
      const guarded = target.guarded || met.some(({ kind, isSure }) => kind === 'guard' && isSure)
      found.push({ ...target, guarded, met: [...met, ...target.met] })
    }
    const kind = kindOf(layer, search)
    if (kind !== undefined) before.push({ layer, kind })
  }
  return found
}

/** Whether some request to the target may meet this layer. Unsure: yes. */
function mayMeet(layer: Layer, { samples }: Target): boolean {
  if (samples === undefined || !isPlain(layer)) return true
  return samples.some((path) => matchLayer(layer, path) !== undefined)
}

function targetsIn(layer: Layer, search: Search, depth: number): Target[] {
  if (layer.route !== undefined) return routeTargets(layer, layer.route, search)
  if (isMountedApp(layer)) return [behindMount(layer, search, ANYTHING)]
  const nested = collect(nestedOf(layer), search, depth + 1)
  return nested.map((target) => behindMount(layer, search, target))
}

/** What is in a mounted app cannot be seen. */
const ANYTHING: Target = {
  path: '/*',
  guarded: false,
  met: [],
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
    met: target.met,
    samples: proven(target.samples === undefined ? undefined : samples, accepts),
    accepts,
  }
}

function routeTargets(layer: Layer, route: Route, search: Search): Target[] {
  const { method } = search
  const handlers = handlersOf(route, method)
  const last = handlers.findLastIndex((handler) => !guards(handler, method))
  if (last === -1) return []
  const kinds = handlers.slice(0, last).map((handler) => kindOfHandler(handler, search))
  const guarded = kinds.includes('guard')
  const met = kinds
    .filter((kind) => kind !== undefined)
    .map((kind): Met => ({ kind, isSure: true }))
  const accepts = (path: string): boolean => matchLayer(layer, path) !== undefined
  const paths: readonly unknown[] = Array.isArray(route.path) ? route.path : [route.path]
  return paths.map((path) => {
    const samples = typeof path === 'string' ? samplesOf(path, layer) : undefined
    return { path: String(path), guarded, met, samples: proven(samples, accepts), accepts }
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
 * What requests that this layer matches have met once they leave it. Of a route, only if it comes
 * first there: what comes before it may send them past it, by `next('route')`.
 */
function kindOf(layer: Layer, search: Search): Met['kind'] | undefined {
  if (layer.route === undefined) return kindOfHandler(layer.handle, search)
  return kindOfHandler(handlersOf(layer.route, search.method)[0], search)
}

function kindOfHandler(
  handler: unknown,
  { method, authenticates }: Search,
): Met['kind'] | undefined {
  if (guards(handler, method)) return 'guard'
  return authenticates(handler) ? 'authentication' : undefined
}

/** Whether this layer is met by every request that leads to the target. */
function covers(layer: Layer, target: Target): boolean {
  if (layer.route === undefined && matchesAll(layer)) return true
  if (target.samples === undefined || !isPlain(layer)) return false
  return target.samples
    .flatMap((sample) => spellingsOf(sample))
    .every((path) => !target.accepts(path) || matchLayer(layer, path) !== undefined)
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
