import type { Request } from 'express'
import { warnUseless } from '../../http/guard/misplaced-guard.ts'
import {
  DEPTH_MAX,
  isMountedApp,
  matchLayer,
  nestedOf,
  parentsOf,
  splitPath,
  stackOf,
  type Layer,
  type LayerMatch,
} from './stack.ts'
import { lowerCase, withoutNames } from '../node-http/route-template.ts'

/**
 * The name of the route: its template without parameter names, so that renaming a parameter loses
 * no key. Before routing: the path as the router would match it.
 */
export function routeOf(req: Request, path: string): string {
  const template: unknown = (req.route as { path?: unknown } | undefined)?.path
  if (template === undefined) return normalise(req, path)
  const base = normalise(req, mountOf(req) ?? req.baseUrl)
  const own = templateOf(req, template)
  // The root of a router is `/tenants/:`, not `/tenants/:/`, unless routing is strict.
  return own === '/' && base !== '' ? normalise(req, `${base}/`) : base + own
}

function templateOf(req: Request, template: unknown): string {
  if (Array.isArray(template)) return template.map((one) => templateOf(req, one)).join('|')
  if (typeof template !== 'string') return String(template)
  return normalise(req, withoutNames(template))
}

function normalise(req: Request, path: string): string {
  const cased = req.app.enabled('case sensitive routing') ? path : lowerCase(path)
  if (req.app.enabled('strict routing') || cased.length < 2 || !cased.endsWith('/')) return cased
  return cased.slice(0, -1)
}

/**
 * The path that the router of this route is mounted on, without the values of parameters. Express
 * keeps no templates of mounts, so this matches the layers again, as Express did.
 */
function mountOf(req: Request): string | undefined {
  if (req.baseUrl === '') return undefined
  const apps = [...parentsOf(req.app).toReversed(), req.app].map((app) => stackOf(app))
  return follow({ stack: apps[0]!, apps: apps.slice(1), depth: 0 }, req.baseUrl, req.route)
}

/** A router on the way to the route. */
interface RouterPosition {
  readonly stack: readonly Layer[]
  /** The stacks of the apps mounted inside, which their layers do not expose. */
  readonly apps: readonly (readonly Layer[])[]
  readonly depth: number
}

function follow(position: RouterPosition, path: string, route: unknown): string | undefined {
  for (const layer of position.depth > DEPTH_MAX ? [] : position.stack) {
    if (layer.route !== undefined) {
      if (layer.route === route && path === '' && position.apps.length === 0) return ''
      continue
    }
    const inside = insideOf(layer, position)
    const match = inside === undefined ? undefined : matchLayer(layer, path === '' ? '/' : path)
    if (inside === undefined || match === undefined) continue
    const [base, rest] = splitPath(path, match)
    const template = follow(inside, rest, route)
    if (template !== undefined) return eraseValues(layer, base, match) + template
  }
  return undefined
}

function insideOf(layer: Layer, { apps, depth }: RouterPosition): RouterPosition | undefined {
  const [stack, ...rest] = apps
  if (isMountedApp(layer)) {
    return stack === undefined ? undefined : { stack, apps: rest, depth: depth + 1 }
  }
  const nested = nestedOf(layer)
  return nested.length === 0 ? undefined : { stack: nested, apps, depth: depth + 1 }
}

/** A value that no real path contains. */
const PROBE = 'oncekey0probe'

/** A segment is a parameter if it has the value of one and the layer accepts any other value. */
function eraseValues(layer: Layer, base: string, { params }: LayerMatch): string {
  const values = new Set(Object.values(params).flat())
  const segments = base.split('/')
  // Express 5 decodes the values.
  const isValue = segments.map(
    (segment) => segment !== '' && (values.has(segment) || values.has(decoded(segment))),
  )
  const isDynamic = (index: number): boolean => {
    const probe = segments.with(index, PROBE).join('/')
    if (matchLayer(layer, probe) !== undefined) return true
    // The parameter may have a pattern. The only segment with a parameter's value is then the one.
    return isValue.filter(Boolean).length === 1
  }
  const erased = segments.map((segment, at) => (isValue[at] && isDynamic(at) ? ':' : segment))
  return erased.join('/')
}

function decoded(segment: string): string {
  try {
    return decodeURIComponent(segment)
  } catch {
    return segment
  }
}

/** Routes that were checked: each is checked once. */
const checked = new WeakSet<object>()

/** Warns of a guard on a route whose methods it does not protect: `app.get(path, guard)`. */
export function warnIfUseless(
  req: Request,
  middleware: unknown,
  protects: (method: string) => boolean,
): void {
  const route = req.route as { readonly path?: unknown } | undefined
  if (route === undefined || checked.has(route)) return
  checked.add(route)
  // `req.route` may be a route that the request has left: Express does not reset it.
  for (const { handle, method } of stackOf(route) as readonly MethodLayer[]) {
    if (handle !== middleware || method === undefined) continue
    const name = method.toUpperCase()
    if (!protects(name)) warnUseless(name, String(route.path))
  }
}

/** A handler in a route. Without a method, it serves all of them. */
type MethodLayer = Layer & { readonly method?: string }
