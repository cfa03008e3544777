import type { ErrorRequestHandler } from 'express'
import { REPORTS_ERRORS, watchOf } from './watched-layers.ts'
import { DEPTH_MAX, handleOf, nestedOf, parentsOf, stackOf, type Layer } from './stack.ts'

/**
 * Reports errors from outside routes to the guard: from middleware that is mounted with `use()`
 * behind the guard, and from `router.param()`. Only an app with such code needs it, and
 * `auditRoutes` lists that code. Mount it behind the routes, before other error handlers. Errors
 * of route handlers reach the guard without it.
 */
export function idempotencyErrors(): ErrorRequestHandler {
  const handler: ErrorRequestHandler = (error, req, _res, next) => {
    const watch = watchOf(req)
    if (watch === undefined) req.idempotency?.failed(error)
    else watch.reported(error)
    next(error)
  }
  return Object.assign(handler, { [REPORTS_ERRORS]: true })
}

/**
 * Whether `idempotencyErrors()` is the first error handler for an error behind `guard`: a later
 * one sees only the errors that the first one passes on. If the guard is mounted several times,
 * this must hold for each of them.
 */
export function seesErrors(app: object, guard: unknown): boolean {
  // A parent app gets errors after this app; at which of its layers is not visible.
  const apps = [app, ...parentsOf(app)].map((one) => stackOf(one))
  // The handler may be in an app that is mounted behind the guard.
  const at = apps.findIndex((stack) => layersBehind(stack, guard, 0).length > 0)
  if (at === -1) return false
  const mounts = layersBehind(apps[at]!, guard, 0)
  const [within, around] = [apps.slice(0, at), apps.slice(at + 1)]
  return mounts.every((behind) => isOurs(firstHandler([...within, ...behind, ...around])))
}

/** The layers behind a guard: first in its stack, then in each stack around that one. */
type LayersBehind = readonly (readonly Layer[])[]

function layersBehind(stack: readonly Layer[], guard: unknown, depth: number): LayersBehind[] {
  if (depth > DEPTH_MAX) return []
  return stack.flatMap((layer, index): LayersBehind[] => {
    const behind = stack.slice(index + 1)
    if (handleOf(layer) !== guard) {
      const inside = layersBehind(nestedOf(layer), guard, depth + 1)
      return inside.map((inner) => [...inner, behind])
    }
    // Requests enter the routers behind the guard, whose error handlers come first.
    return [...stacksIn(behind, depth).map((inner) => [inner]), [behind]]
  })
}

/** The stacks of all routers in `stack` that have an error handler. */
function stacksIn(stack: readonly Layer[], depth: number): (readonly Layer[])[] {
  if (depth > DEPTH_MAX) return []
  return stack
    .map((layer) => nestedOf(layer))
    .flatMap((nested) => [nested, ...stacksIn(nested, depth + 1)])
    .filter((nested) => firstHandler([nested]) !== undefined)
}

/** In Express, exactly the functions with four parameters handle errors. */
function firstHandler(behind: LayersBehind): unknown {
  const handlers = behind.flat().map(handleOf)
  return handlers.find((handle) => typeof handle === 'function' && handle.length === 4)
}

function isOurs(handler: unknown): boolean {
  return typeof handler === 'function' && REPORTS_ERRORS in handler
}
