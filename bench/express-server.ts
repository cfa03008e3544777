/** The server under load: the same route bare and protected. Started by `foundation.ts`. */
import { mkdtempSync, rmSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import express, { type RequestHandler } from 'express'
import { idempotency, idempotencyErrors, singleTenant } from '../src/adapters/express.ts'
import { sqliteStore } from '../src/stores/sqlite/sqlite-store.ts'

const folder = mkdtempSync(join(tmpdir(), 'oncekey-bench-'))
const store = sqliteStore({ path: join(folder, 'keys.db') })
const guard = idempotency({ store, tenant: singleTenant })

/** About 200 bytes of JSON. */
const reply = { paymentId: 'pay_0123456789', status: 'created', note: 'x'.repeat(140) }
const handler: RequestHandler = (_req, res) => {
  res.status(201).json(reply)
}

const app = express()
app.use(express.json())
app.post('/bare', handler)
app.post('/guarded', guard, handler)
app.use(idempotencyErrors())

const server = app.listen(0, '127.0.0.1', () => {
  process.send?.({ port: (server.address() as AddressInfo).port })
})

process.on('disconnect', () => {
  server.closeAllConnections()
  server.close()
  void guard.engine
    .close()
    .then(() => store.close())
    .finally(() => rmSync(folder, { recursive: true, force: true }))
})
