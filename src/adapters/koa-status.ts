import type { Context, DefaultContext, DefaultState, ParameterizedContext } from 'koa'
import type { HttpReply } from '../http/exchange.ts'
import type { StatusOptions } from '../http/status-options.ts'
import { createStatus, lastSegment } from '../http/status.ts'
import { linesOf } from './status-lines.ts'

export type KoaStatusOptions<StateT = DefaultState, ContextT = DefaultContext> = StatusOptions<
  ParameterizedContext<StateT, ContextT>
>

/** The last of the middlewares on its way. */
export type StatusHandler<StateT = DefaultState, ContextT = DefaultContext> = (
  ctx: ParameterizedContext<StateT, ContextT>,
) => Promise<void>

/**
 * Tells a client what became of its request, by the id in the `Location` of its 202. Mount it for
 * GET, behind whatever knows the caller.
 *
 * @example
 * ```ts
 * const tenant = (ctx) => ctx.state.account
 * const statusUrl = (recordId) => `/operations/${recordId}`
 * const guard = idempotency({ engine, tenant, statusUrl })
 * router.get('/operations/:id', idempotencyStatus({ engine, tenant, statusUrl }))
 * ```
 */
export function idempotencyStatus<StateT = DefaultState, ContextT = DefaultContext>(
  options: KoaStatusOptions<StateT, ContextT>,
): StatusHandler<StateT, ContextT> {
  const status = createStatus(options, (ctx) => recordIdOf(ctx as unknown as Context))
  return async (given) => {
    // The same object: only what an application adds to it is not known here.
    const ctx = given as unknown as Context
    const accepted = ctx.req.headers['accept-encoding']
    show(ctx, await status.reply(given, { method: ctx.method, accepted }))
  }
}

function show(ctx: Context, { status, headers, body }: HttpReply): void {
  ctx.status = status
  ctx.body = Buffer.from(body)
  // Koa makes one up for bytes.
  ctx.remove('Content-Type')
  ctx.set(linesOf(headers))
}

function recordIdOf(ctx: Context & { readonly params?: { readonly id?: unknown } }): unknown {
  return ctx.params?.id ?? lastSegment(ctx.path)
}
