/** Fastify apps on the loopback. */
import fastify, { type FastifyInstance, type FastifyServerOptions } from 'fastify'
import { onTestFinished } from 'vitest'
import { idempotency, singleTenant, type FastifyOptions } from '../../src/adapters/fastify.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { serve, type TestServer } from './run-express.ts'

/** A bare app, which is closed when the test ends. */
export function newApp(options: FastifyServerOptions = {}): FastifyInstance {
  const app = fastify(options)
  onTestFinished(async () => {
    await app.close()
  })
  return app
}

/** Options on a store of their own, for an API without tenants. */
export function optionsOf(options: Partial<FastifyOptions> = {}): FastifyOptions {
  const needsStore = options.engine === undefined && options.store === undefined
  const own = needsStore ? { store: memoryStore() } : {}
  return { tenant: singleTenant, ...own, ...options }
}

/** An app with the plugin in it, to which a test adds its routes. */
export async function guardedApp(options?: Partial<FastifyOptions>): Promise<FastifyInstance> {
  const app = newApp()
  await app.register(idempotency, optionsOf(options))
  return app
}

/** Serves an app until the test ends, to a client that hides nothing. */
export async function serveApp(app: FastifyInstance): Promise<TestServer> {
  await app.ready()
  return serve((req, res) => app.routing(req, res))
}
