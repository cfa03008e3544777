import { Router } from '@koa/router'
import Koa, { type Middleware } from 'koa'
import bodyParser from 'koa-bodyparser'
import type { Engine } from 'oncekey'
import { auditRoutes, idempotency, idempotencyOf, requireProtected } from 'oncekey/koa'
import type { SqliteTransaction } from 'oncekey/sqlite'

/** Set by the authentication. */
interface State {
  account: string
}

export function createApp(engine: Engine): Koa<State> {
  const guard = idempotency<State>({
    engine,
    tenant: (ctx) => ctx.state.account,
    operation: 'create-order',
    // Safe here, because all work of the handler is in the transaction of the store: an attempt
    // that died before its commit had no effect.
    onLapse: 'rerun',
  })

  const router = new Router<State>()
  // Authentication runs before the guard; the parser after it, so that the guard sees the raw body.
  router.post('/orders', authenticate, guard, bodyParser(), createOrder)
  // A route without a guard stops the service at start-up.
  requireProtected(auditRoutes(router))

  const app = new Koa<State>()
  app.use(timed)
  app.use(router.routes())
  return app
}

/** The Koa documentation's example. Runs for replays too; it cannot change the recorded reply. */
const timed: Middleware<State> = async (ctx, next) => {
  const begun = performance.now()
  await next()
  ctx.set('X-Response-Time', `${Math.round(performance.now() - begun)}ms`)
}

/** Replace this: take the account from a verified token. */
const authenticate: Middleware<State> = async (ctx, next) => {
  const [, account] = /^Bearer (demo-[ab])$/.exec(ctx.get('Authorization')) ?? []
  if (account === undefined) {
    return ctx.throw(401, 'Send "Authorization: Bearer demo-a" or demo-b.', {
      headers: { 'WWW-Authenticate': 'Bearer' },
    })
  }
  ctx.state.account = account
  await next()
}

const createOrder: Middleware<State> = async (ctx) => {
  const { sku } = (ctx.request.body ?? {}) as { readonly sku?: unknown }
  if (typeof sku !== 'string' || sku === '') return ctx.throw(400, 'sku must be a string.')

  const order = idempotencyOf(ctx)
  // The id is the same on every attempt, so a retry after a crash makes the same order.
  const orderId = order.deterministicId('order')
  await order.transaction<SqliteTransaction>((tx) => {
    // For a retry after the retention, which has the same id, returns the row of the first order.
    const insert = tx.prepare(
      'INSERT INTO orders (id, account, sku) VALUES (?, ?, ?) ' +
        'ON CONFLICT (id) DO UPDATE SET id = id RETURNING sku',
    )
    const ordered = insert.get(orderId, ctx.state.account, sku)
    // Recorded and committed together with the row. Sent after the commit.
    return {
      status: 201,
      headers: { Location: `/orders/${orderId}` },
      body: { orderId, ...ordered },
    }
  })
}
