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

/** Receives the events of the handlers of one request. */
export interface HandlerWatch {
  /** A handler of a route is called. Returns the frame in which it runs. */
  entered(): object
  /**
   * A handler of a route called `next()` without an error. `isThrough`: no handler of the route
   * follows.
   */
  left(isThrough: boolean): void
  /** A handler or an error handler threw, rejected, or called `next(error)`. */
  failed(error: unknown): void
  /** An error handler called `next()` without an error. */
  recovered(): void
  /** `idempotencyErrors()` got this error. */
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

/** Each call of a route handler runs in its own frame, so that its replies can be recognised. */
export const frames = new AsyncLocalStorage<object>()

/** By layer, because another package may replace or hide the function that a layer has. */
const watchedLayers = new WeakSet<object>()

/** Watches the layers of a route. */
export function watchLayers(stack: readonly Layer[]): void {
  for (const layer of stack) watchLayer(layer, stack)
}

/**
 * Watches all error handlers that an error in `app` can reach: an error handler that recovers makes
 * its error irrelevant, and one that fails replaces it.
 */
export function watchErrorHandlers(app: unknown): void {
  for (const owner of [app, ...parentsOf(app)]) watchErrorsIn(stackOf(owner), 0)
}

function watchErrorsIn(stack: readonly Layer[], depth: number): void {
  if (depth > DEPTH_MAX) return
  for (const layer of stack) {
    if (isErrorHandler(layer.handle)) watchLayer(layer, stack)
    watchErrorsIn(nestedOf(layer), depth + 1)
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
  return typeof handle === 'function' && handle.length === 4
}

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
    try {
      const result = frames.run(frame, handle, req, res, watchedNext(watch, next, isLast))
      return isAwaited && isThenable(result) ? watchedPromise(result, watch) : result
    } catch (error) {
      watch.failed(error)
      throw error
    }
  }
}

function watchedErrorHandler(handle: ErrorHandler, isAwaited: boolean): ErrorHandler {
  return (error, req, res, next) => {
    const watch = watchOf(req)
    if (watch === undefined) return handle(error, req, res, next)
    const recovering: NextFunction = (argument?: unknown) => {
      if (isError(argument)) watch.failed(argument)
      else watch.recovered()
      next(argument)
    }
    try {
      const result = handle(error, req, res, recovering)
      return isAwaited && isThenable(result) ? watchedPromise(result, watch) : result
    } catch (failure) {
      watch.failed(failure)
      throw failure
    }
  }
}

export function watchedNext(
  watch: HandlerWatch,
  next: NextFunction,
  isLast: () => boolean,
): NextFunction {
  return (argument?: unknown) => {
    if (isError(argument)) watch.failed(argument)
    else watch.left(argument !== undefined || isLast())
    next(argument)
  }
}

/** A layer of a route. Without a method, it serves all of them. */
type MethodLayer = Layer & { readonly method?: string }

function hasHandlerBehind(layer: Layer, stack: readonly MethodLayer[], method: string): boolean {
  const own = method.toLowerCase()
  return stack
    .slice(stack.indexOf(layer) + 1)
    .some((later) => later.method === undefined || later.method === own)
}

/** `next('route')` and `next('router')` skip handlers; every other truthy value is an error. */
function isError(argument: unknown): boolean {
  return Boolean(argument) && argument !== 'route' && argument !== 'router'
}

/**
 * Reports a rejection before Express gets it. The promise itself is returned: it must stay
 * unhandled if Express does not handle it. A thenable of another class may be a query that runs
 * when `then` is called, so only Express calls it.
 */
function watchedPromise(result: PromiseLike<unknown>, watch: HandlerWatch): PromiseLike<unknown> {
  const report = (error: unknown): void => watch.failed(error)
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
