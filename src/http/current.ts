import { AsyncLocalStorage } from 'node:async_hooks'
import { InvalidRequestError } from '../core/errors.ts'
import { GuardedContext, type HandlerContext } from './handler-context.ts'

const contexts = new AsyncLocalStorage<HandlerContext>()

/** Runs what a protected handler does, so that `currentIdempotency()` finds its key. */
export function runWith<Result>(context: HandlerContext, work: () => Result): Result {
  return contexts.run(context, work)
}

/** The function that handles the current request is being entered. Throws if it must not be. */
export function noteHandlerEntered(): void {
  const context = contexts.getStore()
  if (context instanceof GuardedContext) context.handlerEntered()
}

/** Whether the caller is part of what this very handler does. */
export function isWithin(context: HandlerContext): boolean {
  return contexts.getStore() === context
}

/**
 * The key of the request that is being handled, however deep in its code the caller is. Throws
 * where there is none, so that a route nobody has protected is found by its first request.
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
    'no protected request is being handled here: protect the route, send a key with the request, ' +
      'and call this from within its handler',
  )
}
