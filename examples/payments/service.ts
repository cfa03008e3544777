import express from 'express'
import { createEngine, type Engine } from 'oncekey'
import { createOutbox, createReconciler, type Operation } from 'oncekey/durable'
import { createProvider, type Provider } from '../provider/provider.ts'
import { mountApi } from './http/api.ts'
import { withCache } from './cache.ts'
import { openDatabase } from './database/database.ts'
import { migrateWhenUp } from './database/migrate-when-up.ts'
import { NO_EXTENSION, type Extension } from './extension.ts'
import { GRACE_MS } from './grace.ts'
import { createLimits } from './limits.ts'
import { showAlive, showReady } from './http/health.ts'
import { logEvent } from './log-event.ts'
import { createBackgroundWork } from './maintenance.ts'
import { createOperations } from './operations.ts'
import { createProviderClient } from './provider/provider-client.ts'
import { providerEffects } from './provider/provider-effects.ts'
import { openServer } from './http/server.ts'
import type { Settings } from './settings.ts'
import { protectStoredData } from './stored-data.ts'

export interface Service {
  readonly port: number
  /** Finishes started work and starts no more: a clean shutdown leaves no outcome unknown. */
  stop(): Promise<void>
}

/** Assembles the parts for the role of the process. */
export async function startService(
  settings: Settings,
  extension: Extension = NO_EXTENSION,
): Promise<Service> {
  const { role, leaseMs, retentionMs, refuseLateMs } = settings
  const server = await openServer(settings)
  const database = await openDatabase(settings)
  await migrateWhenUp(database, settings.databaseWaitMs)
  const cache = await withCache(database.store, settings.redisUrl)

  // Sweeps and reaps run in the workers.
  const { store, redis } = cache
  const engine = createEngine({
    store,
    leaseMs,
    retentionMs,
    // A late retry must not pay again. A client that gets 410 looks the payment up.
    afterExpiry: refuseLateMs > 0 ? { refuseForMs: refuseLateMs } : 'rerun',
    ...protectStoredData(settings),
    sweepEveryMs: 0,
    reapEveryMs: 0,
    onEvent: logEvent,
  })

  const simulator = settings.providerUrl === '' ? await simulate(settings, server.port) : undefined
  const provider = createProviderClient(simulator?.url ?? settings.providerUrl)
  const effects = extension.effects(providerEffects(provider, settings))
  const operationParts = { database, outbox: createOutbox({ engine }), effects }
  const operations = createOperations(operationParts)
  const added = extension.operations(operationParts)
  const all: readonly Operation<never>[] = [...Object.values(operations), ...added.operations]
  const reconciler = createReconciler({
    engine,
    operations: all,
    schedule: { firstMs: settings.reconcileFirstMs },
    pollMs: Math.min(settings.reconcileFirstMs, 5_000),
    timeoutMs: settings.providerTimeoutMs,
  })

  const stopping = new AbortController()
  const app = express()
  app.disable('x-powered-by')
  app.get('/healthz', showAlive)
  app.get('/readyz', showReady(engine, stopping.signal))
  const mount = added.mount
  if (role !== 'worker') {
    const limits = createLimits({ database, redis, settings })
    mountApi(app, { engine, database, operations, mount, reconciler, limits, settings })
  }
  server.serve(app)

  const { topics } = extension
  const parts = { engine, database, operations: all, topics, provider, reconciler, settings }
  const background = role === 'api' ? undefined : createBackgroundWork(parts).run(stopping.signal)

  return {
    port: server.port,
    async stop() {
      stopping.abort()
      await server.drain()
      await background
      await closeEngine(engine)
      server.close()
      await database.close()
      cache.close()
      await simulator?.close()
    },
  }
}

/** A provider in this process, which sends its webhooks to this service. */
function simulate(settings: Settings, port: number): Promise<Provider> {
  const { dataFolder, webhookSecret, faults } = settings
  const webhookUrls = [`http://127.0.0.1:${port}/webhooks/provider`]
  return createProvider({ dataFolder, webhookUrls, webhookSecret, faults })
}

/** Also waits for handlers whose clients have disconnected, so that their work is recorded. */
async function closeEngine(engine: Engine): Promise<void> {
  const { abandoned } = await engine.close({ graceMs: GRACE_MS })
  if (abandoned > 0) console.error(`stopped with ${abandoned} requests unfinished`)
}
