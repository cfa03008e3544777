import { warnOnce } from '../../core/warn.ts'
import type {
  Driver,
  Listen,
  PgClient,
  PgListeningClient,
  PgPool,
  PgQuery,
  Row,
  Session,
  Value,
} from './client.ts'
import { isCausedBy, storeFailed } from './failures.ts'
import { onAbort, unlessGivenUp } from './giving-up.ts'
import {
  clientsOf,
  CONNECTIONS_MAX,
  destroySocket,
  isInTransaction,
  type LentClient,
} from './pg-clients.ts'
import { TYPES } from './pg-parsers.ts'
import { preparedName } from './prepared-name.ts'

const BEGIN = 'BEGIN ISOLATION LEVEL READ COMMITTED'

export function pgDriver(pool: PgPool, prepare: boolean): Driver {
  warnOfEndlessConnect(pool)
  const clients = clientsOf(pool)
  const listen = listenBeside(pool)
  return {
    ...(listen === undefined ? {} : { listen }),
    connectionsMax: pool.options.max ?? CONNECTIONS_MAX,
    query(text, values, signal) {
      let lent: LentClient | undefined
      const run = async () => {
        lent = await clients.lendIdle(signal)
        let isDone = false
        try {
          const { rows } = await lent.client.query(toPgQuery(text, values, prepare))
          // Other code has kept the connection after giving it back, and uses it still.
          if (isInTransaction(lent.client)) throw new Error(NOT_ALONE)
          isDone = true
          return rows
        } finally {
          lent.giveBack(!isDone)
        }
      }
      return unlessGivenUp(signal, run(), () => lent?.giveUp())
    },
    async transact(body, opening, signal) {
      const lending = unlessGivenUp(signal, clients.lendIdle(signal), () => undefined)
      const lent = await lending.catch((error: unknown) => {
        throw storeFailed('begin a transaction', error)
      })
      const session: Omit<Session, 'opened'> = {
        query: async (text, values) =>
          (await lent.client.query(toPgQuery(text, values, prepare))).rows,
        script: async (sql) => void (await lent.client.query(sql)),
        tx: lent.client,
        backend: lent.client.processID ?? undefined,
        destroy: () => lent.giveBack(true),
      }
      const stop = onAbort(signal, lent.giveUp)
      try {
        return await within(lent, (opened) => body({ ...session, opened }), opening)
      } finally {
        stop()
        lent.giveBack(false)
      }
    },
  }
}

/**
 * The pool opens connections out of reach: one that hangs keeps its place in the pool until
 * `connectionTimeoutMillis` is over.
 */
function warnOfEndlessConnect({ options }: PgPool): void {
  if (typeof options.connectionTimeoutMillis === 'number' && options.connectionTimeoutMillis > 0) {
    return
  }
  warnOnce(
    'postgresStore: the Pool of "pg" has no connectionTimeoutMillis, so a connection that hangs ' +
      'while it is opened keeps its place in the pool for ever: set it to less than ' +
      'storeTimeoutMs, for example to 3000',
  )
}

/** A connection beside the pool: one that listens is of no use for anything else. */
function listenBeside(pool: PgPool): Listen | undefined {
  if (typeof pool.Client !== 'function') return undefined
  const Client = pool.Client as new (options: unknown) => PgListeningClient
  return (channel, listener) => {
    const client = new Client(pool.options)
    let isOver = false
    const end = () => {
      if (isOver) return
      isOver = true
      // A connection that is gone cannot be ended, and need not be.
      client.end().catch(() => undefined)
    }
    const lose = () => {
      if (isOver) return
      end()
      destroySocket(client)
      listener.lost()
    }
    client.on('error', lose)
    client.on('end', lose)
    client.on('notification', ({ payload }) => {
      if (!isOver) listener.heard(payload ?? '')
    })
    const open = async () => {
      await client.connect()
      // It must not keep a process alive that is otherwise done.
      client.unref?.()
      await client.query(`LISTEN "${channel}"`)
      if (!isOver) listener.opened()
    }
    open().catch(lose)
    return { end, drop: lose }
  }
}

export function toPgQuery(text: string, values: readonly Value[], prepare: boolean): PgQuery {
  const name = prepare ? { name: preparedName(text) } : {}
  return { text, values: [...values], rowMode: 'array', types: TYPES, ...name }
}

/** What a transaction needs to know of the connection that it runs on. */
interface Lent {
  readonly isGone: () => boolean
  /** What the connection was lost by, and so all that was under way on it. */
  readonly lostBy: () => Error | undefined
  /** Only the first call counts. */
  readonly giveBack: (destroy: boolean) => void
}

const NOT_ALONE = 'a transaction was begun on a connection that was given back to the pool'

/** Runs `body` between BEGIN and COMMIT. It gets what the last statement of the opening gave. */
export async function within<Result>(
  lent: Lent & { readonly client: Pick<PgClient, 'query'> },
  body: (opened: readonly Row[]) => Promise<Result>,
  opening?: string,
): Promise<Result> {
  const { client } = lent
  const run = async (sql: string, operation: string) => {
    try {
      await client.query(sql)
    } catch (error) {
      // In what state it is, nobody knows.
      lent.giveBack(true)
      throw storeFailed(operation, error)
    }
  }
  let opened: readonly Row[] = []
  if (opening === undefined) await run(BEGIN, 'begin a transaction')
  else opened = await open(lent, `${BEGIN}; ${opening}`)
  let result: Result
  try {
    result = await body(opened)
  } catch (error) {
    // A rollback that fails has its effect all the same: the connection is dropped.
    if (!lent.isGone()) await run('ROLLBACK', 'roll back').catch(() => undefined)
    // Said to be the store's, or it would look like an outside call whose answer was lost.
    const isLost = isCausedBy(error, (cause) => cause === lent.lostBy())
    throw isLost ? storeFailed('continue a transaction', error) : error
  }
  await run('COMMIT', 'commit a transaction')
  return result
}

/** Several statements in one message: there is an answer to each, and the last one counts. */
async function open(
  { client, giveBack }: Parameters<typeof within>[0],
  sql: string,
): Promise<readonly Row[]> {
  try {
    const answers: unknown = await client.query({ text: sql, rowMode: 'array', types: TYPES })
    return (answers as readonly { rows: readonly Row[] }[]).at(-1)?.rows ?? []
  } catch (error) {
    // BEGIN may have been carried out, and a connection that is shared cannot be dropped.
    await client.query('ROLLBACK').catch(() => undefined)
    giveBack(true)
    throw storeFailed('begin a transaction', error)
  }
}
