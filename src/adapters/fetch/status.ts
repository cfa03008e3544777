import type { StatusOptions } from '../../http/status/status-options.ts'
import { createStatus, lastSegment } from '../../http/status/status.ts'
import { toResponse } from '../web/handler.ts'
import { forMethod } from '../web/status.ts'

export type IdempotencyStatusOptions<Req extends Request = Request> = StatusOptions<Req>

/** A request handler. Needs no further arguments from the runtime. */
export type StatusHandler<Req extends Request = Request> = (request: Req) => Promise<Response>

/**
 * Reports the state of an operation to its client, which has the record id from the `Location` of
 * a 202. Without a router there are no parameters, so the id is the last segment of the path.
 *
 * @example
 * ```ts
 * // app/api/operations/[id]/route.ts
 * export const GET = idempotencyStatus({ engine, tenant: accountOf })
 * ```
 */
export function idempotencyStatus<Req extends Request = Request>(
  options: IdempotencyStatusOptions<Req>,
): StatusHandler<Req> {
  const status = createStatus(options, (request: Req) => lastSegment(new URL(request.url).pathname))
  return async (request) => {
    const { method, headers } = request
    const accepted = headers.get('accept-encoding') ?? undefined
    return toResponse(forMethod(method, await status.reply(request, { method, accepted })))
  }
}
