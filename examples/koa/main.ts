/**
 * An orders API on Koa that is safe to retry, on one SQLite file.
 *
 *     npm run compile && npx node examples/koa/main.ts
 */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { createEngine } from 'oncekey'
import { sqliteStore } from 'oncekey/sqlite'
import { createApp } from './app.ts'

/** Longer than any request; shorter than the 30 s after which platforms send SIGKILL. */
const GRACE_MS = 10_000

// The store first, because it creates the folder and the file. Keys and orders share the file, so
// that they can share a transaction.
const path = join(process.env['DATA_DIR'] || './data', 'koa.db')
const store = sqliteStore({ path })
const database = new DatabaseSync(path)
database.exec('CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, account TEXT, sku TEXT)')
database.close()

const engine = createEngine({ store })
const server = createApp(engine).listen(Number(process.env['PORT'] ?? 3000))
await once(server, 'listening')
console.log(welcome((server.address() as AddressInfo).port))

// `once`: a second Ctrl-C ends the process at once.
for (const signal of ['SIGTERM', 'SIGINT'] as const) {
  process.once(signal, () => void stop())
}

/** Stops new requests, then new work, and the store last, so that no outcome stays unknown. */
async function stop(): Promise<void> {
  const closed = once(server, 'close')
  server.close()
  server.closeIdleConnections()
  await engine.close({ graceMs: GRACE_MS })
  server.closeAllConnections()
  await closed
  await store.close()
}

function welcome(port: number): string {
  const address = `http://localhost:${port}`
  return `Orders API listening on ${address}

Run this twice. The second reply is the first one again, with "Idempotent-Replayed: true":

  curl -i ${address}/orders \\
    -H 'Authorization: Bearer demo-a' \\
    -H 'Idempotency-Key: ${randomUUID()}' \\
    -H 'Content-Type: application/json' \\
    -d '{ "sku": "book-1" }'

Ctrl-C stops the service.`
}
