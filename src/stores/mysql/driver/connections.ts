/**
 * Takes connections from the pool for calls that can be aborted.
 *
 * Tests: test/stores/mysql/silence.server.test.ts.
 */
import { systemClock } from '../../../core/time/clock.ts'
import { warnOnce } from '../../../core/warn.ts'
import type { MysqlCorePool, MysqlPoolConnection, MysqlPromisePool } from '../client.ts'

/** Default `connectionLimit` of `mysql2`. */
const CONNECTIONS_MAX = 10

/** The engine's default `storeTimeoutMs`. A longer connection attempt would outlive its call. */
const CONNECT_MS_MAX = 5_000

/** A call that waits for a connection. */
interface Waiter {
  readonly take: (connection: MysqlPoolConnection) => void
  readonly fail: (error: Error) => void
}

/**
 * The connections of a pool, for calls that can be aborted.
 *
 * A call that is aborted while it waits cannot cancel its request to the pool: the pool answers as
 * soon as it has a connection. The next waiting call gets that connection instead, so the open
 * requests are never more than the calls that have waited at the same time.
 */
export class Connections {
  readonly #pool: MysqlPromisePool
  readonly #answers: Answers
  #waiting: Waiter[] = []
  #requests = 0

  constructor(pool: MysqlPromisePool) {
    this.#pool = pool
    this.#answers = answersOf(pool.pool)
    checkConnectTimeout(pool.pool)
  }

  /** How many connections the pool opens at most. */
  get countMax(): number {
    const { config } = this.#pool.pool
    const limit = 'connectionLimit' in config ? config.connectionLimit : undefined
    if (typeof limit !== 'number') return CONNECTIONS_MAX
    return limit === 0 ? Infinity : limit
  }

  /** Rejects as soon as `signal` aborts. */
  take(signal: AbortSignal | undefined): Promise<MysqlPoolConnection> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted === true) return reject(signal.reason as Error)
      const leave = () => {
        signal?.removeEventListener('abort', giveUp)
        this.#waiting = this.#waiting.filter((other) => other !== waiter)
      }
      const waiter: Waiter = {
        take: (connection) => {
          leave()
          resolve(connection)
        },
        fail: (error) => {
          leave()
          reject(error)
        },
      }
      const giveUp = () => waiter.fail(signal?.reason as Error)
      signal?.addEventListener('abort', giveUp)
      this.#waiting.push(waiter)
      if (this.#waiting.length > this.#requests) this.#request(waiter)
    })
  }

  giveBack(connection: MysqlPoolConnection): void {
    this.#answers.heard(connection)
    connection.release()
  }

  /**
   * Also destroys the socket: `mysql2` only closes it in order, which never finishes while the
   * network is silent.
   */
  destroy(connection: MysqlPoolConnection): void {
    connection.destroy()
    const core = coreOf(connection)
    const stream: unknown = 'stream' in core ? core.stream : undefined
    if (isDestroyable(stream)) stream.destroy()
  }

  /**
   * Notes that a statement sent at `sentMs` got no answer: the network may be silent since then.
   */
  doubt(sentMs: number): void {
    this.#answers.doubt(sentMs)
  }

  #request(requester: Waiter): void {
    this.#requests++
    this.#pool.getConnection().then(
      (connection) => {
        this.#requests--
        this.#handOver(connection, requester)
      },
      (error: unknown) => {
        this.#requests--
        if (this.#waiting.includes(requester)) requester.fail(error as Error)
        // The request of an aborted call failed: a call that waits now needs its own request.
        else this.#requestAgain()
      },
    )
  }

  #handOver(connection: MysqlPoolConnection, requester: Waiter): void {
    const next = this.#waiting[0]
    if (this.#answers.isDoubtful(connection)) {
      this.destroy(connection)
      this.#requestAgain(requester)
    } else if (next === undefined) connection.release()
    else next.take(connection)
  }

  #requestAgain(requester?: Waiter): void {
    const last = this.#waiting.at(-1)
    if (last === undefined || this.#waiting.length <= this.#requests) return
    const isWaiting = requester !== undefined && this.#waiting.includes(requester)
    this.#request(isWaiting ? requester : last)
  }
}

/**
 * Time of the last answer on each connection of a pool. When a network goes silent, every open
 * connection is dead, and idle connections in the pool do not show it: one call after the other
 * would time out on them. So after a statement got no answer, a connection that has not answered
 * since that statement was sent is not used again.
 */
class Answers {
  readonly #heardMs = new WeakMap<object, number>()
  #doubtedMs = -Infinity

  constructor(pool: MysqlCorePool) {
    pool.on?.('connection', (connection) => {
      this.#heardMs.set(connection, systemClock.monotonicMs())
    })
  }

  heard(connection: MysqlPoolConnection): void {
    this.#heardMs.set(coreOf(connection), systemClock.monotonicMs())
  }

  doubt(sentMs: number): void {
    this.#doubtedMs = Math.max(this.#doubtedMs, sentMs)
  }

  /** `false` for a connection without any known answer, because it may be new. */
  isDoubtful(connection: MysqlPoolConnection): boolean {
    return (this.#heardMs.get(coreOf(connection)) ?? Infinity) < this.#doubtedMs
  }
}

/** One listener for each pool, because several stores may share a pool. */
const listeners = new WeakMap<object, Answers>()

function answersOf(pool: MysqlCorePool): Answers {
  const known = listeners.get(pool)
  if (known !== undefined) return known
  const answers = new Answers(pool)
  listeners.set(pool, answers)
  return answers
}

/** `mysql2/promise` creates a new wrapper each time that it lends the same connection. */
function coreOf(connection: MysqlPoolConnection): object {
  return connection.connection ?? connection
}

function isDestroyable(stream: unknown): stream is { destroy(): unknown } {
  if (typeof stream !== 'object' || stream === null || !('destroy' in stream)) return false
  return typeof stream.destroy === 'function'
}

function checkConnectTimeout({ config }: MysqlCorePool): void {
  const settings = 'connectionConfig' in config ? config.connectionConfig : undefined
  if (typeof settings !== 'object' || settings === null) return
  const timeoutMs = 'connectTimeout' in settings ? settings.connectTimeout : undefined
  if (typeof timeoutMs !== 'number' || (timeoutMs > 0 && timeoutMs <= CONNECT_MS_MAX)) return
  const limit = timeoutMs === 0 ? 'no connectTimeout' : `a connectTimeout of ${timeoutMs} ms`
  warnOnce(
    `mysqlStore: the pool has ${limit}. After a network outage, connection attempts would occupy ` +
      'the pool for that time and calls would get no connection: set connectTimeout below ' +
      'storeTimeoutMs (5000), such as 3000',
    'mysql: connectTimeout',
  )
}
