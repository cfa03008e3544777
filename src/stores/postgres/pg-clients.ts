import { systemClock } from '../../core/clock.ts'
import type { PgClient, PgPool, PgSocketHolder } from './client.ts'

/** The default of `pg`. */
export const CONNECTIONS_MAX = 10

export interface LentClient {
  readonly client: PgClient
  readonly isGone: () => boolean
  /** What the connection was lost by, and so all that was under way on it. */
  readonly lostBy: () => Error | undefined
  /** Only the first call counts. */
  readonly giveBack: (destroy: boolean) => void
  /** The connection has not answered: destroys it, and distrusts those that are silent as long. */
  readonly giveUp: () => void
}

const known = new WeakMap<PgPool, PgClients>()

/** One for each pool, also where several stores share it: all of them hear of a silence. */
export function clientsOf(pool: PgPool): PgClients {
  let clients = known.get(pool)
  if (clients === undefined) known.set(pool, (clients = new PgClients(pool)))
  return clients
}

/**
 * Lends the clients of a pool, and destroys those that may be dead.
 *
 * A network that loses its state without a reset kills every connection of the pool at once, and
 * each would cost one call its whole time limit. So a call that is given up casts doubt on all
 * clients that have not been heard of since it was sent: they are destroyed instead of lent.
 */
class PgClients {
  readonly #pool: PgPool
  /** When each client was heard of last, by the clock that only grows. */
  readonly #heardAtMs = new WeakMap<PgClient, number>()
  #doubtBeforeMs = -Infinity

  constructor(pool: PgPool) {
    this.#pool = pool
    pool.on?.('connect', (client) => {
      this.#hear(client)
      // The pool hands a client on while it reads a packet, and stops listening to it. An error in
      // the same packet comes before this code can listen, and would end the process.
      client.on('error', () => undefined)
    })
  }

  /**
   * A connection on which no transaction is open. Other code may have given one back with its
   * transaction still open: what is written on it would be kept or rolled back by the next user of
   * the connection. Such a connection is destroyed, and its transaction is gone. A connection that
   * comes after the signal has aborted is given back at once.
   */
  async lendIdle(signal: AbortSignal | undefined): Promise<LentClient> {
    const triesMax = (this.#pool.options.max ?? CONNECTIONS_MAX) + 1
    for (let tries = 1; tries <= triesMax; tries++) {
      const lent = await this.#lend(signal)
      const { client } = lent
      const isDoubtful = (this.#heardAtMs.get(client) ?? -Infinity) < this.#doubtBeforeMs
      if (!isDoubtful && !isInTransaction(client)) return lent
      lent.giveBack(true)
    }
    throw new Error('every connection of the pool was given back with a transaction open')
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
    // Without a listener, a connection that is cut between two queries would end the process.
    const onError = (error: Error) => {
      lostBy ??= error
    }
    client.on('error', onError)
    const giveBack = (destroy: boolean) => {
      if (isGone) return
      isGone = true
      // A destroyed client may still report an error on its way out.
      if (destroy || lostBy !== undefined) return destroyClient(client)
      client.removeListener('error', onError)
      this.#hear(client)
      client.release()
    }
    const giveUp = () => {
      if (!isGone) this.#doubtBeforeMs = Math.max(this.#doubtBeforeMs, sinceMs)
      giveBack(true)
    }
    return { client, isGone: () => isGone, lostBy: () => lostBy, giveBack, giveUp }
  }

  #hear(client: PgClient): void {
    this.#heardAtMs.set(client, systemClock.monotonicMs())
  }
}

/** Older versions of `pg` do not tell, and some clients only know once they were used. */
export function isInTransaction(client: PgClient): boolean {
  const status = client.getTransactionStatus?.()
  return status === 'T' || status === 'E'
}

/**
 * `release(true)` alone may say goodbye to the server and wait for its answer, and the pool would
 * not serve its queue until that comes.
 */
function destroyClient(client: PgClient): void {
  client.release(true)
  destroySocket(client)
}

export function destroySocket({ connection }: PgSocketHolder): void {
  connection?.stream?.destroy?.()
}
