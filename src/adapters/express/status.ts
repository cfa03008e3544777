import type { NextFunction, Request, Response } from 'express'
import type { StatusOptions } from '../../http/status/status-options.ts'
import { createStatus, lastSegment } from '../../http/status/status.ts'
import { sendReply } from '../node-http/send-reply.ts'

export type IdempotencyStatusOptions = StatusOptions<Request>

/** Generic, because the handler does not depend on the types of the request. */
export type StatusHandler = <
  Params,
  ResBody,
  ReqBody,
  Query,
  Locals extends Record<string, unknown>,
>(
  req: Request<Params, ResBody, ReqBody, Query, Locals>,
  res: Response<ResBody, Locals>,
  next: NextFunction,
) => void

/**
 * Reports the state of an operation to its client, which has the record id from the `Location` of
 * a 202. Mount it for GET, behind the authentication.
 *
 * @example
 * ```ts
 * const tenant = (req) => req.user.account
 * const statusUrl = (recordId) => `/operations/${recordId}`
 * const guard = idempotency({ engine, tenant, statusUrl })
 * app.get('/operations/:id', idempotencyStatus({ engine, tenant, statusUrl }))
 * ```
 */
export function idempotencyStatus(options: IdempotencyStatusOptions): StatusHandler {
  const status = createStatus(options, recordIdOf)

  function idempotencyStatus(req: Request, res: Response, next: NextFunction): void {
    status
      .reply(req, { method: req.method, accepted: req.headers['accept-encoding'] })
      .then((reply) => {
        // A time limit may have answered first.
        if (!res.headersSent) sendReply(res, reply)
      })
      .catch(next)
  }

  return idempotencyStatus as unknown as StatusHandler
}

function recordIdOf({ params, path }: Request): unknown {
  return params['id'] ?? lastSegment(path)
}
