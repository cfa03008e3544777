import type { Context, Env } from 'hono'
import type { StatusOptions } from '../../http/status/status-options.ts'
import { createStatus, lastSegment } from '../../http/status/status.ts'
import { linesOf } from '../node-http/header-lines.ts'
import { forMethod } from '../web/status.ts'

// oxlint-disable-next-line typescript/no-explicit-any -- Fits every app, like Hono's middlewares.
export type IdempotencyStatusOptions<E extends Env = any> = StatusOptions<Context<E>>

// oxlint-disable-next-line typescript/no-explicit-any -- As above.
export type StatusHandler<E extends Env = any> = (c: Context<E>) => Promise<Response>

/**
 * Reports the state of an operation to its client, which has the record id from the `Location` of
 * a 202. Mount it for GET, behind the authentication.
 *
 * @example
 * ```ts
 * const tenant = (c) => c.get('account')
 * const statusUrl = (recordId) => `/operations/${recordId}`
 * const guard = idempotency({ engine, tenant, statusUrl })
 * app.get('/operations/:id', idempotencyStatus({ engine, tenant, statusUrl }))
 * ```
 */
// oxlint-disable-next-line typescript/no-explicit-any -- As above.
export function idempotencyStatus<E extends Env = any>(
  options: IdempotencyStatusOptions<E>,
): StatusHandler<E> {
  const status = createStatus(options, recordIdOf)
  return async (c) => {
    const { method } = c.req
    const accepted = c.req.header('accept-encoding')
    const reply = forMethod(method, await status.reply(c, { method, accepted }))
    const body = reply.body.byteLength === 0 ? null : Uint8Array.from(reply.body)
    // `c.newResponse` includes the headers that middlewares have set on the context.
    return c.newResponse(body, reply.status as 200, linesOf(reply.headers))
  }
}

function recordIdOf(c: Context): unknown {
  return c.req.param('id') ?? lastSegment(c.req.path)
}
