import type { Context } from 'hono'
import { warnUseless } from '../http/useless-guard.ts'

/**
 * What the route is called: the template of the handler that the request is on its way to, with
 * parameter names erased so that renaming one loses no key; or, where nothing was matched, the
 * path.
 */
export function routeOf(c: Context, path: string): string {
  const template = templateOf(c)
  return template === undefined ? path : template.replaceAll(PARAMETER, '/:')
}

/** `/:id`, `/:id{[0-9]+}`, `/:id?`: what a parameter must look like stays, its name goes. */
const PARAMETER = /\/:[^/{}?]+/g

/**
 * Middlewares are routes too, for all methods, and their paths are wider than what they lead to.
 * So the first route behind the guard that names the method is taken for the handler's; where all
 * are for all methods, the last.
 */
function templateOf(c: Context): string | undefined {
  // oxlint-disable-next-line typescript/no-deprecated -- Its successor is a value of the framework.
  const matched = c.req.matchedRoutes
  const behind = matched.slice(c.req.routeIndex + 1)
  const route = behind.find(({ method }) => method === c.req.method) ?? behind.at(-1)
  return route?.path
}

/** Warns of a guard on a route whose method it does not protect, as by `app.get(path, guard)`. */
export function warnIfUseless(c: Context, protects: (method: string) => boolean): void {
  // oxlint-disable-next-line typescript/no-deprecated -- Its successor is a value of the framework.
  const own = c.req.matchedRoutes[c.req.routeIndex]
  // A guard mounted by app.use() is a route for all methods.
  if (own === undefined || own.method === 'ALL' || protects(own.method)) return
  warnUseless(own.method, own.path)
}
