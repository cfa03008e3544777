/** Koa servers of both major versions on the loopback. */
import type { RequestListener } from 'node:http'
import { createRequire } from 'node:module'
import { Router } from '@koa/router'
import { onTestFinished } from 'vitest'
import Koa, { type Context, type Middleware } from 'koa'
import { singleTenant } from '../../src/http/guard/guard-options.ts'
import {
  idempotency,
  type IdempotencyMiddleware,
  type IdempotencyOptions,
} from '../../src/adapters/koa/index.ts'
import { memoryStore } from '../../src/stores/memory/store.ts'
import { sqliteStore, type SqliteStore } from '../../src/stores/sqlite/index.ts'
import { scratchFolder } from '../stores/scratch-folder.ts'
import { serve, type TestServer } from './run-express.ts'

export type KoaModule = typeof Koa

/** Every test runs on both. The types are of Koa 3; the parts in use are the same in 2. */
export const KOAS: readonly (readonly [name: string, koa: KoaModule])[] = [
  ['koa 3', Koa],
  ['koa 2', createRequire(import.meta.url)('koa2') as KoaModule],
]

/** A guard on a new memory store, for an API without tenants. */
export function guardOf(options: Partial<IdempotencyOptions> = {}): IdempotencyMiddleware {
  const needsStore = options.engine === undefined && options.store === undefined
  const own = needsStore ? { store: memoryStore() } : {}
  return idempotency({ tenant: singleTenant, ...own, ...options })
}

export interface ServedKoa extends TestServer {
  readonly app: Koa
  /** The errors that the app emitted. The listener keeps Koa from printing them. */
  readonly errors: Error[]
}

/** Serves an app with these middlewares, in this order. */
export async function serveKoa(
  koa: KoaModule,
  ...middlewares: readonly (Middleware | ReturnType<Router['routes']>)[]
): Promise<ServedKoa> {
  const app = new koa()
  const errors: Error[] = []
  app.on('error', (error: Error) => errors.push(error))
  for (const one of middlewares) app.use(one as Middleware)
  const server = await serve(listenerOf(app))
  return { ...server, app, errors }
}

/** The listener of an app. Koa handles errors itself, so its promise needs no handler. */
export function listenerOf(app: Koa): RequestListener {
  const listen = app.callback()
  return (req, res) => void listen(req, res)
}

/** A store with transactions. It is removed when the test ends. */
export function tempStore(): SqliteStore {
  const folder = scratchFolder()
  const store = sqliteStore({ path: folder.file('keys.db'), synchronous: 'normal' })
  onTestFinished(async () => {
    await store.close()
    folder.remove()
  })
  return store
}

/** A handler that counts its runs. */
export function counted(handle: (ctx: Context, run: number) => unknown) {
  const handler = async (ctx: Context) => {
    handler.runs++
    await handle(ctx, handler.runs)
  }
  handler.runs = 0
  return handler
}

export { Router }
