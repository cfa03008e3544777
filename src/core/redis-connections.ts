/**
 * The connections behind clients of `ioredis` and `redis` (node-redis), as far as they can be
 * reached from outside. Described, not imported: the package depends on no client.
 */
import { systemClock } from './clock.ts'
import type { ConnectionLook, SharedConnection } from './shared-connection.ts'
import { warnOnce } from './warn.ts'

/** The part of a `Redis` of ioredis that shows its connection. */
interface IoRedis {
  readonly status: string
  readonly stream?: unknown
  readonly commandQueue?: { readonly length: number } | undefined
  readonly offlineQueue?: { readonly length: number } | undefined
  readonly options?: object
  connect(): Promise<unknown>
}

/** The part of a client of node-redis that shows its connection. */
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

/** One for each client, however many stores share it. */
const known = new WeakMap<object, SharedConnection>()

/** The connections of a client as they are at the moment of asking; none where none is reached. */
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

/** One server of a cluster. Its client opens no other connection; the cluster does. */
class IoRedisNode implements SharedConnection {
  readonly client: IoRedis

  constructor(client: IoRedis) {
    this.client = client
  }

  look(): ConnectionLook | undefined {
    const { stream } = this.client
    if (!isStream(stream)) return undefined
    return { connection: stream, heard: stream.bytesRead, isWaiting: this.#count() > 0 }
  }

  end(_silentMs: number): void {
    const { stream } = this.client
    // At once: ending it in order would wait for an answer.
    if (isStream(stream)) stream.destroy()
  }

  #count(): number {
    const { commandQueue, offlineQueue } = this.client
    return (commandQueue?.length ?? 0) + (offlineQueue?.length ?? 0)
  }
}

/** So often in the time that a call may take, a connection that opens is looked at. */
const LOOKS = 4
/** For the engine's default `storeTimeoutMs`. */
const REVIVE_MS = 5_000 / LOOKS
/** Less would end connections that are only slow to open. */
const REVIVE_MS_MIN = 100

/**
 * ioredis limits how long a connection takes to open, but not how long the server then takes to
 * answer its first commands. While the network is silent a new connection would wait for them for
 * ever, so it is looked at until it is ready.
 */
class IoRedisConnection extends IoRedisNode {
  /** How often it is looked at; never, where it is ready or closed. */
  #everyMs = Infinity
  #cancel: () => void = () => undefined

  asking(): void {
    if (OPENING.includes(this.client.status)) this.#revive(REVIVE_MS)
  }

  override end(silentMs: number): void {
    super.end(silentMs)
    this.#revive(Math.max(REVIVE_MS_MIN, silentMs / LOOKS))
  }

  #revive(everyMs: number): void {
    if (everyMs >= this.#everyMs) return
    this.#cancel()
    this.#everyMs = everyMs
    this.#lookAgain(this.#opening())
  }

  #lookAgain(before: Opening): void {
    const look = () => this.#compare(before, this.#opening())
    this.#cancel = systemClock.after(this.#everyMs, look, { background: true })
  }

  #compare(before: Opening, now: Opening): void {
    if (!OPENING.includes(now.status)) {
      this.#everyMs = Infinity
      return
    }
    const isStuck = now.status === before.status && now.stream === before.stream
    if (isStuck && now.status === 'reconnecting') {
      // The client pauses for longer than calls are waited for. A failure is its event, too.
      this.client.connect().catch(() => undefined)
    } else if (isStuck && now.heard === before.heard && now.isAsked) super.end(this.#everyMs)
    this.#lookAgain(this.#opening())
  }

  #opening(): Opening {
    const { status, stream, commandQueue } = this.client
    const isOpening = isStream(stream) && stream.connecting === true
    const isAsked = isOpening || (commandQueue?.length ?? 0) > 0
    return { status, stream, isAsked, heard: isStream(stream) ? stream.bytesRead : 0 }
  }
}

/** A connection on its way to being ready. */
interface Opening {
  readonly status: string
  readonly stream: unknown
  readonly heard: number
  /** An answer is due, and not merely a pause. */
  readonly isAsked: boolean
}

const OPENING: readonly string[] = ['connecting', 'connect', 'reconnecting', 'close']

/**
 * node-redis hides its socket, so that the answers that show are those to our own commands, and to
 * its `pingInterval`. While it opens a connection, nothing can be done from outside: it is limited
 * by its options `connectTimeout` and `socketTimeout`.
 */
class NodeRedisConnection implements SharedConnection {
  readonly #client: NodeRedis
  #connection = {}
  #heard = 0
  #waiting = 0

  constructor(client: NodeRedis) {
    this.#client = client
    client.on('ready', () => (this.#connection = {}))
    client.on('ping-interval', () => this.#heard++)
  }

  look(): ConnectionLook | undefined {
    if (!this.#client.isReady) return undefined
    return {
      connection: this.#connection,
      heard: this.#heard,
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
    // The two of them in one turn, so that no command finds the client closed.
    client.destroy()
    // The failure is also an event of the client.
    client.connect().catch(() => undefined)
  }

  #settled(isHeard: boolean): void {
    this.#waiting--
    if (isHeard) this.#heard++
  }
}

const REPLIES: readonly string[] = ['ErrorReply', 'SimpleError', 'BlobError']

/** An error that the server has sent, as node-redis calls it. */
function isReply(error: unknown): boolean {
  return error instanceof Error && REPLIES.includes(error.constructor.name)
}

/** Says which option a client lacks that only the client can heed. `where`: who was given it. */
export function checkRedisClient(client: object, where: string): void {
  if (isIoRedis(client)) {
    const { options = {} } = client
    const hasSentinels = 'sentinels' in options && Array.isArray(options.sentinels)
    if (!hasSentinels || isSet(options, 'sentinelCommandTimeout')) return
    warnOnce(
      `${where}: the client of ioredis has no sentinelCommandTimeout, so that it waits for ever ` +
        'for a sentinel that went silent: set it below storeTimeoutMs (5000), such as 2000',
      'redis: sentinelCommandTimeout',
    )
  } else if (isNodeRedis(client) && !isSet(socketOptions(client), 'socketTimeout')) {
    warnOnce(
      `${where}: the client of redis has no socket.socketTimeout, so that a connection that is ` +
        'opened while the network is silent is waited for for ever: set it below storeTimeoutMs ' +
        '(5000), such as 3000, and pingInterval below it, such as 1000',
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
  // The client of a cluster has these, too, and is none: it has one for each server.
  if ('nodeClient' in client || !('isReady' in client) || !('on' in client)) return false
  return typeof client.isReady === 'boolean' && typeof client.on === 'function'
}

function isStream(stream: unknown): stream is Stream {
  if (typeof stream !== 'object' || stream === null) return false
  return 'bytesRead' in stream && typeof stream.bytesRead === 'number' && 'destroy' in stream
}
