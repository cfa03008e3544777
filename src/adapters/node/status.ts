import type { IncomingMessage, ServerResponse } from 'node:http'
import { optionalFunction } from '../../core/options.ts'
import type { StatusOptions } from '../../http/status/status-options.ts'
import { createStatus, lastSegment } from '../../http/status/status.ts'
import { splitUrl } from '../node-http/node-handler.ts'
import { sendReply } from '../node-http/send-reply.ts'
import { answerWith, type OnRequestError } from './request-errors.ts'

export interface IdempotencyStatusOptions extends StatusOptions<IncomingMessage> {
  /**
   * Replies to a request that failed, for example because `tenant` has thrown. May be asynchronous.
   *
   * @default replies 500 without details and emits a process warning
   */
  onRequestError?: OnRequestError
}

/**
 * Reports the state of an operation to its client, which has the record id from the `Location` of
 * a 202. A plain server has no path parameters, so the id is the last segment of the path.
 *
 * @example
 * ```ts
 * const status = idempotencyStatus({ engine, tenant: (req) => accountOf(req) })
 * if (req.url.startsWith('/operations/')) status(req, res)
 * ```
 */
export function idempotencyStatus(
  options: IdempotencyStatusOptions,
): (req: IncomingMessage, res: ServerResponse) => void {
  const { onRequestError, ...statusOptions } = options ?? {}
  optionalFunction('onRequestError', onRequestError)
  const answerError = answerWith(onRequestError)
  const status = createStatus(statusOptions, ({ url = '/' }) => lastSegment(splitUrl(url)[0]))
  return (req, res) => {
    const { method = 'GET', headers } = req
    status
      .reply(req, { method, accepted: headers['accept-encoding'] })
      .then((reply) => {
        // A time limit may have answered first.
        if (!res.headersSent) sendReply(res, reply)
      })
      .catch((error: unknown) => void answerError(error, req, res))
  }
}
