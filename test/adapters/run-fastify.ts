/** Fastify apps on the loopback. */
import fastify, { type FastifyInstance, type FastifyServerOptions } from 'fastify'
import { onTestFinished } from 'vitest'
import { singleTenant } from '../../src/http/guard/guard-options.ts'
import { idempotency, type IdempotencyOptions } from '../../src/adapters/fastify/index.ts'
import { memoryStore } from '../../src/stores/memory/store.ts'
import { serve, type TestServer } from './run-express.ts'

/** An app without the plugin. It is closed when the test ends. */
export function newApp(options: FastifyServerOptions = {}): FastifyInstance {
  const app = fastify(options)
  onTestFinished(async () => {
    await app.close()
  })
  return app
}

/** Options with a new memory store, for an API without tenants. */
export function optionsOf(options: Partial<IdempotencyOptions> = {}): IdempotencyOptions {
  const needsStore = options.engine === undefined && options.store === undefined
  const own = needsStore ? { store: memoryStore() } : {}
  return { tenant: singleTenant, ...own, ...options }
}

/** An app with the plugin. A test adds its routes. */
export async function guardedApp(options?: Partial<IdempotencyOptions>): Promise<FastifyInstance> {
  const app = newApp()
  await app.register(idempotency, optionsOf(options))
  return app
}

/** Serves an app until the test ends, with a client that shows raw replies. */
export async function serveApp(app: FastifyInstance): Promise<TestServer> {
  await app.ready()
  return serve((req, res) => app.routing(req, res))
}
