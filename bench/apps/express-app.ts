/** Express: the bare route, behind our guard, or behind a peer. */
import { once } from 'node:events'
import type { Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import express, { type RequestHandler } from 'express'
import { singleTenant } from '../../src/http/guard/guard-options.ts'
import { idempotency } from '../../src/adapters/express/index.ts'
import { createEngine } from '../../src/core/engine/engine.ts'
import type { Places } from '../run/contract.ts'
import { REPLY } from '../run/work.ts'
import { openStore, type StoreName } from '../subjects/stores.ts'
import type { App, Gate } from './app.ts'

/** The middleware before the handler and after it. */
export interface Protection {
  readonly before: readonly RequestHandler[]
  readonly handler?: RequestHandler
  readonly reset?: () => Promise<void>
  readonly close: () => Promise<void>
}

export async function expressApp(protection: Protection, gate: Gate): Promise<App> {
  const app = express()
  app.use(express.json())
  app.post('/payments', ...protection.before, protection.handler ?? paying(gate))
  const server = app.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    port: (server.address() as AddressInfo).port,
    ...(protection.reset === undefined ? {} : { reset: protection.reset }),
    async close() {
      await end(server)
      await protection.close()
    },
  }
}

export function paying(gate: Gate): RequestHandler {
  return (_req, res) => {
    const held = gate.enter()
    const answer = () => void res.status(201).json(REPLY)
    if (held === undefined) answer()
    else void held.then(answer)
  }
}

export const bare: Protection = { before: [], close: async () => undefined }

/** As in the guide: parsed JSON before the guard, the error handler after it. */
export async function guarded(store: StoreName, places: Places): Promise<Protection> {
  let opened = await openStore(store, places)
  let guard = idempotency({ engine: createEngine({ store: opened.store }), tenant: singleTenant })
  const reset = async () => {
    if (store !== 'memory') return void (await opened.flush?.())
    await guard.engine.close()
    opened = await openStore(store, places)
    guard = idempotency({ engine: createEngine({ store: opened.store }), tenant: singleTenant })
  }
  const forgets = store === 'memory' || opened.flush !== undefined
  // On memory each round gets a new guard; otherwise one guard is mounted in the route.
  const before: RequestHandler =
    store === 'memory' ? (req, res, next) => guard(req, res, next) : guard
  return {
    before: [before],
    ...(forgets ? { reset } : {}),
    async close() {
      await guard.engine.close({ graceMs: 1_000 })
      await opened.close()
    },
  }
}

export async function end(server: Server): Promise<void> {
  const closed = once(server, 'close')
  server.close()
  server.closeAllConnections()
  await closed
}
