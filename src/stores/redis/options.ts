import type { Clock } from '../../core/time/clock.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, flag, rejectUnknownOptions, wholeNumber } from '../../core/options.ts'
import type { RedisClient } from './client.ts'
import type { WaitReplicas } from './driver/replication.ts'

export interface RedisStoreOptions {
  /**
   * A connected client: `Redis` or `Redis.Cluster` of ioredis, or the result of `createClient()` or
   * `createCluster()` of node-redis. The store does not close it.
   */
  client: RedisClient

  /**
   * Prefix of every key of the store: 1 to 64 letters, digits and `: - _ .` Stores with different
   * prefixes share no records.
   *
   * @default 'oncekey'
   */
  prefix?: string

  /**
   * Acknowledges a write only when replicas have it, so that a failover to one of them loses
   * nothing. Every batch then costs a round trip to the replicas, and an outage of the replicas is
   * an outage of the store. The store opens a separate connection for it. Does not work with a
   * cluster.
   *
   * @default none; a write is acknowledged as soon as the master has it
   */
  waitReplicas?: {
    /** How many replicas must have a write: 1 to 100. */
    count: number

    /**
     * How long the server waits for the replicas, in milliseconds: from 1 to 60_000. After that the
     * call fails; a failed claim is released. A longer time tolerates slower replicas, but requests
     * wait longer. Keep it well below the engine's `storeTimeoutMs`.
     *
     * @default 1_000
     */
    timeoutMs?: number
  }

  /**
   * Accepts a server that evicts keys when memory runs out. An evicted key is lost: a retry runs
   * its work again.
   *
   * @default false; claims fail on such a server
   */
  allowEviction?: boolean

  /** For tests. @default the clock of the server, which all nodes share */
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

/** No braces: on a cluster they would choose the slot instead of the hash tag of the bucket. */
const PREFIX_PATTERN = /^[a-z0-9:_.-]{1,64}$/i

const WAIT_MS = 1_000
const WAIT_MS_MAX = 60_000
const REPLICAS_MAX = 100

/** Applies defaults and checks every option. Does not change the caller's object. */
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
  if (wait.count === undefined) {
    throw new InvalidOptionsError(
      `${where}.count is missing; set how many replicas must have a write`,
    )
  }
  return Object.freeze({
    count: wholeNumber(`${where}.count`, wait.count, { fallback: 1, min: 1, max: REPLICAS_MAX }),
    // The server reads 0 as "no limit".
    timeoutMs: wholeNumber(`${where}.timeoutMs`, wait.timeoutMs, {
      fallback: WAIT_MS,
      min: 1,
      max: WAIT_MS_MAX,
    }),
  })
}
