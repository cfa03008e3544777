import type { Request } from 'express'
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
} from './express-stack.ts'
import { lowerCase, withoutNames } from './route-template.ts'

/**
 * What the route is called: its template, with parameter names erased so that renaming one loses
 * no key; or, before routing, the path as the router would match it.
 */
export function routeOf(req: Request, path: string): string {
  const template: unknown = (req.route as { path?: unknown } | undefined)?.path
  if (template === undefined) return normalise(req, path)
  const base = normalise(req, mountOf(req) ?? req.baseUrl)
  const own = templateOf(req, template)
  // A router's own root: `/tenants/:` and not `/tenants/:/`, unless the two are told apart.
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
 * Where the router of this route is mounted, with the values of parameters erased. Express keeps
 * no templates of mounts, so the way is followed once more, and each layer asked what it took.
 */
function mountOf(req: Request): string | undefined {
  if (req.baseUrl === '') return undefined
  const apps = [...parentsOf(req.app).toReversed(), req.app].map((app) => stackOf(app))
  return follow({ stack: apps[0]!, apps: apps.slice(1), depth: 0 }, req.baseUrl, req.route)
}

interface Place {
  readonly stack: readonly Layer[]
  /** The apps mounted inside, which their own layers do not show. */
  readonly apps: readonly (readonly Layer[])[]
  readonly depth: number
}

function follow(place: Place, path: string, route: unknown): string | undefined {
  for (const layer of place.depth > DEPTH_MAX ? [] : place.stack) {
    if (layer.route !== undefined) {
      if (layer.route === route && path === '' && place.apps.length === 0) return ''
      continue
    }
    const inside = insideOf(layer, place)
    const match = inside === undefined ? undefined : matchLayer(layer, path === '' ? '/' : path)
    if (inside === undefined || match === undefined) continue
    const [base, rest] = splitPath(path, match)
    const template = follow(inside, rest, route)
    if (template !== undefined) return eraseValues(layer, base, match) + template
  }
  return undefined
}

function insideOf(layer: Layer, { apps, depth }: Place): Place | undefined {
  const [stack, ...rest] = apps
  if (isMountedApp(layer)) {
    return stack === undefined ? undefined : { stack, apps: rest, depth: depth + 1 }
  }
  const nested = nestedOf(layer)
  return nested.length === 0 ? undefined : { stack: nested, apps, depth: depth + 1 }
}

/** No path has it by chance. */
const PROBE = 'oncekey0probe'

/** A segment is a parameter if it has the value of one, and anything else would do there too. */
function eraseValues(layer: Layer, base: string, { params }: LayerMatch): string {
  const values = new Set(Object.values(params).flat())
  const segments = base.split('/')
  // Express 5 has decoded them.
  const isValue = segments.map(
    (segment) => segment !== '' && (values.has(segment) || values.has(decoded(segment))),
  )
  const isDynamic = (index: number): boolean => {
    const probe = segments.with(index, PROBE).join('/')
    if (matchLayer(layer, probe) !== undefined) return true
    // It may have to look a certain way. Then it is a parameter if it is the only one that can be.
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
