export { cachedStore } from './store.ts'
export { memoryCache } from './memory-cache.ts'
export { redisCache } from './redis-cache.ts'
export type { CachedStore } from './store.ts'
export type { CachedStoreOptions, CacheFailure } from './options.ts'
export type { MemoryCacheOptions } from './memory-cache.ts'
export type {
  IoredisClient,
  NodeRedisClient,
  RedisCacheClient,
  RedisCacheOptions,
} from './redis-cache.ts'
export type { CacheFill, ReplyCache } from './reply-cache.ts'
