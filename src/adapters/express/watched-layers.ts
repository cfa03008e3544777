/**
 * Wraps handlers where Express keeps them, in the layers of routes and routers, so that the guard
 * of a request sees what they do. Nothing is added to a stack: a request in progress would run a
 * handler twice. For a request without a guard, a wrapped handler behaves as before.
 */
import { AsyncLocalStorage } from 'node:async_hooks'
import type { NextFunction, Request, Response } from 'express'
import { isThenable } from '../../core/thenable.ts'
import { isGuard } from '../../http/guard/route-audit.ts'
import { DEPTH_MAX, nestedOf, parentsOf, replaceHandle, stackOf, type Layer } from './stack.ts'

/**
 * Each call of a handler or error handler runs in its own async context, its frame, so that a reply
 * can be attributed to it.
 */
export const frames = new AsyncLocalStorage<object>()

/** Receives what the handlers of one request do. */
export interface HandlerWatch {
  /** A handler of a route is called. Returns the frame in which it runs. */
  entered(): object
  /** An error handler is called with this error. Returns the frame in which it runs. */
  caught(error: unknown): object
  /**
   * The code of this frame called `next()` without an error. `isThrough`: no handler of the route
   * follows.
   */
  left(frame: object | undefined, isThrough: boolean): void
  /** The code of this frame threw, rejected, or called `next(error)`. */
  failed(frame: object | undefined, error: unknown): void
  /** `idempotencyErrors()` or a second guard reports this error. */
  reported(error: unknown): void
}

const WATCH = Symbol('oncekey.watch')

interface Watchable {
  [WATCH]?: HandlerWatch
}

export function setWatch(req: object, watch: HandlerWatch): void {
  ;(req as Watchable)[WATCH] = watch
}

/** The watch of this request, if it has passed a guard. */
export function watchOf(req: object): HandlerWatch | undefined {
  return (req as Watchable)[WATCH]
}

type Handler = (req: Request, res: Response, next: NextFunction) => unknown
type ErrorHandler = (error: unknown, req: Request, res: Response, next: NextFunction) => unknown

/** By layer, because another package may replace or hide the function that a layer has. */
const watchedLayers = new WeakSet<object>()

/** Watches the layers of a route. */
export function watchLayers(stack: readonly Layer[]): void {
  for (const layer of stack) watchLayer(layer, stack)
}

/** Watches all error handlers that an error in `app` can reach. */
export function watchErrorHandlers(app: unknown): void {
  for (const layer of reachableLayers(app)) {
    if (isErrorHandler(layer.handle)) watchLayer(layer, [])
  }
}

/** Whether the way from `app` to this route is visible, with all error handlers on it. */
export function isVisible(app: unknown, route: unknown): boolean {
  for (const layer of reachableLayers(app)) if (layer.route === route) return true
  return false
}

/** The layers of an app and of the apps around it, those of nested routers and routes included. */
function* reachableLayers(app: unknown): Generator<Layer> {
  for (const owner of [app, ...parentsOf(app)]) yield* layersIn(stackOf(owner), 0)
}

function* layersIn(stack: readonly Layer[], depth: number): Generator<Layer> {
  if (depth > DEPTH_MAX) return
  for (const layer of stack) {
    yield layer
    yield* layersIn(nestedOf(layer), depth + 1)
  }
}

function watchLayer(layer: Layer, stack: readonly Layer[]): void {
  if (watchedLayers.has(layer)) return
  watchedLayers.add(layer)
  // Express 4 ignores returned promises. Its layers have no `matchers`.
  const isAwaited = layer.matchers !== undefined
  const { handle } = layer
  if (isErrorHandler(handle)) replaceHandle(layer, watchedErrorHandler(handle, isAwaited))
  else if (isHandler(layer)) replaceHandle(layer, watchedHandler(layer, stack, isAwaited))
}

/**
 * Whether the layer has a request handler. A guard watches its own requests. A router or an app may
 * have error handlers: its routes are watched when a request reaches them.
 */
export function isHandler(layer: Layer): layer is Layer & { readonly handle: Handler } {
  const { handle } = layer
  if (typeof handle !== 'function' || handle.length > 3) return false
  return !isGuard(handle) && !('handle' in handle)
}

/** In Express, exactly the functions with four parameters handle errors. */
function isErrorHandler(handle: unknown): handle is ErrorHandler {
  return typeof handle === 'function' && handle.length === 4 && !(REPORTS_ERRORS in handle)
}

/** Marks `idempotencyErrors()`, which reports errors itself. */
export const REPORTS_ERRORS = Symbol.for('oncekey.errors')

function watchedHandler(
  layer: Layer & { readonly handle: Handler },
  stack: readonly Layer[],
  isAwaited: boolean,
): Handler {
  const { handle } = layer
  return (req, res, next) => {
    const watch = watchOf(req)
    if (watch === undefined) return handle(req, res, next)
    const frame = watch.entered()
    const isLast = (): boolean => !hasHandlerBehind(layer, stack, req.method)
    const watched: NextFunction = (argument?: unknown) => {
      if (isError(argument)) watch.failed(frame, argument)
      else watch.left(frame, Boolean(argument) || isLast())
      next(argument)
    }
    const call = (): unknown => frames.run(frame, handle, req, res, watched)
    return observed(watch, frame, isAwaited, call)
  }
}

function watchedErrorHandler(handle: ErrorHandler, isAwaited: boolean): ErrorHandler {
  return (error, req, res, next) => {
    const watch = watchOf(req)
    if (watch === undefined) return handle(error, req, res, next)
    const frame = watch.caught(error)
    const watched = watchedNext(watch, next, () => frame)
    const call = (): unknown => frames.run(frame, handle, error, req, res, watched)
    return observed(watch, frame, isAwaited, call)
  }
}

/** A `next` of code that may be followed by any other code. */
export function watchedNext(
  watch: HandlerWatch,
  next: NextFunction,
  frameOf: () => object | undefined,
): NextFunction {
  return (argument?: unknown) => {
    if (isError(argument)) watch.failed(frameOf(), argument)
    else watch.left(frameOf(), true)
    next(argument)
  }
}

/** `next('route')` and `next('router')` skip handlers; every other truthy value is an error. */
function isError(argument: unknown): boolean {
  return Boolean(argument) && argument !== 'route' && argument !== 'router'
}

/** A layer of a route. Without a method, it serves all of them. */
type MethodLayer = Layer & { readonly method?: string }

function hasHandlerBehind(layer: Layer, stack: readonly MethodLayer[], method: string): boolean {
  const own = method.toLowerCase()
  return stack
    .slice(stack.indexOf(layer) + 1)
    .some((later) => later.method === undefined || later.method === own)
}

/** Reports an error of the call before Express gets it. */
function observed(
  watch: HandlerWatch,
  frame: object,
  isAwaited: boolean,
  call: () => unknown,
): unknown {
  try {
    const result = call()
    const report = (error: unknown): void => watch.failed(frame, error)
    return isAwaited && isThenable(result) ? observedPromise(result, report) : result
  } catch (error) {
    // Express continues after a thrown `null` as after `next()`.
    if (isError(error)) watch.failed(frame, error)
    else watch.left(frame, true)
    throw error
  }
}

/**
 * Returns the promise itself, which must stay unhandled if Express does not handle it. A thenable
 * of another class may be a query that runs when `then` is called, so only Express calls it.
 */
function observedPromise(
  result: PromiseLike<unknown>,
  report: (error: unknown) => void,
): PromiseLike<unknown> {
  if (result instanceof Promise) {
    result.then(undefined, report)
    return result
  }
  return {
    // oxlint-disable-next-line unicorn/no-thenable -- Express 5 calls it, and awaits nothing else.
    then: (resolved, rejected) =>
      result.then(resolved, (error: unknown) => {
        report(error)
        if (rejected) return rejected(error)
        throw error
      }),
  }
}
