import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, rejectUnknownOptions } from '../../core/options.ts'
import { checkRedisClient, redisConnections } from '../kit/redis-connections.ts'
import { SilenceWatch } from '../kit/shared-connection.ts'
import type { CacheFill, ReplyCache } from './reply-cache.ts'

/** The part of an `ioredis` client, or of its `Cluster`, that is used. */
export interface IoredisClient {
  readonly status: string
  get(key: string): Promise<unknown>
  eval(script: string, keyCount: number, ...keysAndValues: string[]): Promise<unknown>
}

/** The part of a `redis` (node-redis) client, or of its cluster client, that is used. */
export interface NodeRedisClient {
  readonly isReady?: boolean
  get(key: string): Promise<unknown>
  eval(script: string, options: { keys: string[]; arguments: string[] }): Promise<unknown>
}

export type RedisCacheClient = IoredisClient | NodeRedisClient

export interface RedisCacheOptions {
  /** A connected client of `ioredis` or `redis`. The cache never closes it. */
  client: RedisCacheClient

  /**
   * The prefix of every Redis key; a hash of tenant, operation and key follows. Services that do
   * not share a durable store must use different prefixes.
   *
   * @default 'oncekey:reply:'
   */
  prefix?: string
}

/** The format of a value: a letter, the expiry in sixteen digits, and the bytes in base 64. */
const REPLY = 'r'
const TOMBSTONE = 't'
const EXPIRY_DIGITS = 16
const BYTES_AT = REPLY.length + EXPIRY_DIGITS

/**
 * One script, so that the read and the write are atomic: a tombstone stays, and so does a reply
 * that expires later. KEYS: the key. ARGV: text, expiry, lifetime in milliseconds.
 */
const FILL = `
local head = redis.call('GETRANGE', KEYS[1], 0, ${BYTES_AT - 1})
local kind = string.sub(head, 1, 1)
if kind == '${TOMBSTONE}' then return 0 end
local kept = kind == '${REPLY}' and tonumber(string.sub(head, 2)) or 0
if kept > tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
return 1`

/** KEYS: the key. ARGV: lifetime of the tombstone in milliseconds. */
const FORGET = `return redis.call('SET', KEYS[1], '${TOMBSTONE}', 'PX', ARGV[1])`

/**
 * Keeps replies in Redis, for all nodes. Every command has one key, so a Redis Cluster works too.
 * Values are text, because the drivers have different calls for bytes and the same for text.
 */
export function redisCache(options: RedisCacheOptions): ReplyCache {
  rejectUnknownOptions('redisCache', options, ['client', 'prefix'])
  const { client, prefix = 'oncekey:reply:' } = options
  if (typeof prefix !== 'string') {
    throw new InvalidOptionsError(`redisCache: prefix must be a string, got ${describe(prefix)}`)
  }
  if (typeof client?.get !== 'function' || typeof client.eval !== 'function') {
    throw new InvalidOptionsError(
      `redisCache: client must be a client of ioredis or redis, got ${describe(client)}`,
    )
  }
  checkRedisClient(client, 'redisCache')
  return new RedisCache(client, prefix)
}

/**
 * How long a connection must be silent before it is ended. A call gives up on the cache after
 * `timeoutMs`, which is too soon to end the connection.
 */
const SILENT_MS = 5_000

class RedisCache implements ReplyCache {
  readonly #client: RedisCacheClient
  readonly #prefix: string
  readonly #watch: SilenceWatch

  constructor(client: RedisCacheClient, prefix: string) {
    this.#client = client
    this.#prefix = prefix
    this.#watch = new SilenceWatch(redisConnections(client))
  }

  async get(
    identities: readonly string[],
    signal?: AbortSignal,
  ): Promise<(Uint8Array | undefined)[]> {
    this.#refuseIfDisconnected()
    // One round trip: drivers send all commands without waiting for answers.
    const ask = () =>
      Promise.all(identities.map((identity) => this.#client.get(this.#prefix + identity)))
    return (await this.#watch.ask(ask, signal, SILENT_MS)).map(toBytes)
  }

  async fill(identity: string, entry: CacheFill, signal?: AbortSignal): Promise<void> {
    const { bytes, expiresAtMs, ttlMs } = entry
    this.#refuseIfDisconnected()
    const expiry = String(expiresAtMs).padStart(EXPIRY_DIGITS, '0')
    const text = REPLY + expiry + toBuffer(bytes).toString('base64')
    const ask = () => this.#run(FILL, identity, [text, expiry, String(ttlMs)])
    await this.#watch.ask(ask, signal, SILENT_MS)
  }

  async forget(identity: string, tombstoneMs: number, signal?: AbortSignal): Promise<void> {
    const ask = () => this.#run(FORGET, identity, [String(tombstoneMs)])
    await this.#watch.ask(ask, signal, SILENT_MS)
  }

  #run(script: string, identity: string, values: string[]): Promise<unknown> {
    const key = this.#prefix + identity
    if (isIoredis(this.#client)) return this.#client.eval(script, 1, key, ...values)
    return this.#client.eval(script, { keys: [key], arguments: values })
  }

  /**
   * Drivers queue commands while they are not connected and send them later: reads that have timed
   * out, and fills that are outdated by then.
   */
  #refuseIfDisconnected(): void {
    const client = this.#client
    // `wait` is an ioredis client that connects with its first command.
    const isReady = isIoredis(client)
      ? client.status === 'ready' || client.status === 'wait'
      : client.isReady !== false
    if (isReady) return
    this.#watch.refused()
    throw new Error('the client is not connected to Redis')
  }
}

function isIoredis(client: RedisCacheClient): client is IoredisClient {
  return 'status' in client && typeof client.status === 'string'
}

/** A client may be configured to return buffers. */
function toBytes(value: unknown): Uint8Array | undefined {
  const text = value instanceof Uint8Array ? toBuffer(value).toString('latin1') : value
  if (typeof text !== 'string' || !text.startsWith(REPLY)) return undefined
  return Buffer.from(text.slice(BYTES_AT), 'base64')
}

function toBuffer({ buffer, byteOffset, byteLength }: Uint8Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength)
}
