import type { Application, ErrorRequestHandler } from 'express'

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

interface Layer {
  readonly handle?: unknown
}

/** Routers in routers in routers: beyond this depth nobody mounts an error handler. */
const DEPTH_MAX = 10

/** Whether `idempotencyErrors()` is mounted on the app, or on one that it is mounted on. */
export function seesErrors(app: Application): boolean {
  let current: unknown = app
  for (let depth = 0; depth < DEPTH_MAX && current !== undefined; depth++) {
    if (hasMark(stackOf(current), 0)) return true
    current = (current as { parent?: unknown }).parent
  }
  return false
}

function hasMark(stack: readonly Layer[], depth: number): boolean {
  if (depth > DEPTH_MAX) return false
  return stack.some(({ handle }) => {
    if (typeof handle !== 'function') return false
    return MARK in handle || hasMark(stackOf(handle), depth + 1)
  })
}

/** Express 4 keeps its router in `_router` (its `router` throws); Express 5 in `router`. */
function stackOf(owner: unknown): readonly Layer[] {
  const { _router, stack } = owner as { _router?: { stack?: unknown }; stack?: unknown }
  const own = stack ?? (_router === undefined ? routerOf(owner) : _router.stack)
  return Array.isArray(own) ? (own as readonly Layer[]) : []
}

function routerOf(owner: unknown): unknown {
  try {
    return (owner as { router?: { stack?: unknown } }).router?.stack
  } catch {
    // Express 4 without a route yet: there is nothing mounted.
    return undefined
  }
}
