/** The visible internals of the routers of Express 4 and 5. */

/** A middleware, router or route in a stack. */
export interface Layer {
  readonly name?: string
  readonly handle?: unknown
  readonly route?: Route
  /** Express 4. */
  readonly regexp?: RegExp & { readonly fast_slash?: boolean; readonly fast_star?: boolean }
  readonly keys?: readonly { readonly name: string | number }[]
  /** Express 5: the layer matches every path. */
  readonly slash?: boolean
  /** Express 5. */
  readonly matchers?: readonly Matcher[]
}

export interface Route {
  readonly path?: unknown
  readonly methods?: Readonly<Record<string, boolean>>
  readonly stack?: unknown
}

type Matcher = (path: string) => LayerMatch | false

export interface LayerMatch {
  /** The part of the path that the layer matches. */
  readonly path: string
  readonly params: Readonly<Record<string, unknown>>
}

/** Limits the search in nested routers. Real apps nest less deeply. */
export const DEPTH_MAX = 10

/** The layers of the route or router in this layer. */
export function nestedOf(layer: Layer): readonly Layer[] {
  if (layer.route !== undefined) return stackOf(layer.route)
  const handle = handleOf(layer)
  return typeof handle === 'function' ? stackOf(handle) : []
}

const replaced = new WeakMap<object, unknown>()

/** The function as the application mounted it, without the wrapper of `watched-layers.ts`. */
export function handleOf({ handle }: Layer): unknown {
  return typeof handle === 'function' ? (replaced.get(handle) ?? handle) : handle
}

/**
 * Sets the function of a layer, past a setter that another package has put on all layers: some wrap
 * what is set, and an error would reach Express twice.
 */
export function replaceHandle(layer: Layer, wrapper: object): void {
  const handle = handleOf(layer)
  replaced.set(wrapper, handle)
  // Applications put their own properties on handlers, and read them from the layers.
  Object.defineProperties(wrapper, ownProperties(handle as object))
  const property = { value: wrapper, writable: true, enumerable: true, configurable: true }
  Reflect.defineProperty(layer, 'handle', property)
}

function ownProperties(handle: object): PropertyDescriptorMap {
  const { prototype: _prototype, ...rest } = Object.getOwnPropertyDescriptors(handle) as {
    readonly prototype?: PropertyDescriptor
  } & PropertyDescriptorMap
  return rest
}

/** Express 4 keeps its router in `_router` (its `router` throws), Express 5 in `router`. */
export function stackOf(owner: unknown): readonly Layer[] {
  const { _router, stack } = (owner ?? {}) as { _router?: { stack?: unknown }; stack?: unknown }
  const own = stack ?? (_router === undefined ? routerOf(owner)?.stack : _router.stack)
  return Array.isArray(own) ? (own as readonly Layer[]) : []
}

/** The parameters for which a router has `param()` callbacks. */
export function paramsOf(owner: unknown): string[] {
  const { _router, params } = owner as { _router?: { params?: object }; params?: object }
  const own = params ?? (_router === undefined ? routerOf(owner)?.params : _router.params)
  return Object.keys(own ?? {})
}

function routerOf(owner: unknown): { stack?: unknown; params?: object } | undefined {
  try {
    return (owner as { router?: { stack?: unknown; params?: object } }).router
  } catch {
    // Express 4 before the first route: nothing is mounted.
    return undefined
  }
}

/** The apps that this app is mounted on, the nearest first. */
export function parentsOf(app: unknown): unknown[] {
  const parents: unknown[] = []
  let current = (app as { parent?: unknown } | null | undefined)?.parent
  for (let depth = 0; depth < DEPTH_MAX && current !== undefined; depth++) {
    parents.push(current)
    current = (current as { parent?: unknown }).parent
  }
  return parents
}

/** Express wraps an app inside an app in a function that does not expose it. */
export function isMountedApp(layer: Layer): boolean {
  return layer.name === 'mounted_app'
}

/** Whether the layer is mounted without a path, so that every request passes it. */
export function matchesAll({ slash, regexp }: Layer): boolean {
  return slash === true || regexp?.fast_slash === true
}

/** Matches as Express does, without changing the layer. */
export function matchLayer(layer: Layer, path: string): LayerMatch | undefined {
  if (matchesAll(layer)) return { path: '', params: {} }
  try {
    return layer.matchers === undefined
      ? matchPattern(layer, path)
      : firstMatch(layer.matchers, path)
  } catch {
    // A parameter cannot be decoded: Express refuses the request.
    return undefined
  }
}

function firstMatch(matchers: readonly Matcher[], path: string): LayerMatch | undefined {
  for (const matcher of matchers) {
    const match = matcher(path)
    if (match !== false) return match
  }
  return undefined
}

function matchPattern({ regexp, keys }: Layer, path: string): LayerMatch | undefined {
  if (regexp?.fast_star === true) return { path, params: { 0: path } }
  const match = regexp?.exec(path)
  if (!match) return undefined
  const params: Record<string, unknown> = {}
  for (const [index, value] of match.slice(1).entries()) {
    params[keys?.[index]?.name ?? index] = value
  }
  return { path: match[0], params }
}

/** Splits a path into the mount path of a router and the rest, which the router matches. */
export function splitPath(path: string, match: LayerMatch): [base: string, rest: string] {
  const base = match.path.endsWith('/') ? match.path.slice(0, -1) : match.path
  return [base, path.slice(match.path.length)]
}
