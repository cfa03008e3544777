/**
 * A node of the shop as a separate process, on PostgreSQL. Its handler reports that it was called,
 * and then waits for a database lock that a test may hold.
 */
import { writeSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import express from 'express'
import pg from 'pg'
import { singleTenant } from '../../src/http/guard/guard-options.ts'
import { idempotency } from '../../src/adapters/express/index.ts'
import { createEngine } from '../../src/core/engine/engine.ts'
import { postgresStore } from '../../src/stores/postgres/index.ts'
import { payBehindLock } from './pay-behind-lock.ts'

const report = (line: unknown) => writeSync(1, `${JSON.stringify(line)}\n`)

const pool = new pg.Pool({ connectionString: process.argv[2] })
pool.on('error', () => undefined)
const engine = createEngine({ store: postgresStore({ pool }), sweepEveryMs: 0, reapEveryMs: 0 })
const guard = idempotency({ engine, tenant: singleTenant, operation: 'pay' })

const app = express()
app.post('/payments', guard, async (_req, res) => {
  report('entered')
  const paymentId = await payBehindLock(pool)
  res.status(201).json({ paymentId })
})
const server = app.listen(0, '127.0.0.1', () => {
  report({ port: (server.address() as AddressInfo).port })
})
