import type { Application, ErrorRequestHandler } from 'express'
import { DEPTH_MAX, nestedOf, parentsOf, stackOf, type Layer } from './express-stack.ts'

/** Marks our handler, so that a route can find out whether it is mounted. */
const MARK = Symbol.for('oncekey.errors')

/**
 * Shows errors to the guard before other error handlers turn them into replies: a lost network
 * call looks like any other 500 by then, and must not be run again. It changes nothing itself.
 */
export function idempotencyErrors(): ErrorRequestHandler {
  const handler: ErrorRequestHandler = (error, req, _res, next) => {
    req.idempotency?.failed(error)
    next(error)
  }
  return Object.assign(handler, { [MARK]: true })
}

/**
 * Whether `idempotencyErrors()` is the first error handler that an error behind `guard` meets:
 * one that comes after another sees only what that one lets through. If the guard is mounted in
 * several places, that must hold for all of them.
 */
export function seesErrors(app: Application, guard: unknown): boolean {
  // An app that this one is mounted on hears of errors after it; where exactly cannot be seen.
  const apps = [app, ...parentsOf(app)].map((one) => stackOf(one))
  // The handler may be in an app that is mounted behind the guard.
  const at = apps.findIndex((stack) => placesOf(stack, guard, 0).length > 0)
  if (at === -1) return false
  const places = placesOf(apps[at]!, guard, 0)
  const [within, around] = [apps.slice(0, at), apps.slice(at + 1)]
  return places.every((place) => isOurs(firstHandler([...within, ...place, ...around])))
}

/** The layers behind the guard in its own stack, then those in the stacks around it. */
type Place = readonly (readonly Layer[])[]

function placesOf(stack: readonly Layer[], guard: unknown, depth: number): Place[] {
  if (depth > DEPTH_MAX) return []
  return stack.flatMap((layer, index): Place[] => {
    const behind = stack.slice(index + 1)
    if (layer.handle !== guard) {
      const inside = placesOf(nestedOf(layer), guard, depth + 1)
      return inside.map((place) => [...place, behind])
    }
    // A router behind the guard is entered by its requests, and its own handlers come first.
    return [...stacksIn(behind, depth).map((inner) => [inner]), [behind]]
  })
}

/** The stacks of all routers in `stack` that handle errors themselves. */
function stacksIn(stack: readonly Layer[], depth: number): (readonly Layer[])[] {
  if (depth > DEPTH_MAX) return []
  return stack
    .map((layer) => nestedOf(layer))
    .flatMap((nested) => [nested, ...stacksIn(nested, depth + 1)])
    .filter((nested) => firstHandler([nested]) !== undefined)
}

/** In Express, what takes four arguments handles errors, and nothing else does. */
function firstHandler(place: Place): unknown {
  const layers = place.flat()
  return layers.find(({ handle }) => typeof handle === 'function' && handle.length === 4)?.handle
}

function isOurs(handler: unknown): boolean {
  return typeof handler === 'function' && MARK in handler
}
