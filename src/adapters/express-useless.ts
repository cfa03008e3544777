import type { Request } from 'express'
import { warnUseless } from '../http/useless-guard.ts'
import { stackOf, type Layer } from './express-stack.ts'

/** Routes that were looked at: once is enough. */
const seen = new WeakSet<object>()

/** Warns of a guard on a route whose methods it does not protect, as by `app.get(path, guard)`. */
export function warnIfUseless(
  req: Request,
  middleware: unknown,
  protects: (method: string) => boolean,
): void {
  const route = req.route as { readonly path?: unknown } | undefined
  if (route === undefined || seen.has(route)) return
  seen.add(route)
  // Express leaves `req.route` behind for middlewares that come after it and are not part of it.
  for (const { handle, method } of stackOf(route) as readonly MethodLayer[]) {
    if (handle !== middleware || method === undefined) continue
    const name = method.toUpperCase()
    if (!protects(name)) warnUseless(name, String(route.path))
  }
}

/** Without a method: for all of them. */
type MethodLayer = Layer & { readonly method?: string }
