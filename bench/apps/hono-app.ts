/** Hono on Node: the bare route, or behind our middleware. */
import { once } from 'node:events'
import type { Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { serve } from '@hono/node-server'
import { Hono, type Handler } from 'hono'
import { singleTenant } from '../../src/http/guard/guard-options.ts'
import { idempotency } from '../../src/adapters/hono/index.ts'
import { createEngine } from '../../src/core/engine/engine.ts'
import type { Places } from '../run/contract.ts'
import { REPLY } from '../run/work.ts'
import { openStore, type StoreName } from '../subjects/stores.ts'
import type { App, Gate } from './app.ts'
import { end } from './express-app.ts'

export async function honoApp(store: StoreName | 'bare', places: Places, gate: Gate): Promise<App> {
  const app = new Hono()
  const pay: Handler = async (c) => {
    await c.req.json()
    await gate.enter()
    return c.json(REPLY, 201)
  }
  let close = async (): Promise<void> => undefined
  if (store === 'bare') app.post('/payments', pay)
  else {
    const opened = await openStore(store, places)
    const engine = createEngine({ store: opened.store })
    app.post('/payments', idempotency({ engine, tenant: singleTenant }), pay)
    close = async () => {
      await engine.close({ graceMs: 1_000 })
      await opened.close()
    }
  }
  const server = serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' }) as Server
  if (!server.listening) await once(server, 'listening')
  return {
    port: (server.address() as AddressInfo).port,
    async close() {
      await end(server)
      await close()
    },
  }
}
