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
import { TYPES } from './pg-parsers.ts'
import { preparedName } from './prepared-name.ts'

const BEGIN = 'BEGIN ISOLATION LEVEL READ COMMITTED'

/** What `pg` takes when nobody says otherwise. */
const CONNECTIONS_MAX = 10

export function pgDriver(pool: PgPool, prepare: boolean): Driver {
  const listen = listenBeside(pool)
  return {
    ...(listen === undefined ? {} : { listen }),
    connectionsMax: pool.options.max ?? CONNECTIONS_MAX,
    async query(text, values) {
      const lent = await lendIdle(pool)
      let isDone = false
      try {
        const { rows } = await lent.client.query(toPgQuery(text, values, prepare))
        // Somebody has kept the connection after giving it back, and uses it still.
        if (isInTransaction(lent.client)) throw new Error(NOT_ALONE)
        isDone = true
        return rows
      } finally {
        lent.giveBack(!isDone)
      }
    },
    async transact(body, opening) {
      const lent = await lendIdle(pool).catch((error: unknown) => {
        throw storeFailed('begin a transaction', error)
      })
      const session: Omit<Session, 'opened'> = {
        query: async (text, values) =>
          (await lent.client.query(toPgQuery(text, values, prepare))).rows,
        script: async (sql) => void (await lent.client.query(sql)),
        tx: lent.client,
        destroy: () => lent.giveBack(true),
      }
      try {
        return await within(lent, (opened) => body({ ...session, opened }), opening)
      } finally {
        lent.giveBack(false)
      }
    },
  }
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
    return end
  }
}

export function toPgQuery(text: string, values: readonly Value[], prepare: boolean): PgQuery {
  const name = prepare ? { name: preparedName(text) } : {}
  return { text, values: [...values], rowMode: 'array', types: TYPES, ...name }
}

interface LentClient {
  readonly client: PgClient
  readonly isGone: () => boolean
  /** What the connection was lost by, and so all that was under way on it. */
  readonly lostBy: () => Error | undefined
  /** Only the first call counts. */
  readonly giveBack: (destroy: boolean) => void
}

/**
 * A connection on which no transaction is open. Somebody may have given one back with theirs still
 * open: what is written on it would be kept, or not, by whoever uses it next, and what is read may
 * never be committed. Such a connection is closed, and its transaction is gone.
 */
async function lendIdle(pool: PgPool): Promise<LentClient> {
  const triesMax = (pool.options.max ?? CONNECTIONS_MAX) + 1
  for (let tries = 1; tries <= triesMax; tries++) {
    const lent = await lend(pool)
    if (!isInTransaction(lent.client)) return lent
    lent.giveBack(true)
  }
  throw new Error('every connection of the pool was given back with a transaction open')
}

const NOT_ALONE = 'a transaction was begun on a connection that was given back to the pool'

/** Older versions of `pg` do not tell, and some clients only know once they were used. */
function isInTransaction(client: PgClient): boolean {
  const status = client.getTransactionStatus?.()
  return status === 'T' || status === 'E'
}

async function lend(pool: PgPool): Promise<LentClient> {
  const client = await pool.connect()
  let lostBy: Error | undefined
  let isGone = false
  // Without a listener, a connection that is cut while nobody queries would end the process.
  const onError = (error: Error) => {
    lostBy ??= error
  }
  client.on('error', onError)
  const giveBack = (destroy: boolean) => {
    if (isGone) return
    isGone = true
    // A destroyed client may still complain on its way out.
    const isLost = lostBy !== undefined
    if (!destroy && !isLost) client.removeListener('error', onError)
    client.release(destroy || isLost)
  }
  return { client, isGone: () => isGone, lostBy: () => lostBy, giveBack }
}

/** Runs `body` between BEGIN and COMMIT. It gets what the last statement of the opening gave. */
export async function within<Result>(
  lent: Omit<LentClient, 'client'> & { readonly client: Pick<PgClient, 'query'> },
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
