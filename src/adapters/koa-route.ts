import type { Context } from 'koa'
import { warnUseless } from '../http/useless-guard.ts'
import { lowerCase, withoutNames } from './route-template.ts'

/** What `@koa/router` keeps of a route, or of a middleware of its own. */
export interface RouterLayer {
  readonly path: string | RegExp
  /** Empty where it is a middleware. */
  readonly methods: readonly string[]
  readonly stack: readonly unknown[]
  readonly opts?: RouterLayerOptions
  match(path: string): boolean
}

export interface RouterLayerOptions {
  readonly sensitive?: boolean
  readonly strict?: boolean
}

/** What a router leaves on the context for the middlewares behind it. */
interface Routed {
  /** Every layer whose path matches, in the order in which they run. */
  readonly matched?: unknown
  /** The path of the layer that runs now. */
  readonly routerPath?: unknown
  /** The same; in old versions that of the route. */
  readonly _matchedRoute?: unknown
}

/**
 * What the route is called: its template, with parameter names erased so that renaming one loses
 * no key; or the path, where no router has matched it. Koa itself matches nothing.
 */
export function routeOf(ctx: Context, guard: unknown, path: string): string {
  const layer = routeLayerOf(ctx, guard)
  if (layer !== undefined) return named(mountOf(ctx, path), layer.path, layer.opts)
  const { routerPath, _matchedRoute: template } = ctx as Routed
  if (routerPath !== undefined || !isTemplate(template)) return path
  return named(mountOf(ctx, path), template)
}

/**
 * The route that this request is on its way to. Where the guard is a middleware of the router, the
 * layer that runs now is the guard's own, and the route comes behind it.
 */
function routeLayerOf(ctx: Context, guard: unknown): RouterLayer | undefined {
  const { matched, routerPath } = ctx as Routed
  const layers = Array.isArray(matched) ? (matched as readonly RouterLayer[]) : []
  const isCurrent = ({ path }: RouterLayer) => path === routerPath
  const own = layers.findIndex((layer) => isCurrent(layer) && layer.stack.includes(guard))
  const at = own === -1 ? layers.findIndex(isCurrent) : own
  if (at === -1) return undefined
  return layers.slice(at).find(({ methods }) => methods.includes(ctx.method))
}

/** Warns of a guard on a route whose methods it does not protect: `router.get(path, guard)`. */
export function warnIfUseless(
  ctx: Context,
  guard: unknown,
  protects: (method: string) => boolean,
): void {
  const { matched } = ctx as Routed
  const layers = Array.isArray(matched) ? (matched as readonly RouterLayer[]) : []
  for (const { methods, path, stack } of layers) {
    if (methods.length === 0 || methods.some(protects) || !stack.includes(guard)) continue
    // A router adds HEAD to GET by itself.
    warnUseless(methods.find((method) => method !== 'HEAD') ?? 'HEAD', String(path))
  }
}

function isTemplate(template: unknown): template is string | RegExp {
  return typeof template === 'string' || template instanceof RegExp
}

function named(mount: string, template: string | RegExp, options: RouterLayerOptions = {}): string {
  if (typeof template !== 'string') return mount + String(template)
  const erased = withoutNames(template)
  const name = mount + (options.sensitive === true ? erased : lowerCase(erased))
  if (options.strict === true || name.length < 2 || !name.endsWith('/')) return name
  return name.slice(0, -1)
}

/** What was taken off the path before the router saw it, as `koa-mount` does. */
function mountOf({ path }: Context, original: string): string {
  if (original.endsWith(path)) return original.slice(0, original.length - path.length)
  return path === '/' ? original : ''
}
