/** Fastify: the bare route, or behind our plugin. */
import type { AddressInfo } from 'node:net'
import fastify from 'fastify'
import { singleTenant } from '../../src/http/guard/guard-options.ts'
import { idempotency } from '../../src/adapters/fastify/index.ts'
import { createEngine } from '../../src/core/engine/engine.ts'
import type { Places } from '../run/contract.ts'
import { REPLY } from '../run/work.ts'
import { openStore, type StoreName } from '../subjects/stores.ts'
import type { App, Gate } from './app.ts'

export async function fastifyApp(
  store: StoreName | 'bare',
  places: Places,
  gate: Gate,
): Promise<App> {
  const app = fastify({ forceCloseConnections: true })
  let close = async (): Promise<void> => undefined
  if (store !== 'bare') {
    const opened = await openStore(store, places)
    const engine = createEngine({ store: opened.store })
    await app.register(idempotency, { engine, tenant: singleTenant })
    close = async () => {
      await engine.close({ graceMs: 1_000 })
      await opened.close()
    }
  }
  app.post('/payments', async (_request, reply) => {
    await gate.enter()
    return reply.code(201).send(REPLY)
  })
  await app.listen({ host: '127.0.0.1', port: 0 })
  return {
    port: (app.server.address() as AddressInfo).port,
    async close() {
      await app.close()
      await close()
    },
  }
}
