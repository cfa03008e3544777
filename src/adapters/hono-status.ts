import type { Context, Env } from 'hono'
import type { StatusOptions } from '../http/status-options.ts'
import { createStatus, lastSegment } from '../http/status.ts'
import { linesOf } from './status-lines.ts'
import { forMethod } from './web-status.ts'

// oxlint-disable-next-line typescript/no-explicit-any -- As Hono's own middlewares: fits every app.
export type HonoStatusOptions<E extends Env = any> = StatusOptions<Context<E>>

// oxlint-disable-next-line typescript/no-explicit-any -- The same.
export type StatusHandler<E extends Env = any> = (c: Context<E>) => Promise<Response>

/**
 * Tells a client what became of its request, by the id in the `Location` of its 202. Mount it for
 * GET, behind whatever knows the caller.
 *
 * @example
 * ```ts
 * const tenant = (c) => c.get('account')
 * const statusUrl = (recordId) => `/operations/${recordId}`
 * const guard = idempotency({ engine, tenant, statusUrl })
 * app.get('/operations/:id', idempotencyStatus({ engine, tenant, statusUrl }))
 * ```
 */
// oxlint-disable-next-line typescript/no-explicit-any -- The same.
export function idempotencyStatus<E extends Env = any>(
  options: HonoStatusOptions<E>,
): StatusHandler<E> {
  const status = createStatus(options, recordIdOf)
  return async (c) => {
    const { method } = c.req
    const accepted = c.req.header('accept-encoding')
    const reply = forMethod(method, await status.reply(c, { method, accepted }))
    const body = reply.body.byteLength === 0 ? null : Uint8Array.from(reply.body)
    // Of the context, so that headers which others have set there are on it too.
    return c.newResponse(body, reply.status as 200, linesOf(reply.headers))
  }
}

function recordIdOf(c: Context): unknown {
  return c.req.param('id') ?? lastSegment(c.req.path)
}
