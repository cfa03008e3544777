/** A server under load. */
import { bare, expressApp, guarded, type Protection } from '../apps/express-app.ts'
import {
  expressIdempotency,
  nodeIdempotency,
  powertools,
  steadykey,
} from '../apps/express-peers.ts'
import { fastifyApp } from '../apps/fastify-app.ts'
import { honoApp } from '../apps/hono-app.ts'
import { Gate, type App } from '../apps/app.ts'
import type { Places, Program } from '../run/contract.ts'
import type { NodeIdempotencyStore } from '../subjects/node-idempotency.ts'
import type { SteadykeyStore } from '../subjects/steadykey.ts'
import type { StoreName } from '../subjects/stores.ts'

export type Framework = 'express' | 'fastify' | 'hono'

export type HttpConfig =
  | { readonly kind: 'own'; readonly framework: Framework; readonly store: StoreName | 'bare' }
  | { readonly kind: 'steadykey'; readonly store: SteadykeyStore }
  | { readonly kind: 'node-idempotency'; readonly store: NodeIdempotencyStore }
  | { readonly kind: 'powertools' | 'express-idempotency' }

export type HttpProgramConfig = HttpConfig & { readonly places: Places }

export async function open(config: HttpProgramConfig): Promise<Program> {
  const gate = new Gate()
  const app = await openApp(config, gate)
  return {
    info: { port: app.port, forgets: app.reset !== undefined },
    calls: {
      runs: () => gate.runs,
      cpu: () => {
        const { user, system } = process.cpuUsage()
        return user + system
      },
      reset: () => app.reset?.(),
      hold: () => gate.hold(),
      release: () => gate.release(),
      heap: collectedBytes,
    },
    close: () => app.close(),
  }
}

function openApp(config: HttpProgramConfig, gate: Gate): Promise<App> {
  if (config.kind === 'own') {
    const { framework, store, places } = config
    if (framework === 'fastify') return fastifyApp(store, places, gate)
    if (framework === 'hono') return honoApp(store, places, gate)
  }
  return protectionOf(config, gate).then((protection) => expressApp(protection, gate))
}

async function protectionOf(config: HttpProgramConfig, gate: Gate): Promise<Protection> {
  const { places } = config
  switch (config.kind) {
    case 'own':
      return config.store === 'bare' ? bare : guarded(config.store, places)
    case 'steadykey':
      return steadykey(config.store, places)
    case 'node-idempotency':
      return nodeIdempotency(config.store, places)
    case 'powertools':
      return powertools(places, gate)
    case 'express-idempotency':
      return expressIdempotency(gate)
  }
}

/** Live memory: heap and external. */
export async function collectedBytes(): Promise<number> {
  // Twice, with a turn in between: objects that a finalizer releases become garbage only then.
  globalThis.gc?.()
  await new Promise((resolve) => setImmediate(resolve))
  globalThis.gc?.()
  const { heapUsed, external } = process.memoryUsage()
  return heapUsed + external
}
