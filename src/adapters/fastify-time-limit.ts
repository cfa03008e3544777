/** Sees `handlerTimeout` of Fastify, also where it answers past all hooks. */
import type { HandlerContext } from '../http/handler-context.ts'

/** A request of Fastify. Older versions know no limit and have no signal. */
export interface LimitedRequest {
  readonly routeOptions?: { readonly handlerTimeout?: number }
  readonly signal?: AbortSignal
}

/** After its time limit the client gets an answer, but the handler runs on: never once more. */
export function watchTimeLimit(request: LimitedRequest, context: HandlerContext): void {
  // Only where there is one: the signal is made for whoever asks for it.
  if (!((request.routeOptions?.handlerTimeout ?? 0) > 0)) return
  const signal = request.signal!
  signal.addEventListener('abort', () => {
    if (codeOf(signal.reason) === 'FST_ERR_HANDLER_TIMEOUT') context.outcomeUnknown()
  })
}

function codeOf(error: unknown): unknown {
  return typeof error === 'object' && error !== null && 'code' in error ? error.code : undefined
}
