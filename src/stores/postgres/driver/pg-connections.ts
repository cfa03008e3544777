import { systemClock } from '../../../core/time/clock.ts'
import type { PgClient, PgPool, PgSocketHolder } from '../client.ts'

/** The pool size that `pg` uses by default. */
export const CONNECTIONS_MAX = 10

/** A client that is out of the pool for one call or one transaction. */
export interface LentClient {
  readonly client: PgClient
  readonly isGone: () => boolean
  /** The error that ended the connection, and with it the statement that was running. */
  readonly lostBy: () => Error | undefined
  /** Only the first call has an effect. */
  readonly giveBack: (destroy: boolean) => void
  /** Destroys a connection that did not answer; others that are silent as long become suspect. */
  readonly giveUp: () => void
}

const known = new WeakMap<PgPool, PgConnections>()

/** Returns one object for each pool: stores that share a pool share what they learn about it. */
export function connectionsOf(pool: PgPool): PgConnections {
  let connections = known.get(pool)
  if (connections === undefined) known.set(pool, (connections = new PgConnections(pool)))
  return connections
}

/**
 * Lends the clients of a pool, and destroys those that may be dead.
 *
 * A network that loses its state without a reset breaks every connection of the pool at once, and
 * each of them would cost one call its whole time limit. So a call that timed out makes all clients
 * suspect that have not answered since it was sent: they are destroyed instead of lent.
 *
 * Tests: test/stores/postgres/driver/pg-connections.server.test.ts, lost-in-one-packet, silence/.
 */
class PgConnections {
  readonly #pool: PgPool
  /** When each client answered last, by the monotonic clock. */
  readonly #answeredAtMs = new WeakMap<PgClient, number>()
  #suspectBeforeMs = -Infinity

  constructor(pool: PgPool) {
    this.#pool = pool
    pool.on?.('connect', (client) => {
      this.#noteAnswer(client)
      // The pool passes a client on while it reads a packet, and removes its listener. An error in
      // the same packet arrives before this code can listen, and would end the process.
      client.on('error', () => undefined)
    })
  }

  /**
   * Returns a connection without an open transaction. Other code may have released a connection
   * with its transaction still open: the next user of the connection would then commit or roll back
   * the store's writes. Such a connection is destroyed, which rolls its transaction back. If the
   * pool returns a connection after the signal has aborted, it is released at once.
   */
  async lendIdle(signal: AbortSignal | undefined): Promise<LentClient> {
    const triesMax = (this.#pool.options.max ?? CONNECTIONS_MAX) + 1
    for (let tries = 1; tries <= triesMax; tries++) {
      const lent = await this.#lend(signal)
      const { client } = lent
      const isSuspect = (this.#answeredAtMs.get(client) ?? -Infinity) < this.#suspectBeforeMs
      if (!isSuspect && !isInTransaction(client)) return lent
      lent.giveBack(true)
    }
    throw new Error(
      'other code released every connection of the pool with a transaction open: it must commit ' +
        'or roll back before release()',
    )
  }

  async #lend(signal: AbortSignal | undefined): Promise<LentClient> {
    signal?.throwIfAborted()
    const client = await this.#pool.connect()
    if (signal?.aborted === true) {
      client.release()
      throw signal.reason as Error
    }
    const sinceMs = systemClock.monotonicMs()
    let lostBy: Error | undefined
    let isGone = false
    // Without a listener, a connection that is lost between two queries would end the process.
    const onError = (error: Error) => {
      lostBy ??= error
    }
    client.on('error', onError)
    const giveBack = (destroy: boolean) => {
      if (isGone) return
      isGone = true
      // A destroyed client may still report an error, so its listener stays.
      if (destroy || lostBy !== undefined) return destroyClient(client)
      client.removeListener('error', onError)
      this.#noteAnswer(client)
      client.release()
    }
    const giveUp = () => {
      if (!isGone) this.#suspectBeforeMs = Math.max(this.#suspectBeforeMs, sinceMs)
      giveBack(true)
    }
    return { client, isGone: () => isGone, lostBy: () => lostBy, giveBack, giveUp }
  }

  #noteAnswer(client: PgClient): void {
    this.#answeredAtMs.set(client, systemClock.monotonicMs())
  }
}

/** Older versions of `pg` do not report it, and some clients only after their first query. */
export function isInTransaction(client: PgClient): boolean {
  const status = client.getTransactionStatus?.()
  return status === 'T' || status === 'E'
}

/**
 * `release(true)` alone may close the connection gracefully and wait for the server, and the pool
 * does not serve its queue until then.
 */
function destroyClient(client: PgClient): void {
  client.release(true)
  destroySocket(client)
}

export function destroySocket({ connection }: PgSocketHolder): void {
  connection?.stream?.destroy?.()
}
