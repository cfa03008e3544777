import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, rejectUnknownOptions } from '../../core/options.ts'
import { checkRedisClient, redisConnections } from '../../core/redis-connections.ts'
import { SilenceWatch } from '../../core/shared-connection.ts'
import type { CacheFill, ReplyCache } from './reply-cache.ts'

/** The part of a client of `ioredis` that is used; of its `Cluster` too. */
export interface IoredisClient {
  readonly status: string
  get(key: string): Promise<unknown>
  eval(script: string, keyCount: number, ...keysAndValues: string[]): Promise<unknown>
}

/** The part of a client of `redis` (node-redis) that is used; of its cluster client too. */
export interface NodeRedisClient {
  readonly isReady?: boolean
  get(key: string): Promise<unknown>
  eval(script: string, options: { keys: string[]; arguments: string[] }): Promise<unknown>
}

export type RedisCacheClient = IoredisClient | NodeRedisClient

export interface RedisCacheOptions {
  /** A connected client of `ioredis` or of `redis`. It stays yours: nothing here closes it. */
  client: RedisCacheClient

  /**
   * The first part of every key; a hash of tenant, operation and key follows. Services that do not
   * share a durable store must not share it.
   *
   * @default 'oncekey:reply:'
   */
  prefix?: string
}

/** What is kept: a letter, the expiry in sixteen digits, and the bytes in base 64. */
const REPLY = 'r'
const TOMBSTONE = 't'
const EXPIRY_DIGITS = 16
const BYTES_AT = REPLY.length + EXPIRY_DIGITS

/**
 * One script, so that nothing comes between the look and the write: a tombstone stays, and so does
 * what expires later. KEYS: the key. ARGV: text, expiry, milliseconds to keep it.
 */
const FILL = `
local head = redis.call('GETRANGE', KEYS[1], 0, ${BYTES_AT - 1})
local kind = string.sub(head, 1, 1)
if kind == '${TOMBSTONE}' then return 0 end
local kept = kind == '${REPLY}' and tonumber(string.sub(head, 2)) or 0
if kept > tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
return 1`

/** KEYS: the key. ARGV: milliseconds to keep it out. */
const FORGET = `return redis.call('SET', KEYS[1], '${TOMBSTONE}', 'PX', ARGV[1])`

/**
 * Keeps replies in Redis, for all nodes. Every command has one key, so that a Redis Cluster will
 * do. Values are text: drivers differ in how they are asked for bytes, and agree on text.
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

/** A cache is given up within milliseconds. Its connection is not, before a call would be. */
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
    this.#refuseIfCut()
    // Sent in one go, and answered in one round trip: drivers do not wait between them.
    const ask = () =>
      Promise.all(identities.map((identity) => this.#client.get(this.#prefix + identity)))
    return (await this.#watch.ask(ask, signal, SILENT_MS)).map(toBytes)
  }

  async fill(identity: string, entry: CacheFill, signal?: AbortSignal): Promise<void> {
    const { bytes, expiresAtMs, ttlMs } = entry
    this.#refuseIfCut()
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
   * Drivers keep commands back while they are not connected, and send them when they are: reads
   * that nobody waits for any more, and fills that are no longer true.
   */
  #refuseIfCut(): void {
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

/** A client may be set up to give buffers. */
function toBytes(kept: unknown): Uint8Array | undefined {
  const text = kept instanceof Uint8Array ? toBuffer(kept).toString('latin1') : kept
  if (typeof text !== 'string' || !text.startsWith(REPLY)) return undefined
  return Buffer.from(text.slice(BYTES_AT), 'base64')
}

function toBuffer({ buffer, byteOffset, byteLength }: Uint8Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength)
}
