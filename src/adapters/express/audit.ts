/** Finds the routes of an Express app, and whether a guard is on the way to each. */
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
import {
  RESTS,
  isPlain,
  mountPathOf,
  mountSamplesOf,
  samplesOf,
  spellingsOf,
} from './audit-paths.ts'
import { seesErrors } from './errors.ts'
import {
  DEPTH_MAX,
  isMountedApp,
  handleOf,
  matchLayer,
  matchesAll,
  nestedOf,
  paramsOf,
  splitPath,
  stackOf,
  type Layer,
  type Route,
} from './stack.ts'

export interface ExpressAuditOptions extends AuditOptions {
  /**
   * The paths that routers, apps and guards are mounted on with `use(path, …)`, as written there.
   * Express 5 does not expose them: without this option, the routes of a router are listed under
   * `/*`, and a guard that is mounted on a path does not count. Express 4 does not need it.
   *
   * @default []
   */
  mounts?: readonly string[]
}

/**
 * Lists the routes of an app or router that change state, protected and unprotected. A route counts
 * as unprotected if the audit cannot see a guard on every way to it. Call it after all routes are
 * mounted.
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
    collect(app, { method, mounts, authenticates }, 0).map(({ path, guarded, steps }) => ({
      method,
      path: joinPaths(prefix, path),
      guarded,
      authenticated: authenticatedFirst(steps),
      unseenErrors: unseenErrors(app, steps),
    })),
  )
  return toAudit(found, rest)
}

interface Search {
  readonly method: string
  readonly mounts: readonly string[]
  readonly authenticates: Authenticates
}

/** A route or a mounted app, as seen from the stack that contains it. */
interface Target {
  readonly path: string
  readonly guarded: boolean
  /** The guards and middlewares on the way, in the order in which they run. */
  readonly steps: readonly StepBefore[]
  /** Paths that represent all paths to this target; `undefined` if none can be derived. */
  readonly samples: readonly string[] | undefined
  readonly accepts: (path: string) => boolean
}

/** A guard, a middleware or a callback of `router.param()` on the way to a target. */
interface StepBefore extends RouteStep {
  readonly handler: unknown
  /** The name in an audit. `undefined` inside a route, where the guard sees its errors. */
  readonly name: string | undefined
}

/** The code behind the first guard whose errors the guard does not see. */
function unseenErrors(app: object, steps: readonly StepBefore[]): readonly string[] {
  const at = steps.findIndex(({ kind }) => kind === 'guard')
  if (at === -1 || seesErrors(app, steps[at]!.handler)) return []
  return steps
    .slice(at + 1)
    .filter(({ kind }) => kind !== 'guard')
    .flatMap(({ name }) => name ?? [])
}

function collect(owner: unknown, search: Search, depth: number): Target[] {
  if (depth > DEPTH_MAX) return []
  const found: Target[] = []
  /** Steps that a request has passed, if their layer matches its path. */
  const before: (Omit<StepBefore, 'isSure'> & { readonly layer: Layer })[] = []
  for (const layer of stackOf(owner)) {
    for (const target of targetsIn(layer, search, depth)) {
      const steps = before
        .map(({ layer: earlier, ...one }) => ({ ...one, earlier, isSure: covers(earlier, target) }))
        .filter(({ earlier, isSure }) => isSure || mayPass(earlier, target))
      const guarded = target.guarded || steps.some(({ kind, isSure }) => kind === 'guard' && isSure)
      found.push({
        ...target,
        guarded,
        steps: [...steps, ...paramSteps(owner, target), ...target.steps],
      })
    }
    before.push(...stepsIn(layer, search).map((one) => ({ ...one, layer })))
  }
  return found
}

/** Express runs these callbacks before the handlers of a path that has the parameter. */
function paramSteps(owner: unknown, { path }: Target): StepBefore[] {
  const names = paramsOf(owner).filter((name) => path.includes(`:${name}`) || path.includes('*'))
  return names.map((name) => ({
    kind: 'middleware',
    isSure: false,
    handler: undefined,
    name: `param(${name})`,
  }))
}

/** Whether a request to the target may pass this layer. True if that is uncertain. */
function mayPass(layer: Layer, { samples }: Target): boolean {
  if (samples === undefined || !isPlain(layer)) return true
  return samples.some((path) => matchLayer(layer, path) !== undefined)
}

function targetsIn(layer: Layer, search: Search, depth: number): Target[] {
  if (layer.route !== undefined) return routeTargets(layer, layer.route, search)
  if (isMountedApp(layer)) return [behindMount(layer, search, ANYTHING)]
  if (nestedOf(layer).length === 0) return []
  const nested = collect(handleOf(layer), search, depth + 1)
  return nested.map((target) => behindMount(layer, search, target))
}

/** The routes of a mounted app are not visible. */
const ANYTHING: Target = {
  path: '/*',
  guarded: false,
  steps: [],
  samples: ['/', ...RESTS.map((rest) => `/${rest}`)],
  accepts: () => true,
}

/** A target inside a router, as seen from the stack that the router is mounted in. */
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
    steps: target.steps,
    samples: verified(target.samples === undefined ? undefined : samples, accepts),
    accepts,
  }
}

function routeTargets(layer: Layer, route: Route, search: Search): Target[] {
  const { method } = search
  const handlers = handlersOf(route, method)
  const last = handlers.findLastIndex((handler) => !guards(handler, method))
  if (last === -1) return []
  const steps = handlers.slice(0, last).map((handler): StepBefore => {
    return { kind: kindOfHandler(handler, search), isSure: true, handler, name: undefined }
  })
  const guarded = steps.some(({ kind }) => kind === 'guard')
  const accepts = (path: string): boolean => matchLayer(layer, path) !== undefined
  const paths: readonly unknown[] = Array.isArray(route.path) ? route.path : [route.path]
  return paths.map((path) => {
    const samples = typeof path === 'string' ? samplesOf(path, layer) : undefined
    return { path: String(path), guarded, steps, samples: verified(samples, accepts), accepts }
  })
}

/** Drops all samples unless each of them leads to the target. */
function verified(
  samples: readonly string[] | undefined,
  accepts: (path: string) => boolean,
): readonly string[] | undefined {
  return samples?.every((sample) => accepts(sample)) === true ? samples : undefined
}

/** The handlers of a route for this method, in the order in which they run. */
function handlersOf(route: Route, method: string): unknown[] {
  const layers = stackOf(route) as readonly (Layer & { readonly method?: string })[]
  const own = method.toLowerCase()
  return layers.filter((layer) => layer.method === undefined || layer.method === own).map(handleOf)
}

/**
 * The steps that a request has passed when it leaves this layer. Only the first handler of a route
 * counts, because it may skip the others with `next('route')`.
 */
function stepsIn(layer: Layer, search: Search): Omit<StepBefore, 'isSure'>[] {
  const { route } = layer
  const handle = handleOf(layer)
  if (route !== undefined) {
    const [handler] = handlersOf(route, search.method)
    if (handler === undefined) return []
    return [{ kind: kindOfHandler(handler, search), handler, name: undefined }]
  }
  // A function with four parameters handles errors. The routes of a router are collected apart.
  const isMiddleware = typeof handle === 'function' && handle.length < 4 && !('handle' in handle)
  const kind = kindOfHandler(handle, search)
  if (kind === 'middleware' && !isMiddleware) return []
  return [{ kind, handler: handle, name: `use(${layer.name ?? 'a function'})` }]
}

function kindOfHandler(handler: unknown, { method, authenticates }: Search): RouteStep['kind'] {
  if (guards(handler, method)) return 'guard'
  return authenticates(handler) ? 'authentication' : 'middleware'
}

/** Whether every request to the target passes this layer. */
function covers(layer: Layer, target: Target): boolean {
  if (layer.route === undefined && matchesAll(layer)) return true
  if (target.samples === undefined || !isPlain(layer)) return false
  return target.samples
    .flatMap((sample) => spellingsOf(sample))
    .every((path) => !target.accepts(path) || matchLayer(layer, path) !== undefined)
}

/** The path of an app that is mounted on another one. */
function prefixOf(app: object): string {
  const { path, parent } = app as { path?: unknown; parent?: unknown }
  return typeof path === 'function' && parent !== undefined ? String(path.call(app)) : ''
}

function joinPaths(base: string, path: string): string {
  const start = base.endsWith('/') ? base.slice(0, -1) : base
  return path === '/' && start !== '' ? start : start + path
}
