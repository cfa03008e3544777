import { InvalidOptionsError } from '../../core/errors.ts'
import { Slots } from '../../core/slots.ts'
import type { Driver, PgSingleClient, Row, Session, Value } from './client.ts'
import { toPgQuery, within } from './pg-driver.ts'

/** What a connection says that has no transaction open. */
const IDLE = 'I'

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
  const turns = new Slots(1)
  const send = async (text: string, values: readonly Value[]): Promise<readonly Row[]> =>
    (await client.query(toPgQuery(text, values, prepare))).rows
  const checkIdle = () => {
    const status = client.getTransactionStatus()
    if (status === IDLE) return
    throw new Error(
      status === null
        ? 'the client is not connected, or is one that does not tell whether a transaction is open'
        : "the client has a transaction of yours open, and the store's writes must commit alone: " +
            'use a Pool, or another Client',
    )
  }
  return {
    connectionsMax: 1,
    isShared: true,
    query: (text, values) =>
      turns.use(async () => {
        checkIdle()
        const rows = await send(text, values)
        checkIdle()
        return rows
      }),
    transact: (body, opening) =>
      turns.use(async () => {
        checkIdle()
        const session: Omit<Session, 'opened'> = {
          query: send,
          script: async (sql) => void (await client.query(sql)),
          tx: client,
          destroy: () => undefined,
        }
        const lent = {
          client,
          isGone: () => false,
          lostBy: () => undefined,
          giveBack: () => undefined,
        }
        return within(lent, (opened) => body({ ...session, opened }), opening)
      }),
  }
}
