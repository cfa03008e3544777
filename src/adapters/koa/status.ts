import type { Context, DefaultContext, DefaultState, ParameterizedContext } from 'koa'
import type { HttpReply } from '../../http/guard/exchange.ts'
import type { StatusOptions } from '../../http/status/status-options.ts'
import { createStatus, lastSegment } from '../../http/status/status.ts'
import { linesOf } from '../node-http/header-lines.ts'

export type IdempotencyStatusOptions<
  StateT = DefaultState,
  ContextT = DefaultContext,
> = StatusOptions<ParameterizedContext<StateT, ContextT>>

/** The last middleware of a route. */
export type StatusHandler<StateT = DefaultState, ContextT = DefaultContext> = (
  ctx: ParameterizedContext<StateT, ContextT>,
) => Promise<void>

/**
 * Reports the state of an operation to its client, which has the record id from the `Location` of
 * a 202. Mount it for GET, behind the authentication.
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
  options: IdempotencyStatusOptions<StateT, ContextT>,
): StatusHandler<StateT, ContextT> {
  const status = createStatus(options, (ctx) => recordIdOf(ctx as unknown as Context))
  return async (typedCtx) => {
    // The same object without the types that an application adds.
    const ctx = typedCtx as unknown as Context
    const accepted = ctx.req.headers['accept-encoding']
    show(ctx, await status.reply(typedCtx, { method: ctx.method, accepted }))
  }
}

function show(ctx: Context, { status, headers, body }: HttpReply): void {
  ctx.status = status
  ctx.body = Buffer.from(body)
  // Koa has set a type for the bytes that the reply does not have.
  ctx.remove('Content-Type')
  ctx.set(linesOf(headers))
}

function recordIdOf(ctx: Context & { readonly params?: { readonly id?: unknown } }): unknown {
  return ctx.params?.id ?? lastSegment(ctx.path)
}
