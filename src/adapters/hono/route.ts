import type { Context } from 'hono'
import { warnUseless } from '../../http/guard/misplaced-guard.ts'

/**
 * The name of the route: the template of its handler without parameter names, so that renaming a
 * parameter loses no key. The path if no route has matched.
 */
export function routeOf(c: Context, path: string): string {
  const template = templateOf(c)
  return template === undefined ? path : template.replaceAll(PARAMETER, '/:')
}

/** The name in `/:id`, `/:id{[0-9]+}` and `/:id?`. The pattern of the parameter is kept. */
const PARAMETER = /\/:[^/{}?]+/g

/**
 * The template of the handler. Middlewares are routes, too, for all methods and with wider paths.
 * So this is the first route behind the guard that names the method, or the last route if none
 * does.
 */
function templateOf(c: Context): string | undefined {
  // oxlint-disable-next-line typescript/no-deprecated -- Its replacement imports Hono at run time.
  const matched = c.req.matchedRoutes
  const behind = matched.slice(c.req.routeIndex + 1)
  const route = behind.find(({ method }) => method === c.req.method) ?? behind.at(-1)
  return route?.path
}

/** Warns of a guard on a route whose method it does not protect: `app.get(path, guard)`. */
export function warnIfUseless(c: Context, protects: (method: string) => boolean): void {
  // oxlint-disable-next-line typescript/no-deprecated -- Its replacement imports Hono at run time.
  const own = c.req.matchedRoutes[c.req.routeIndex]
  // A guard mounted with `app.use()` is a route for all methods.
  if (own === undefined || own.method === 'ALL' || protects(own.method)) return
  warnUseless(own.method, own.path)
}
