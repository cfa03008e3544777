import { AsyncLocalStorage } from 'node:async_hooks'
import { InvalidRequestError } from '../../core/errors.ts'
import { GuardedContext, type HandlerContext } from './handler-context.ts'

const contexts = new AsyncLocalStorage<HandlerContext>()

/** Runs the work of a protected handler, so that `currentIdempotency()` finds its context. */
export function runWith<Result>(context: HandlerContext, work: () => Result): Result {
  return contexts.run(context, work)
}

/** Records that the handler function of the current request starts. Throws if it must not. */
export function noteHandlerEntered(): void {
  const context = contexts.getStore()
  if (context instanceof GuardedContext) context.handlerEntered()
}

/** Whether the calling code runs within the handler of this context. */
export function isWithin(context: HandlerContext): boolean {
  return contexts.getStore() === context
}

/**
 * Returns the context of the current request, at any call depth. Throws if the request is not
 * protected, so that the first request to an unprotected route reports it.
 *
 * @example
 * ```ts
 * async function charge(amount: number) {
 *   const idempotencyKey = currentIdempotency().downstreamKey('charge')
 *   return stripe.paymentIntents.create({ amount, currency: 'eur' }, { idempotencyKey })
 * }
 * ```
 */
export function currentIdempotency(): HandlerContext {
  const context = contexts.getStore()
  if (context !== undefined) return context
  throw new InvalidRequestError(
    'currentIdempotency() was called without a protected request: protect the route, send a key ' +
      'with the request, and call it from within the handler',
  )
}
