import type { StatusOptions } from '../http/status-options.ts'
import { createStatus, lastSegment } from '../http/status.ts'
import { toResponse } from './web-handler.ts'
import { forMethod } from './web-status.ts'

export type FetchStatusOptions<Req extends Request = Request> = StatusOptions<Req>

/** A handler of requests. What a runtime gives it besides the request it does not need. */
export type StatusHandler<Req extends Request = Request> = (request: Req) => Promise<Response>

/**
 * Tells a client what became of its request, by the id in the `Location` of its 202. Without a
 * router nobody knows parameters, so the id is the last part of the path.
 *
 * @example
 * ```ts
 * // app/api/operations/[id]/route.ts
 * export const GET = idempotencyStatus({ engine, tenant: accountOf })
 * ```
 */
export function idempotencyStatus<Req extends Request = Request>(
  options: FetchStatusOptions<Req>,
): StatusHandler<Req> {
  const status = createStatus(options, (request: Req) => lastSegment(new URL(request.url).pathname))
  return async (request) => {
    const { method, headers } = request
    const accepted = headers.get('accept-encoding') ?? undefined
    return toResponse(forMethod(method, await status.reply(request, { method, accepted })))
  }
}
