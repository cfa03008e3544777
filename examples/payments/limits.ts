import type { Request } from 'express'
import type { Redis } from 'ioredis'
import type { GuardOptions } from 'oncekey'
import { RateLimiterRedis, type RateLimiterAbstract } from 'rate-limiter-flexible'
import type { Database, Limit } from './database/database.ts'
import type { Settings } from './settings.ts'

export type Limits = NonNullable<GuardOptions<Request>['limits']>

export interface LimitParts {
  readonly database: Database
  readonly redis: Redis | undefined
  readonly settings: Pick<Settings, 'newKeysPerSecond' | 'lookUpsPerSecond' | 'inFlightMax'>
}

/**
 * The limits of a tenant and of its users, so that the flood of one tenant does not delay another,
 * and so that keys cannot be found by trying. The routes share the object, and count together.
 */
export function createLimits({ database, redis, settings }: LimitParts): Limits {
  const { newKeysPerSecond, lookUpsPerSecond, inFlightMax } = settings
  // With a cache, replays cost the database nothing. Their limit must not change that.
  const open = (limit: Limit): RateLimiterAbstract =>
    redis === undefined ? database.limiter(limit) : openRedisLimiter(redis, limit)
  return {
    ...(newKeysPerSecond > 0 && {
      newKeys: open({ name: 'new-keys', perSecond: newKeysPerSecond }),
    }),
    ...(lookUpsPerSecond > 0 && {
      lookUps: open({ name: 'look-ups', perSecond: lookUpsPerSecond }),
    }),
    ...(inFlightMax > 0 && { inFlight: inFlightMax }),
  }
}

function openRedisLimiter(redis: Redis, { name, perSecond }: Limit): RateLimiterRedis {
  return new RateLimiterRedis({
    storeClient: redis,
    // While Redis is away, requests pass at once instead of waiting for the limiter's time.
    rejectIfRedisNotReady: true,
    keyPrefix: `payments:${name}`,
    points: perSecond,
    duration: 1,
    inMemoryBlockOnConsumed: perSecond,
  })
}
