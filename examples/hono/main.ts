/**
 * Orders on Hono, in one SQLite file. Each order, its key and its reply are committed together.
 *
 *     npm run compile && npx node examples/hono/main.ts
 */
import { once } from 'node:events'
import type { Server } from 'node:http'
import { serve } from '@hono/node-server'
import { Hono } from 'hono'
import { createMiddleware } from 'hono/factory'
import { createEngine } from 'oncekey'
import { auditRoutes, idempotency, idempotencyOf, requireProtected } from 'oncekey/hono'
import { sqliteStore, type SqliteTransaction } from 'oncekey/sqlite'

const store = sqliteStore({ path: process.env['DATA_FILE'] ?? 'data/hono.db' })
const engine = createEngine({ store })

type Account = { Variables: { account: string } }

/** Replace this: authenticate the caller before the guard. */
const authenticate = createMiddleware<Account>(async (c, next) => {
  const token = c.req.header('authorization')?.replace('Bearer ', '')
  if (token === undefined) return c.json({ error: 'unauthorized' }, 401)
  c.set('account', token)
  return next()
})

const guard = idempotency<Account>({
  engine,
  tenant: (c) => c.get('account'),
  onLapse: 'rerun', // safe here: without a commit there is no effect
})

const app = new Hono<Account>()
app.use(authenticate)

app.post('/orders', guard, async (c) => {
  const { sku } = await c.req.json<{ sku: string }>()
  const order = idempotencyOf(c)
  // The id is the same on every attempt, so a client never sees two orders with one id.
  const orderId = order.deterministicId('order')
  return order.transaction((tx: SqliteTransaction) => {
    tx.exec('CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, sku TEXT NOT NULL)')
    // A retry after the retention has the same id, and finds its order.
    tx.prepare('INSERT INTO orders (id, sku) VALUES (?, ?) ON CONFLICT (id) DO NOTHING').run(
      orderId,
      sku,
    )
    const { count } = tx.prepare('SELECT count(*) AS count FROM orders').get()!
    return c.json({ orderId, orders: Number(count) }, 201, { Location: `/orders/${orderId}` })
  })
})

// An unprotected route stops the service at start-up, not at its first retry.
requireProtected(auditRoutes(app))

const port = Number(process.env['PORT'] ?? 3000)
const server = serve({ fetch: app.fetch, port, hostname: '127.0.0.1' }, (address) => {
  console.log(`listening on http://127.0.0.1:${address.port}`)
}) as Server

for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => void stop())
}

/** Lets requests in progress end, and waits for handlers whose clients have disconnected. */
async function stop(): Promise<void> {
  server.close()
  server.closeIdleConnections()
  await once(server, 'close')
  await engine.close({ graceMs: 10_000 })
  await store.close()
}
