import { warnOnce } from '../../../core/warn.ts'
import type { PgClient, PgListeningClient, PgPool, PgQuery, PgTypes } from '../client.ts'
import { isCausedBy, storeFailed } from '../failures.ts'
import type { Driver, Listen, Row, Session, Value } from './driver.ts'
import { onAbort, unlessGivenUp } from './giving-up.ts'
import {
  connectionsOf,
  CONNECTIONS_MAX,
  destroySocket,
  isInTransaction,
  type LentClient,
} from './pg-connections.ts'
import { preparedName } from '../sql.ts'

const BEGIN = 'BEGIN ISOLATION LEVEL READ COMMITTED'

export function pgDriver(pool: PgPool, prepare: boolean): Driver {
  warnOfUnlimitedConnect(pool)
  const connections = connectionsOf(pool)
  const listen = listenBeside(pool)
  return {
    ...(listen === undefined ? {} : { listen }),
    connectionsMax: pool.options.max ?? CONNECTIONS_MAX,
    query(text, values, signal) {
      let lent: LentClient | undefined
      const run = async () => {
        lent = await connections.lendIdle(signal)
        let isDone = false
        try {
          const { rows } = await lent.client.query(toPgQuery(text, values, prepare))
          // Other code still uses the connection after it was released to the pool.
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
      const lending = unlessGivenUp(signal, connections.lendIdle(signal), () => undefined)
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
 * The store cannot abort a connection that the pool is opening. One that hangs keeps its place in
 * the pool until `connectionTimeoutMillis` has passed.
 */
function warnOfUnlimitedConnect({ options }: PgPool): void {
  if (typeof options.connectionTimeoutMillis === 'number' && options.connectionTimeoutMillis > 0) {
    return
  }
  warnOnce(
    'postgresStore: the Pool of "pg" has no connectionTimeoutMillis, so a connection that hangs ' +
      'while it is opened keeps its place in the pool for ever: set it to less than ' +
      'storeTimeoutMs, for example to 3000',
  )
}

/** Opens a connection outside of the pool, because one that listens cannot serve calls. */
function listenBeside(pool: PgPool): Listen | undefined {
  if (typeof pool.Client !== 'function') return undefined
  const Client = pool.Client as new (options: unknown) => PgListeningClient
  return (channel, listener) => {
    const client = new Client(pool.options)
    let isOver = false
    const end = () => {
      if (isOver) return
      isOver = true
      // Ending a lost connection fails, and is not necessary.
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
      // The connection must not keep the process alive.
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

/** The part of a lent connection that a transaction uses. */
interface TransactionConnection {
  readonly isGone: () => boolean
  /** The error that ended the connection, and with it the statement that was running. */
  readonly lostBy: () => Error | undefined
  /** Only the first call has an effect. */
  readonly giveBack: (destroy: boolean) => void
}

const NOT_ALONE =
  'other code began a transaction on a connection that it had released to the pool: it must not ' +
  'use a client after release()'

/** Runs `body` between BEGIN and COMMIT with the rows of the opening's last statement. */
export async function within<Result>(
  lent: TransactionConnection & { readonly client: Pick<PgClient, 'query'> },
  body: (opened: readonly Row[]) => Promise<Result>,
  opening?: string,
): Promise<Result> {
  const { client } = lent
  const run = async (sql: string, operation: string) => {
    try {
      await client.query(sql)
    } catch (error) {
      // The state of the connection is unknown.
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
    // If ROLLBACK fails, the connection is destroyed, which rolls back as well.
    if (!lent.isGone()) await run('ROLLBACK', 'roll back').catch(() => undefined)
    // As a store failure, or it would look like an external call whose answer was lost.
    const isLost = isCausedBy(error, (cause) => cause === lent.lostBy())
    throw isLost ? storeFailed('continue a transaction', error) : error
  }
  await run('COMMIT', 'commit a transaction')
  return result
}

/** Sends several statements in one message, and returns the rows of the last one. */
async function open(
  { client, giveBack }: Parameters<typeof within>[0],
  sql: string,
): Promise<readonly Row[]> {
  try {
    const answers: unknown = await client.query({ text: sql, rowMode: 'array', types: TYPES })
    return (answers as readonly { rows: readonly Row[] }[]).at(-1)?.rows ?? []
  } catch (error) {
    // BEGIN may have succeeded, and a shared connection is not destroyed.
    await client.query('ROLLBACK').catch(() => undefined)
    giveBack(true)
    throw storeFailed('begin a transaction', error)
  }
}

type Parser = (text: string) => unknown

/** Parsers by type number. Values of all other types stay texts. */
const PARSERS: ReadonlyMap<number, Parser> = new Map<number, Parser>([
  [16, (text) => text === 't'],
  [17, bytesFrom],
  [23, Number],
  [701, Number],
])

/**
 * Parsers for the answers to the store's statements. The application may change the parsers of `pg`
 * for all connections of the process: numbers to texts or BigInts, bytes to texts.
 */
const TYPES: PgTypes = {
  getTypeParser: (type) => PARSERS.get(type) ?? String,
}

/** Reads both formats of the server setting `bytea_output`. */
function bytesFrom(text: string): Buffer {
  if (text.startsWith('\\x')) return Buffer.from(text.slice(2), 'hex')
  const unescaped = text.replace(/\\(\\|[0-7]{3})/g, (_, code: string) =>
    code === '\\' ? code : String.fromCharCode(Number.parseInt(code, 8)),
  )
  return Buffer.from(unescaped, 'latin1')
}
