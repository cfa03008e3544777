import type { Context } from 'koa'
import { warnUseless } from '../../http/guard/misplaced-guard.ts'
import { lowerCase, withoutNames } from '../node-http/route-template.ts'

/** A route or a middleware in a router of `@koa/router`. */
export interface RouterLayer {
  readonly path: string | RegExp
  /** Empty for a middleware. */
  readonly methods: readonly string[]
  readonly stack: readonly unknown[]
  readonly opts?: RouterLayerOptions
  match(path: string): boolean
}

export interface RouterLayerOptions {
  readonly sensitive?: boolean
  readonly strict?: boolean
}

/** The properties that a router sets on the context. */
interface RouterContext {
  /** Every layer whose path matches, in the order in which they run. */
  readonly matched?: unknown
  /** The path of the layer that runs now. */
  readonly routerPath?: unknown
  /** The same; in old versions, the path of the route. */
  readonly _matchedRoute?: unknown
}

/**
 * The name of the route: its template without parameter names, so that renaming a parameter loses
 * no key. The path if no router has matched it, because Koa itself has no routes.
 */
export function routeOf(ctx: Context, guard: unknown, path: string): string {
  const layer = routeLayerOf(ctx, guard)
  if (layer !== undefined) return named(mountOf(ctx, path), layer.path, layer.opts)
  const { routerPath, _matchedRoute: template } = ctx as RouterContext
  if (routerPath !== undefined || !isTemplate(template)) return path
  return named(mountOf(ctx, path), template)
}

/**
 * The route that will handle this request. If the guard is a middleware of the router, the layer
 * that runs now is the guard's, and the route comes behind it.
 */
function routeLayerOf(ctx: Context, guard: unknown): RouterLayer | undefined {
  const { matched, routerPath } = ctx as RouterContext
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
  const { matched } = ctx as RouterContext
  const layers = Array.isArray(matched) ? (matched as readonly RouterLayer[]) : []
  for (const { methods, path, stack } of layers) {
    if (methods.length === 0 || methods.some(protects) || !stack.includes(guard)) continue
    // A router adds HEAD to each GET.
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

/** The part that was removed from the path before the router saw it, as `koa-mount` does. */
function mountOf({ path }: Context, original: string): string {
  if (original.endsWith(path)) return original.slice(0, original.length - path.length)
  return path === '/' ? original : ''
}
