import type { NextFunction, Request, Response } from 'express'
import type { StatusOptions } from '../http/status-options.ts'
import { createStatus, lastSegment } from '../http/status.ts'
import { sendReply } from './outgoing.ts'

export type ExpressStatusOptions = StatusOptions<Request>

/** Of any types: which a request has makes no difference to it. */
export type StatusHandler = <Params, Sent, Body, Query, Locals extends Record<string, unknown>>(
  req: Request<Params, Sent, Body, Query, Locals>,
  res: Response<Sent, Locals>,
  next: NextFunction,
) => void

/**
 * Tells a client what became of its request, by the id in the `Location` of its 202. Mount it for
 * GET, behind whatever knows the caller.
 *
 * @example
 * ```ts
 * const tenant = (req) => req.user.account
 * const statusUrl = (recordId) => `/operations/${recordId}`
 * const guard = idempotency({ engine, tenant, statusUrl })
 * app.get('/operations/:id', idempotencyStatus({ engine, tenant, statusUrl }))
 * ```
 */
export function idempotencyStatus(options: ExpressStatusOptions): StatusHandler {
  const status = createStatus(options, recordIdOf)

  function idempotencyStatus(req: Request, res: Response, next: NextFunction): void {
    status
      .reply(req, { method: req.method, accepted: req.headers['accept-encoding'] })
      .then((reply) => {
        // A time limit may have answered meanwhile.
        if (!res.headersSent) sendReply(res, reply)
      })
      .catch(next)
  }

  return idempotencyStatus as unknown as StatusHandler
}

function recordIdOf({ params, path }: Request): unknown {
  return params['id'] ?? lastSegment(path)
}
