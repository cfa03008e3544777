/**
 * Orders in Express, safe to retry: each key makes one row, however often the request is sent.
 *
 *     npm run compile && npx node examples/express/main.ts
 *     curl -i localhost:3000/orders --json '{"sku":"tea"}' \
 *       -H 'Idempotency-Key: acdac37f-c5bc-4585-a357-bb60a33e777f'
 */
import { once } from 'node:events'
import { mkdtempSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import express from 'express'
import { currentIdempotency, singleTenant } from 'oncekey'
import { auditRoutes, idempotency, requireProtected } from 'oncekey/express'
import { sqliteStore, type SqliteTransaction } from 'oncekey/sqlite'

const folder = process.env['DATA_DIR'] ?? mkdtempSync(join(tmpdir(), 'orders-'))
const path = join(folder, 'orders.db')
const store = sqliteStore({ path })
const db = new DatabaseSync(path)
db.exec('CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, sku TEXT)')

// Without a commit there is no effect, so a lapsed attempt may run again.
const guard = idempotency({ store, tenant: singleTenant, onLapse: 'rerun' })

/** For a retry after the retention, whose id is the same, returns the row of the first order. */
const INSERT = `
  INSERT INTO orders (id, sku) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET id = id RETURNING sku`

/** The row, the key and the reply are committed together. */
async function order(sku: string): Promise<void> {
  const context = currentIdempotency()
  const id = context.deterministicId('order')
  await context.transaction<SqliteTransaction>((tx) => {
    const ordered = tx.prepare(INSERT).get(id, sku)
    return { status: 201, headers: { Location: `/orders/${id}` }, body: { id, ...ordered } }
  })
}

const app = express()
app.get('/orders', (_req, res) => {
  res.json(db.prepare('SELECT id, sku FROM orders').all())
})
app.post('/orders', guard, express.json(), async (req, res) => {
  const { sku } = req.body as { sku?: unknown }
  if (typeof sku === 'string') await order(sku)
  else res.status(422).json({ error: 'sku must be a string' })
})
// Clients that cannot set headers send their key in the body.
app.post('/legacy/orders', guard.with({ keyField: 'requestId' }), express.json(), (req) =>
  order(String((req.body as { sku?: unknown }).sku)),
)

// Finds a route without a guard at start-up, not at its first duplicate.
requireProtected(auditRoutes(app))

const server = app.listen(Number(process.env['PORT'] ?? 3000), '127.0.0.1')
await once(server, 'listening')
console.log(`orders at http://127.0.0.1:${(server.address() as AddressInfo).port}`)

for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => {
    server.close(() => {
      void guard
        .close()
        .then(() => store.close())
        .then(() => db.close())
    })
    server.closeIdleConnections()
  })
}
