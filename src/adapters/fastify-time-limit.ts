/** Sees `handlerTimeout` of Fastify, also where it answers past all hooks. */
import type { HandlerContext } from '../http/handler-context.ts'

/** A request of Fastify. Older versions know no limit and have no signal. */
export interface LimitedRequest {
  readonly routeOptions?: { readonly handlerTimeout?: number }
  readonly signal?: AbortSignal
}

/** Whether the limit has passed: then somebody answers, or has, in place of the handler. */
export function isTimedOut(request: LimitedRequest): boolean {
  // Only where there is one: the signal is made for whoever asks for it.
  if (!hasTimeLimit(request)) return false
  const reason: unknown = request.signal?.reason
  return reason instanceof Error && 'code' in reason && reason.code === 'FST_ERR_HANDLER_TIMEOUT'
}

/** After its time limit the client gets an answer, but the handler runs on: never once more. */
export function watchTimeLimit(request: LimitedRequest, context: HandlerContext): void {
  if (!hasTimeLimit(request)) return
  request.signal?.addEventListener('abort', () => {
    if (isTimedOut(request)) context.outcomeUnknown()
  })
}

function hasTimeLimit({ routeOptions }: LimitedRequest): boolean {
  return (routeOptions?.handlerTimeout ?? 0) > 0
}
