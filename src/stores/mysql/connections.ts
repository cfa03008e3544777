import { systemClock } from '../../core/clock.ts'
import { warnOnce } from '../../core/warn.ts'
import type { MysqlCorePool, MysqlPoolConnection, MysqlPromisePool } from './client.ts'

/** What `mysql2` takes when the pool has no `connectionLimit`. */
const CONNECTIONS_MAX = 10

/** The engine's default `storeTimeoutMs`. A connection that opens for longer outlives its call. */
const CONNECT_MS_MAX = 5_000

/** A call that waits for a connection. */
interface Waiter {
  readonly take: (connection: MysqlPoolConnection) => void
  readonly fail: (error: Error) => void
}

/**
 * The connections of a pool, for calls that may be given up.
 *
 * A call that is given up while it waits cannot take back its question: the pool answers when it
 * has a connection. So the next call that waits gets that answer, and the questions under way are
 * never more than the calls that have waited at the same time.
 */
export class Connections {
  readonly #pool: MysqlPromisePool
  readonly #answers: Answers
  #waiting: Waiter[] = []
  #questions = 0

  constructor(pool: MysqlPromisePool) {
    this.#pool = pool
    this.#answers = answersOf(pool.pool)
    checkConnectTimeout(pool.pool)
  }

  /** Connections that the pool opens at the most. */
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
      if (this.#waiting.length > this.#questions) this.#ask(waiter)
    })
  }

  giveBack(connection: MysqlPoolConnection): void {
    this.#answers.heard(connection)
    connection.release()
  }

  /**
   * `mysql2` ends its socket in order, which takes for ever where the network is silent: the socket
   * is destroyed as well.
   */
  destroy(connection: MysqlPoolConnection): void {
    connection.destroy()
    const core = coreOf(connection)
    const stream: unknown = 'stream' in core ? core.stream : undefined
    if (isDestroyable(stream)) stream.destroy()
  }

  /** A statement that was sent at `sentMs` is given up: the network may be silent since then. */
  doubt(sentMs: number): void {
    this.#answers.doubt(sentMs)
  }

  #ask(asker: Waiter): void {
    this.#questions++
    this.#pool.getConnection().then(
      (connection) => {
        this.#questions--
        this.#handOver(connection, asker)
      },
      (error: unknown) => {
        this.#questions--
        if (this.#waiting.includes(asker)) asker.fail(error as Error)
        // The question of a call that was given up failed: whoever waits now has not asked yet.
        else this.#askAgain()
      },
    )
  }

  #handOver(connection: MysqlPoolConnection, asker: Waiter): void {
    const next = this.#waiting[0]
    if (this.#answers.isDoubtful(connection)) {
      this.destroy(connection)
      this.#askAgain(asker)
    } else if (next === undefined) connection.release()
    else next.take(connection)
  }

  #askAgain(asker?: Waiter): void {
    const last = this.#waiting.at(-1)
    if (last === undefined || this.#waiting.length <= this.#questions) return
    this.#ask(asker !== undefined && this.#waiting.includes(asker) ? asker : last)
  }
}

/**
 * When each connection of a pool has last answered. Where a network goes silent, every connection
 * that was open then is dead, and those that lie idle in the pool do not show it: one call after
 * the other would be given up on them. So a connection that has not answered since a statement was
 * sent that was given up is not used again.
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

  /** Never a connection that is seen for the first time: it may be new. */
  isDoubtful(connection: MysqlPoolConnection): boolean {
    return (this.#heardMs.get(coreOf(connection)) ?? Infinity) < this.#doubtedMs
  }
}

/** One listener for a pool, however many stores share it. */
const listeners = new WeakMap<object, Answers>()

function answersOf(pool: MysqlCorePool): Answers {
  const known = listeners.get(pool)
  if (known !== undefined) return known
  const answers = new Answers(pool)
  listeners.set(pool, answers)
  return answers
}

/** `mysql2/promise` wraps the same connection anew each time that the pool gives it out. */
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
    `mysqlStore: the pool has ${limit}. While the network is silent, connections that are being ` +
      'opened keep their place in the pool for as long, and calls find none when it is back: set ' +
      'connectTimeout below storeTimeoutMs (5000), such as 3000',
    'mysql: connectTimeout',
  )
}
