import type { Request } from 'express'

/**
 * What the route is called: its template, with parameter names erased so that renaming one loses
 * no key; or, before routing, the path as the router would match it.
 */
export function routeOf(req: Request, path: string): string {
  const template: unknown = (req.route as { path?: unknown } | undefined)?.path
  if (template === undefined) return normalise(req, path)
  return normalise(req, req.baseUrl) + templateOf(req, template)
}

function templateOf(req: Request, template: unknown): string {
  if (Array.isArray(template)) return template.map((one) => templateOf(req, one)).join('|')
  if (typeof template !== 'string') return String(template)
  return normalise(req, template.replace(PARAMETER, '$1'))
}

/** `:id`, `*rest` and Express 5's `:"a name"`: only the colon or star stays. */
const PARAMETER = /([:*])(?:[\p{ID_Start}$_][\p{ID_Continue}$]*|"[^"]*")/gu

function normalise(req: Request, path: string): string {
  const cased = req.app.enabled('case sensitive routing') ? path : path.toLowerCase()
  if (req.app.enabled('strict routing') || cased.length < 2 || !cased.endsWith('/')) return cased
  return cased.slice(0, -1)
}
