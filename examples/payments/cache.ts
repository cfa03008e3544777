import type { Redis } from 'ioredis'
import type { Store } from 'oncekey'
import { cachedStore, redisCache } from 'oncekey/cached'

export interface CachedStore {
  readonly store: Store
  /** `undefined` without a cache. */
  readonly redis: Redis | undefined
  readonly close: () => void
}

/** Short, so that a call reconnects within its time after a network outage. */
const CONNECT_MS = 3_000
const RETRY_MS = 50
const RETRY_MS_MAX = 500

/**
 * Replays are read from Redis, so that they cost the database nothing. The database still decides
 * which request runs: a cache that is down, empty or wrong only makes replays slower.
 */
export async function withCache(durable: Store, redisUrl: string): Promise<CachedStore> {
  if (redisUrl === '') {
    return { store: durable, redis: undefined, close: () => undefined }
  }
  const { Redis } = await import('ioredis')
  const client = new Redis(redisUrl, {
    connectTimeout: CONNECT_MS,
    retryStrategy: (times) => Math.min(times * RETRY_MS, RETRY_MS_MAX),
  })
  // The client reconnects automatically. The store reports failed cache calls below.
  client.on('error', () => undefined)
  const store = cachedStore({
    durable,
    cache: redisCache({ client }),
    onError: ({ operation, error }) =>
      console.error(`cache: ${operation} failed: ${String(error)}`),
  })
  return { store, redis: client, close: () => client.disconnect() }
}
