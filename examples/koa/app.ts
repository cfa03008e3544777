import { Router } from '@koa/router'
import Koa, { type Middleware } from 'koa'
import bodyParser from 'koa-bodyparser'
import type { Engine } from 'oncekey'
import { auditRoutes, idempotency, idempotencyOf, requireProtected } from 'oncekey/koa'
import type { SqliteTransaction } from 'oncekey/sqlite'

/** What authentication finds out. */
interface State {
  account: string
}

export function createApp(engine: Engine): Koa<State> {
  const guard = idempotency<State>({
    engine,
    tenant: (ctx) => ctx.state.account,
    operation: 'create-order',
    // Right here, because everything the handler does is in the store's transaction: an attempt
    // that died before its commit has left nothing behind.
    onLapse: 'rerun',
  })

  const router = new Router<State>()
  // Who asks comes before the guard; the parser behind it, so that the guard sees what was sent.
  router.post('/orders', authenticate, guard, bodyParser(), createOrder)
  // A route that somebody adds without a guard stops the service from starting.
  requireProtected(auditRoutes(router))

  const app = new Koa<State>()
  app.use(timed)
  app.use(router.routes())
  return app
}

/** Koa's own example. It runs for replays too; only what was recorded cannot be changed. */
const timed: Middleware<State> = async (ctx, next) => {
  const begun = performance.now()
  await next()
  ctx.set('X-Response-Time', `${Math.round(performance.now() - begun)}ms`)
}

/** Stands for your own: a token that you have checked tells the account. */
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
  if (typeof sku !== 'string' || sku === '') return ctx.throw(400, 'sku must be a text.')

  const order = idempotencyOf(ctx)
  // The same on every attempt, so that a retry after a crash makes the same order.
  const orderId = order.deterministicId('order')
  await order.transaction<SqliteTransaction>((tx) => {
    const insert = tx.prepare('INSERT INTO orders (id, account, sku) VALUES (?, ?, ?)')
    insert.run(orderId, ctx.state.account, sku)
    // Recorded and committed together with the row. It leaves after the commit.
    return {
      status: 201,
      headers: { Location: `/orders/${orderId}` },
      body: { orderId, sku },
    }
  })
}
