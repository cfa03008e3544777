/**
 * An orders API on Fastify that is safe to retry, on one SQLite file.
 *
 *     npm run compile && npx node examples/fastify/main.ts
 */
import { randomUUID } from 'node:crypto'
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import fastify, { type FastifyInstance } from 'fastify'
import { auditRoutes, idempotency, idempotencyOf, requireProtected } from 'oncekey/fastify'
import { sqliteStore, type SqliteTransaction } from 'oncekey/sqlite'

declare module 'fastify' {
  interface FastifyRequest {
    account: string
  }
}

/** Longer than any request; shorter than the 30 s after which platforms send SIGKILL. */
const GRACE_MS = 10_000

/** Demo tokens. A real service verifies a signed token. */
const ACCOUNTS = new Map([
  ['Bearer demo-a', 'account-a'],
  ['Bearer demo-b', 'account-b'],
])

const ORDER_BODY = {
  type: 'object',
  required: ['sku', 'quantity'],
  properties: {
    sku: { type: 'string', minLength: 1 },
    quantity: { type: 'integer', minimum: 1 },
  },
} as const

interface OrderBody {
  readonly sku: string
  readonly quantity: number
}

function createApp(folder: string): FastifyInstance {
  mkdirSync(folder, { recursive: true })
  const path = join(folder, 'fastify.db')
  // Keys and orders share the file, so that they can share a transaction.
  const store = sqliteStore({ path })
  const db = new DatabaseSync(path)
  db.exec(
    'CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, account TEXT, sku TEXT, n INTEGER)',
  )

  const app = fastify()
  app.decorateRequest('account', '')
  app.addHook('onRequest', async (request, reply) => {
    const account = ACCOUNTS.get(request.headers.authorization ?? '')
    if (account === undefined) return reply.code(401).send({ error: 'unknown token' })
    request.account = account
  })
  app.register(idempotency, {
    store,
    tenant: (request) => request.account,
    // An order exists only if its transaction has committed, so a lapsed attempt may run again.
    onLapse: 'rerun',
  })

  const route = {
    schema: { body: ORDER_BODY },
    config: { idempotency: { operation: 'create-order' } },
  }
  app.post<{ Body: OrderBody }>('/orders', route, async (request) => {
    const { sku, quantity } = request.body
    const order = idempotencyOf(request)
    // The id is the same on every attempt, so a client never sees two orders with one id.
    const orderId = order.deterministicId('order')
    // The order, the key and the reply are committed together; then the reply is sent.
    await order.transaction<SqliteTransaction>((tx) => {
      // A retry after the retention has the same id, and finds its order.
      const insert =
        'INSERT INTO orders (id, account, sku, n) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO NOTHING'
      tx.prepare(insert).run(orderId, request.account, sku, quantity)
      const headers = { 'content-type': 'application/json', location: `/orders/${orderId}` }
      return { status: 201, headers, body: JSON.stringify({ orderId }) }
    })
  })

  app.get('/orders', (request) => {
    const select = 'SELECT id, sku, n AS quantity FROM orders WHERE account = ? ORDER BY id'
    return db.prepare(select).all(request.account)
  })

  app.addHook('onReady', async () => requireProtected(auditRoutes(app)))
  app.addHook('onClose', async () => {
    await app.idempotency.close({ graceMs: GRACE_MS })
    db.close()
    await store.close()
  })
  return app
}

const app = createApp(process.env['DATA_DIR'] ?? 'data')
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => void app.close())
}
const address = await app.listen({ host: '127.0.0.1', port: Number(process.env['PORT'] ?? 3000) })
console.log(`Orders API on ${address}

Order twice with one key, and get one order:

  curl -i ${address}/orders \\
    -H 'Authorization: Bearer demo-a' \\
    -H 'Idempotency-Key: ${randomUUID()}' \\
    -H 'Content-Type: application/json' \\
    -d '{"sku":"book","quantity":1}'

Ctrl-C stops it.`)
