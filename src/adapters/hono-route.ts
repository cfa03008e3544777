import type { Context } from 'hono'

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
