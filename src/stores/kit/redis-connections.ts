/**
 * The connections of `ioredis` and `redis` (node-redis) clients, as far as the clients expose them.
 * The clients are described here and not imported, because the package depends on none of them.
 *
 * Tests: test/stores/redis/silence.server.test.ts and test/stores/client-options.process.test.ts.
 */
import { systemClock } from '../../core/time/clock.ts'
import type { ConnectionSnapshot, SharedConnection } from './shared-connection.ts'
import { warnOnce } from '../../core/warn.ts'

/** The part of an ioredis `Redis` that exposes its connection. */
interface IoRedis {
  readonly status: string
  readonly stream?: unknown
  readonly commandQueue?: { readonly length: number } | undefined
  readonly offlineQueue?: { readonly length: number } | undefined
  readonly options?: object
  connect(): Promise<unknown>
}

/** The part of a node-redis client that exposes its connection. */
interface NodeRedis {
  readonly isReady: boolean
  readonly options?: { readonly socket?: object | undefined } | undefined
  connect(): Promise<unknown>
  /** Since version 5. */
  destroy?(): void
  on(event: 'ready' | 'ping-interval', listener: () => void): unknown
}

interface Stream {
  readonly bytesRead: number
  readonly connecting?: boolean
  destroy(): unknown
}

/** One for each client: stores that share a client share its connections. */
const known = new WeakMap<object, SharedConnection>()

/** Returns a function that lists the client's current connections, or none if it hides them. */
export function redisConnections(client: object): () => readonly SharedConnection[] {
  if (isIoRedisCluster(client)) {
    return () => client.nodes('all').map((node) => once(node, () => new IoRedisNode(node)))
  }
  if (isIoRedis(client)) {
    const only = [once(client, () => new IoRedisConnection(client))]
    return () => only
  }
  if (isNodeRedis(client)) {
    const only = [once(client, () => new NodeRedisConnection(client))]
    return () => only
  }
  return () => []
}

function once(client: object, make: () => SharedConnection): SharedConnection {
  const made = known.get(client) ?? make()
  known.set(client, made)
  return made
}

/** One server of a cluster. The cluster, and not this client, opens a new connection. */
class IoRedisNode implements SharedConnection {
  readonly client: IoRedis

  constructor(client: IoRedis) {
    this.client = client
  }

  snapshot(): ConnectionSnapshot | undefined {
    const { stream } = this.client
    if (!isStream(stream)) return undefined
    return { connection: stream, answers: stream.bytesRead, isWaiting: this.#count() > 0 }
  }

  end(_silentMs: number): void {
    const { stream } = this.client
    // `destroy`, because a graceful end would wait for an answer.
    if (isStream(stream)) stream.destroy()
  }

  #count(): number {
    const { commandQueue, offlineQueue } = this.client
    return (commandQueue?.length ?? 0) + (offlineQueue?.length ?? 0)
  }
}

/** Checks of an opening connection during the timeout of one call. */
const CHECKS = 4
/** Fits the engine's default `storeTimeoutMs`. */
const CHECK_MS = 5_000 / CHECKS
/** A shorter interval would end connections that are only slow to open. */
const CHECK_MS_MIN = 100

/**
 * ioredis limits how long a connection takes to open, but not how long the server then takes to
 * answer the first commands. While the network is silent, a new connection would wait for these
 * answers forever, so this class checks the connection at intervals until it is ready.
 */
class IoRedisConnection extends IoRedisNode {
  /** Interval of the checks; `Infinity` while the connection is ready or closed. */
  #everyMs = Infinity
  #cancel: () => void = () => undefined

  beforeSend(): void {
    if (OPENING.includes(this.client.status)) this.#checkEvery(CHECK_MS)
  }

  override end(silentMs: number): void {
    super.end(silentMs)
    this.#checkEvery(Math.max(CHECK_MS_MIN, silentMs / CHECKS))
  }

  #checkEvery(everyMs: number): void {
    if (everyMs >= this.#everyMs) return
    this.#cancel()
    this.#everyMs = everyMs
    this.#scheduleCheck(this.#opening())
  }

  #scheduleCheck(before: Opening): void {
    const check = () => this.#compare(before, this.#opening())
    this.#cancel = systemClock.after(this.#everyMs, check, { background: true })
  }

  #compare(before: Opening, now: Opening): void {
    if (!OPENING.includes(now.status)) {
      this.#everyMs = Infinity
      return
    }
    const isStuck = now.status === before.status && now.stream === before.stream
    if (isStuck && now.status === 'reconnecting') {
      // Ends the client's pause before a reconnect. The client also emits a failure as event.
      this.client.connect().catch(() => undefined)
    } else if (isStuck && now.answers === before.answers && now.isWaiting) super.end(this.#everyMs)
    this.#scheduleCheck(this.#opening())
  }

  #opening(): Opening {
    const { status, stream, commandQueue } = this.client
    const isOpening = isStream(stream) && stream.connecting === true
    const isWaiting = isOpening || (commandQueue?.length ?? 0) > 0
    return { status, stream, isWaiting, answers: isStream(stream) ? stream.bytesRead : 0 }
  }
}

/** A connection that is not ready yet. */
interface Opening {
  readonly status: string
  readonly stream: unknown
  readonly answers: number
  /** Waits for the server, and not only for the pause before a reconnect. */
  readonly isWaiting: boolean
}

const OPENING: readonly string[] = ['connecting', 'connect', 'reconnecting', 'close']

/**
 * node-redis hides its socket. Only answers to the store's own commands and to the client's
 * `pingInterval` are visible. While the client opens a connection, only its options
 * `connectTimeout` and `socketTimeout` limit it.
 */
class NodeRedisConnection implements SharedConnection {
  readonly #client: NodeRedis
  #connection = {}
  #answers = 0
  #waiting = 0

  constructor(client: NodeRedis) {
    this.#client = client
    client.on('ready', () => (this.#connection = {}))
    client.on('ping-interval', () => this.#answers++)
  }

  snapshot(): ConnectionSnapshot | undefined {
    if (!this.#client.isReady) return undefined
    return {
      connection: this.#connection,
      answers: this.#answers,
      isWaiting: this.#waiting > 0,
    }
  }

  track(answer: Promise<unknown>): void {
    this.#waiting++
    answer.then(
      () => this.#settled(true),
      (error: unknown) => this.#settled(isReply(error)),
    )
  }

  end(): void {
    const client = this.#client
    if (!client.isReady || client.destroy === undefined) return
    // `destroy` and `connect` in one turn of the event loop: no command finds the client closed.
    client.destroy()
    // The client also emits the failure as event.
    client.connect().catch(() => undefined)
  }

  #settled(isHeard: boolean): void {
    this.#waiting--
    if (isHeard) this.#answers++
  }
}

const REPLIES: readonly string[] = ['ErrorReply', 'SimpleError', 'BlobError']

/** Whether the server has sent the error. node-redis uses these classes for such errors. */
function isReply(error: unknown): boolean {
  return error instanceof Error && REPLIES.includes(error.constructor.name)
}

/** Warns about a missing timeout that only the client can apply. `where` is for the message. */
export function checkRedisClient(client: object, where: string): void {
  if (isIoRedis(client)) {
    const { options = {} } = client
    const hasSentinels = 'sentinels' in options && Array.isArray(options.sentinels)
    if (!hasSentinels || isSet(options, 'sentinelCommandTimeout')) return
    warnOnce(
      `${where}: the client of ioredis has no sentinelCommandTimeout, so it waits forever for a ` +
        'sentinel that does not answer. Set it below storeTimeoutMs (5000), such as 2000',
      'redis: sentinelCommandTimeout',
    )
  } else if (isNodeRedis(client) && !isSet(socketOptions(client), 'socketTimeout')) {
    warnOnce(
      `${where}: the client of redis has no socket.socketTimeout, so it waits forever for a ` +
        'connection that it opens while the network is silent. Set it below storeTimeoutMs ' +
        '(5000), such as 3000, and pingInterval below that, such as 1000',
      'redis: socketTimeout',
    )
  }
}

function socketOptions({ options }: NodeRedis): object {
  return options?.socket ?? {}
}

function isSet(options: object, name: string): boolean {
  const value: unknown = Reflect.get(options, name)
  return typeof value === 'number' && value > 0
}

function isIoRedisCluster(client: object): client is { nodes(role: 'all'): IoRedis[] } {
  return 'nodes' in client && typeof client.nodes === 'function' && 'isCluster' in client
}

function isIoRedis(client: object): client is IoRedis {
  if (!('status' in client) || !('connect' in client)) return false
  return typeof client.status === 'string' && typeof client.connect === 'function'
}

function isNodeRedis(client: object): client is NodeRedis {
  // The client of a cluster has these properties, too, but has a separate client for each server.
  if ('nodeClient' in client || !('isReady' in client) || !('on' in client)) return false
  return typeof client.isReady === 'boolean' && typeof client.on === 'function'
}

function isStream(stream: unknown): stream is Stream {
  if (typeof stream !== 'object' || stream === null) return false
  return 'bytesRead' in stream && typeof stream.bytesRead === 'number' && 'destroy' in stream
}
