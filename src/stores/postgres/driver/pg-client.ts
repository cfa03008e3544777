import { InvalidOptionsError } from '../../../core/errors.ts'
import { Slots } from '../../kit/slots.ts'
import type { PgSingleClient } from '../client.ts'
import type { Driver, Row, Session, Value } from './driver.ts'
import { unlessGivenUp } from './giving-up.ts'
import { destroySocket } from './pg-connections.ts'
import { toPgQuery, within } from './pg.ts'

/** The status of a connection without an open transaction. */
const IDLE = 'I'

const ENDED =
  'the Client did not answer in time and was closed: connect a new Client and create a new ' +
  'store, or use a Pool, which replaces connections'

/**
 * A driver for one connection that the caller may also use. The store's writes must commit by
 * themselves, so nothing is sent while a transaction is open. A statement of the caller that was
 * already queued may open one before the store's statement: the call then fails, because it is not
 * known whether that transaction commits.
 */
export function pgClientDriver(client: PgSingleClient, prepare: boolean): Driver {
  if (client.pipeline === true) {
    throw new InvalidOptionsError(
      'postgresStore: a Client with pipeline: true is not supported, because your transactions ' +
        "could begin or end between the store's statements: use a Pool",
    )
  }
  const single = new SingleClient(client)
  const send = async (text: string, values: readonly Value[]): Promise<readonly Row[]> =>
    (await client.query(toPgQuery(text, values, prepare))).rows
  return {
    connectionsMax: 1,
    isShared: true,
    query: (text, values, signal) =>
      single.inTurn(signal, async () => {
        const rows = await send(text, values)
        single.checkIdle()
        return rows
      }),
    transact: (body, opening, signal) =>
      single.inTurn(signal, () => {
        const session: Omit<Session, 'opened'> = {
          query: send,
          script: async (sql) => void (await client.query(sql)),
          tx: client,
          backend: client.processID ?? undefined,
          destroy: () => single.end(),
        }
        const lent = {
          client,
          isGone: () => single.isEnded,
          lostBy: () => undefined,
          giveBack: () => undefined,
        }
        return within(lent, (opened) => body({ ...session, opened }), opening)
      }),
  }
}

class SingleClient {
  readonly #client: PgSingleClient
  readonly #turns = new Slots(1)
  isEnded = false

  constructor(client: PgSingleClient) {
    this.#client = client
  }

  checkIdle(): void {
    if (this.isEnded) throw new Error(ENDED)
    const status = this.#client.getTransactionStatus()
    if (status === IDLE) return
    throw new Error(
      status === null
        ? 'the Client is not connected, or does not report whether a transaction is open: ' +
            'connect it, or use a Pool'
        : "your code has a transaction open on the Client, and the store's writes must commit by " +
            'themselves: use a Pool, or another Client',
    )
  }

  /** Queues the call. Only the call that uses the connection may close it. */
  inTurn<Result>(signal: AbortSignal | undefined, run: () => Promise<Result>): Promise<Result> {
    let isUsing = false
    const turn = this.#turns.use(async () => {
      signal?.throwIfAborted()
      this.checkIdle()
      isUsing = true
      try {
        return await run()
      } finally {
        isUsing = false
      }
    })
    return unlessGivenUp(signal, turn, () => {
      if (isUsing) this.end()
    })
  }

  end(): void {
    this.isEnded = true
    // `end()` first: the client then emits 'end', and not an 'error' that may have no listener.
    this.#client.end?.().catch(() => undefined)
    destroySocket(this.#client)
  }
}
