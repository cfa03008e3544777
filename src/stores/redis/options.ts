import type { Clock } from '../../core/clock.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, flag, rejectUnknownOptions, wholeNumber } from '../../core/options.ts'
import type { RedisClient } from './client.ts'
import type { WaitReplicas } from './replication.ts'

export interface RedisStoreOptions {
  /**
   * A connected client: `Redis` or `Redis.Cluster` of ioredis, or what `createClient()` or
   * `createCluster()` of node-redis made. It stays yours: the store does not close it.
   */
  client: RedisClient

  /**
   * What every key of the store begins with. Letters, digits and `: - _ .`
   *
   * @default 'oncekey'
   */
  prefix?: string

  /**
   * Acknowledges a write only once `count` replicas have it, and fails after `timeoutMs` (1 000):
   * a failover to one of them then forgets nothing. Costs a round trip to the replica for every
   * batch, and an outage of the replicas is an outage of the store. On a connection of the store's
   * own. Not with a Cluster.
   *
   * @default none: writes are acknowledged as soon as the master has them
   */
  waitReplicas?: { count: number; timeoutMs?: number }

  /**
   * Works on a server that evicts keys when memory runs out. A key that was evicted is forgotten:
   * a retry runs its work again.
   *
   * @default false: claims are refused there
   */
  allowEviction?: boolean

  /** For tests. By default the server's own clock decides, the one that all nodes share. */
  clock?: Clock
}

export interface ResolvedRedisStoreOptions {
  readonly client: RedisClient
  readonly prefix: string
  readonly waitReplicas: WaitReplicas | undefined
  readonly allowEviction: boolean
  readonly clock: Clock | undefined
}

const KNOWN = ['client', 'prefix', 'waitReplicas', 'allowEviction', 'clock'] as const

const PREFIX = 'oncekey'

/** No braces: they would choose the slot of a cluster in the place of ours. */
const PREFIX_PATTERN = /^[a-z0-9:_.-]{1,64}$/i

const WAIT_MS = 1_000
const WAIT_MS_MAX = 60_000
const REPLICAS_MAX = 100

/** Fills defaults and checks every rule once. The caller's object is not touched. */
export function resolveRedisStoreOptions(options: RedisStoreOptions): ResolvedRedisStoreOptions {
  rejectUnknownOptions('redisStore', options, KNOWN)
  const { client, prefix = PREFIX, waitReplicas, allowEviction, clock } = options
  if (typeof prefix !== 'string' || !PREFIX_PATTERN.test(prefix)) {
    throw new InvalidOptionsError(
      'redisStore: prefix must be 1 to 64 letters, digits and ":", "-", "_" or ".", ' +
        `got ${describe(prefix)}`,
    )
  }
  return Object.freeze({
    client,
    prefix,
    waitReplicas: waitReplicas === undefined ? undefined : resolveWait(waitReplicas),
    allowEviction: flag('redisStore: allowEviction', allowEviction, false),
    clock,
  })
}

function resolveWait(wait: { count: number; timeoutMs?: number }): WaitReplicas {
  const where = 'redisStore: waitReplicas'
  rejectUnknownOptions(where, wait, ['count', 'timeoutMs'])
  if (wait.count === undefined) throw new InvalidOptionsError(`${where}.count is missing`)
  return Object.freeze({
    count: wholeNumber(`${where}.count`, wait.count, { fallback: 1, min: 1, max: REPLICAS_MAX }),
    // 0 would mean for ever to the server.
    timeoutMs: wholeNumber(`${where}.timeoutMs`, wait.timeoutMs, {
      fallback: WAIT_MS,
      min: 1,
      max: WAIT_MS_MAX,
    }),
  })
}
