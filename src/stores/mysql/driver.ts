import { systemClock } from '../../core/clock.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe } from '../../core/options.ts'
import {
  toQuery,
  type MysqlConnection,
  type MysqlHeader,
  type MysqlPool,
  type MysqlPoolConnection,
  type MysqlPromisePool,
  type Row,
} from './client.ts'
import { Connections } from './connections.ts'
import { isAnswer, isTransactionOpen, storeFailed } from './failures.ts'
import { ASK_OPEN, BEGIN, COMMIT, DO_NOTHING, READ_COMMITTED, ROLLBACK } from './sql.ts'

/** A connection that nobody else uses for now. */
export interface Session {
  /** For statements that give rows. */
  rows(sql: string): Promise<readonly Row[]>
  /** For all others, and for those that give rows on one of the two databases only. */
  run(sql: string): Promise<readonly Row[] | MysqlHeader>
  /** What the caller's work gets to see, guarded: the driver's own object. */
  readonly connection: MysqlConnection
  /** Asks on the connection; rejects also when the connection is destroyed meanwhile. */
  untilGone<Answer>(ask: () => Promise<Answer>): Promise<Answer>
  /** Drops the connection, whatever it is doing. What its transaction wrote is gone. */
  destroy(): void
  readonly isDestroyed: () => boolean
}

export class Driver {
  readonly #connections: Connections

  constructor(pool: MysqlPool) {
    this.#connections = new Connections(toPromisePool(pool))
  }

  /** Connections that the pool opens at the most. */
  get connectionsMax(): number {
    return this.#connections.countMax
  }

  /**
   * A connection whose state is in doubt afterwards is not given back to the pool. When `signal`
   * aborts, the connection is destroyed and every statement on it rejects.
   */
  async lend<Result>(
    run: (session: Session) => Promise<Result>,
    signal?: AbortSignal,
  ): Promise<Result> {
    const connection = await this.#connections.take(signal)
    const session = new LentSession(this.#connections, connection)
    const giveUp = () => session.giveUp(signal?.reason as Error)
    signal?.addEventListener('abort', giveUp)
    try {
      // Aborted between the answer of the pool and this line.
      if (signal?.aborted === true) giveUp()
      const result = await run(session)
      session.giveBack()
      return result
    } catch (error) {
      if (isAnswer(error)) session.giveBack()
      else session.destroy()
      throw error
    } finally {
      signal?.removeEventListener('abort', giveUp)
    }
  }
}

class LentSession implements Session {
  readonly connection: MysqlPoolConnection
  readonly #connections: Connections
  readonly #gone: Promise<never>
  #end: (reason: Error) => void = () => {}
  #isOver = false
  /** When the last statement was sent. */
  #sentMs = systemClock.monotonicMs()

  constructor(connections: Connections, connection: MysqlPoolConnection) {
    this.#connections = connections
    this.connection = connection
    this.#gone = new Promise((_, reject) => (this.#end = reject))
    // Statements under way are told by `untilGone`; without any there is nobody to tell.
    this.#gone.catch(() => undefined)
  }

  async rows(sql: string): Promise<readonly Row[]> {
    return (await this.run(sql)) as readonly Row[]
  }

  async run(sql: string): Promise<readonly Row[] | MysqlHeader> {
    const [answer] = await this.untilGone(() => this.connection.query(toQuery(sql)))
    return answer as readonly Row[] | MysqlHeader
  }

  untilGone<Answer>(ask: () => Promise<Answer>): Promise<Answer> {
    if (this.#isOver) return Promise.reject(new Error('the connection is no longer lent'))
    // `mysql2` never answers a statement whose connection was destroyed.
    this.#sentMs = systemClock.monotonicMs()
    return Promise.race([ask(), this.#gone])
  }

  giveBack(): void {
    if (this.#isOver) return
    this.#isOver = true
    this.#connections.giveBack(this.connection)
  }

  destroy(reason = new Error('the connection was dropped')): void {
    if (this.#isOver) return
    this.#isOver = true
    this.#end(reason)
    this.#connections.destroy(this.connection)
  }

  /** No answer came in time: other connections may be dead for the same reason. */
  giveUp(reason: Error): void {
    if (this.#isOver) return
    this.#connections.doubt(this.#sentMs)
    this.destroy(reason)
  }

  isDestroyed = (): boolean => this.#isOver
}

/**
 * Runs `body` in a READ COMMITTED transaction. Commits if it resolves; rolls back and rethrows if
 * it rejects. Failures to begin and to commit are `StoreFailedError`s.
 */
export async function transact<Result>(
  session: Session,
  body: () => Promise<Result>,
): Promise<Result> {
  await begin(session)
  let result: Result
  try {
    result = await body()
  } catch (error) {
    await rollBack(session)
    throw error
  }
  await orDestroy(session, 'commit a transaction', () => session.run(COMMIT))
  return result
}

async function begin(session: Session): Promise<void> {
  await orDestroy(session, 'begin a transaction', async () => {
    try {
      await session.run(READ_COMMITTED)
    } catch (error) {
      if (!isTransactionOpen(error)) throw error
      // Left behind by somebody who gave the connection back. To begin would be to commit it.
      await session.run(ROLLBACK)
      await session.run(READ_COMMITTED)
    }
    await session.run(BEGIN)
  })
}

/** A rollback that fails has its effect all the same: the connection is dropped. */
async function rollBack(session: Session): Promise<void> {
  if (session.isDestroyed()) return
  await session.run(ROLLBACK).catch(() => session.destroy())
}

/** In what state it is after a failure, nobody knows. */
async function orDestroy(
  session: Session,
  operation: string,
  run: () => Promise<unknown>,
): Promise<void> {
  try {
    await run()
  } catch (error) {
    session.destroy()
    throw storeFailed(operation, error)
  }
}

/**
 * Rows as they are committed by now, whatever the session was left like: in a transaction that
 * nobody will end, it would show what was never committed, and all else as old as that is. The
 * statement says in its first column whether it is so, and that column is taken off.
 */
export async function readCommitted(session: Session, sql: string): Promise<readonly Row[]> {
  let rows = await session.rows(sql)
  if (await isReadOpen(session, rows)) {
    await session.run(ROLLBACK)
    rows = await transact(session, () => session.rows(sql))
  }
  return rows.map(([, ...values]) => values)
}

async function isReadOpen(session: Session, rows: readonly Row[]): Promise<boolean> {
  const [row] = rows.length > 0 ? rows : await session.rows(ASK_OPEN)
  const open = row?.[0]
  // MySQL. Nothing that it reads can say so, but every other answer does.
  if (open === null) return isLeftOpen(await session.run(DO_NOTHING))
  return Number(open) !== 0
}

/**
 * Writes one statement that commits alone. A session with autocommit off, or with a transaction
 * that somebody left open, would keep it uncommitted without a word: what was answered as taken
 * would be gone with the connection.
 */
export async function writeAlone(
  session: Session,
  sql: string,
): Promise<readonly Row[] | MysqlHeader> {
  const answer = await session.run(sql)
  if (!isLeftOpen(answer)) return answer
  await session.run(ROLLBACK)
  return transact(session, () => session.run(sql))
}

const IN_TRANSACTION = 1

/** From the answer itself: its rows say so in front, or the flags of the session. */
function isLeftOpen(answer: readonly Row[] | MysqlHeader): boolean {
  if (isRows(answer)) return answer.some((row) => Number(row[0]) !== 0)
  return ((answer.serverStatus ?? IN_TRANSACTION) & IN_TRANSACTION) !== 0
}

export function isRows(answer: readonly Row[] | MysqlHeader): answer is readonly Row[] {
  return Array.isArray(answer)
}

function toPromisePool(pool: MysqlPool): MysqlPromisePool {
  if (typeof pool === 'object' && pool !== null && 'getConnection' in pool) {
    if (isCallbackFlavour<MysqlPromisePool>(pool)) return pool.promise()
    if ('pool' in pool) return pool
  }
  throw new InvalidOptionsError(
    'mysqlStore: pool must be a pool of "mysql2/promise" or of "mysql2". A single connection ' +
      'will not do: an open transaction on it would hold up every other key. ' +
      `Got ${typeof pool === 'function' ? 'a function' : describe(pool)}`,
  )
}

function isCallbackFlavour<Promised>(client: object): client is { promise(): Promised } {
  return 'promise' in client && typeof client.promise === 'function'
}
