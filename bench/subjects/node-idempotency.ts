/**
 * @node-idempotency/core, by the flow of its README: `onRequest`, the work if that returns nothing,
 * `onResponse`. Otherwise with its defaults: a TTL of a day, no waiting.
 *
 * Left out: it has no lease and no fence. A dead holder keeps its key for a day, and every
 * completion overwrites. Keys are separated by method and path, not by tenant.
 */
import type { Places } from '../run/contract.ts'
import type { Counter, Subject } from '../run/subject.ts'
import { REPLY, REQUEST } from '../run/work.ts'
import { loadPeer, openNodeRedis } from './load-peer.ts'
import { addressOf } from './stores.ts'

export type NodeIdempotencyStore = 'memory' | 'redis'

export interface IdempotencyRequest {
  readonly method: string
  readonly path: string
  readonly headers: Readonly<Record<string, unknown>>
  readonly body: unknown
}

export interface IdempotencyReply {
  readonly body?: unknown
  readonly additional?: Readonly<Record<string, unknown>>
}

export interface NodeIdempotency {
  onRequest(request: IdempotencyRequest): Promise<IdempotencyReply | undefined>
  onResponse(request: IdempotencyRequest, reply: IdempotencyReply): Promise<void>
}

interface CoreModule {
  readonly Idempotency: new (storage: unknown) => NodeIdempotency
}

interface RedisStorage {
  connect(): Promise<void>
  disconnect(): Promise<void>
}

export interface OpenIdempotency {
  /** A new one after a reset. */
  readonly idempotency: NodeIdempotency
  readonly reset: () => Promise<void>
  readonly close: () => Promise<void>
}

export async function openIdempotency(
  store: NodeIdempotencyStore,
  places: Places,
): Promise<OpenIdempotency> {
  const { Idempotency } = await loadPeer<CoreModule>('@node-idempotency/core')
  return store === 'memory' ? inMemory(Idempotency) : inRedis(Idempotency, places)
}

async function inMemory(Idempotency: CoreModule['Idempotency']): Promise<OpenIdempotency> {
  const { MemoryStorageAdapter } = await loadPeer<{ MemoryStorageAdapter: new () => unknown }>(
    '@node-idempotency/storage-adapter-memory',
  )
  let idempotency = new Idempotency(new MemoryStorageAdapter())
  return {
    get idempotency() {
      return idempotency
    },
    reset: async () => void (idempotency = new Idempotency(new MemoryStorageAdapter())),
    close: async () => undefined,
  }
}

async function inRedis(
  Idempotency: CoreModule['Idempotency'],
  places: Places,
): Promise<OpenIdempotency> {
  const url = addressOf(places, 'redis')
  const { RedisStorageAdapter } = await loadPeer<{
    RedisStorageAdapter: new (options: { url: string }) => RedisStorage
  }>('@node-idempotency/storage-adapter-redis')
  const storage = new RedisStorageAdapter({ url })
  await storage.connect()
  // The client of the package is private, so a second one empties the database between rounds.
  const cleaner = await openNodeRedis('redis', url)
  return {
    idempotency: new Idempotency(storage),
    reset: async () => void (await cleaner.flushDb()),
    async close() {
      await cleaner.quit()
      await storage.disconnect()
    },
  }
}

export async function openNodeIdempotency(
  store: NodeIdempotencyStore,
  places: Places,
  counter: Counter,
): Promise<Subject> {
  const opened = await openIdempotency(store, places)
  return {
    async run(key) {
      const headers = { 'idempotency-key': key }
      const request = { method: 'POST', path: '/payments', headers, body: REQUEST }
      const known = await opened.idempotency.onRequest(request)
      if (known !== undefined) return known.body
      counter.runs++
      await opened.idempotency.onResponse(request, { body: REPLY, additional: { status: 201 } })
      return REPLY
    },
    reset: opened.reset,
    close: opened.close,
  }
}
