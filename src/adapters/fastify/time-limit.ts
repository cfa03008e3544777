/** Detects Fastify's `handlerTimeout`, which may answer without running hooks. */
import type { HandlerContext } from '../../http/guard/handler-context.ts'

/** The part of a Fastify request that is used. Older versions have no limit and no signal. */
export interface TimeLimitedRequest {
  readonly routeOptions?: { readonly handlerTimeout?: number }
  readonly signal?: AbortSignal
}

/** Whether the limit has passed, so that Fastify answers in place of the handler. */
export function isTimedOut(request: TimeLimitedRequest): boolean {
  // Checked first, because Fastify creates the signal when it is read.
  if (!hasTimeLimit(request)) return false
  const reason: unknown = request.signal?.reason
  return reason instanceof Error && 'code' in reason && reason.code === 'FST_ERR_HANDLER_TIMEOUT'
}

/** After the limit the handler still runs, so the operation must not run again. */
export function watchTimeLimit(request: TimeLimitedRequest, context: HandlerContext): void {
  if (!hasTimeLimit(request)) return
  request.signal?.addEventListener('abort', () => {
    if (isTimedOut(request)) context.outcomeUnknown()
  })
}

function hasTimeLimit({ routeOptions }: TimeLimitedRequest): boolean {
  return (routeOptions?.handlerTimeout ?? 0) > 0
}
