import { InvalidOptionsError } from '../../core/errors.ts'
import { Slots } from '../../core/slots.ts'
import type { Driver, PgSingleClient, Row, Session, Value } from './client.ts'
import { unlessGivenUp } from './giving-up.ts'
import { destroySocket } from './pg-clients.ts'
import { toPgQuery, within } from './pg-driver.ts'

/** What a connection says that has no transaction open. */
const IDLE = 'I'

const ENDED =
  'the Client gave no answer in time and was ended: connect a new Client and make a new store, ' +
  'or use a Pool, which replaces connections'

/**
 * One connection, which the caller may use, too. What the store writes must commit by itself, so
 * nothing is sent while a transaction is open; and where one was opened by a statement that was
 * already on its way, the answer is not taken for one: nobody knows what will become of it.
 */
export function pgClientDriver(client: PgSingleClient, prepare: boolean): Driver {
  if (client.pipeline === true) {
    throw new InvalidOptionsError(
      'postgresStore: a Client with pipeline: true will not do, for a transaction of yours could ' +
        "begin or end among the store's own statements: use a Pool",
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
        ? 'the client is not connected, or is one that does not tell whether a transaction is open'
        : "the client has a transaction of yours open, and the store's writes must commit alone: " +
            'use a Pool, or another Client',
    )
  }

  /** Only a call that uses the connection may end it: the others wait for their turn. */
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
