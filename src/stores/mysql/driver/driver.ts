import { InvalidOptionsError } from '../../../core/errors.ts'
import { describe } from '../../../core/options.ts'
/**
 * Lends connections to calls, and reads and writes only committed rows on them.
 *
 * Tests: test/stores/mysql/sessions.server.test.ts, test/stores/mysql/silence.server.test.ts.
 */
import { systemClock } from '../../../core/time/clock.ts'
import {
  toQuery,
  type MysqlConnection,
  type MysqlHeader,
  type MysqlPool,
  type MysqlPoolConnection,
  type MysqlPromisePool,
  type Row,
} from '../client.ts'
import { isAnswer, isTransactionOpen, storeFailed } from '../failures.ts'
import { ASK_OPEN, BEGIN, COMMIT, DO_NOTHING, READ_COMMITTED, ROLLBACK } from '../sql.ts'
import { Connections } from './connections.ts'

/** A connection that one call uses exclusively. */
export interface Session {
  /** For statements that return rows. */
  rows(sql: string): Promise<readonly Row[]>
  /** For other statements, and for those that return rows on MariaDB but not on MySQL. */
  run(sql: string): Promise<readonly Row[] | MysqlHeader>
  /** The driver's object. The caller's work gets it in a guarded form. */
  readonly connection: MysqlConnection
  /** Runs `send`, and also rejects when the connection is destroyed before the answer. */
  untilDestroyed<Answer>(send: () => Promise<Answer>): Promise<Answer>
  /** Closes the connection at any time. The server rolls back an open transaction. */
  destroy(): void
  readonly isDestroyed: () => boolean
}

export class Driver {
  readonly #connections: Connections

  constructor(pool: MysqlPool) {
    this.#connections = new Connections(toPromisePool(pool))
  }

  /** How many connections the pool opens at most. */
  get connectionsMax(): number {
    return this.#connections.countMax
  }

  /**
   * Runs `run` on a connection. A connection in an unknown state is not returned to the pool. When
   * `signal` aborts, the connection is destroyed and every statement on it rejects.
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
      // The signal may have aborted between the answer of the pool and this line.
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
  readonly #destroyed: Promise<never>
  #end: (reason: Error) => void = () => {}
  #isOver = false
  /** When the last statement was sent. */
  #sentMs = systemClock.monotonicMs()

  constructor(connections: Connections, connection: MysqlPoolConnection) {
    this.#connections = connections
    this.connection = connection
    this.#destroyed = new Promise((_, reject) => (this.#end = reject))
    // `untilDestroyed` rejects running statements. Without any, this rejection is not an error.
    this.#destroyed.catch(() => undefined)
  }

  async rows(sql: string): Promise<readonly Row[]> {
    return (await this.run(sql)) as readonly Row[]
  }

  async run(sql: string): Promise<readonly Row[] | MysqlHeader> {
    const [answer] = await this.untilDestroyed(() => this.connection.query(toQuery(sql)))
    return answer as readonly Row[] | MysqlHeader
  }

  untilDestroyed<Answer>(send: () => Promise<Answer>): Promise<Answer> {
    if (this.#isOver) return Promise.reject(new Error('the connection is no longer lent'))
    // `mysql2` never settles a statement after its connection was destroyed.
    this.#sentMs = systemClock.monotonicMs()
    return Promise.race([send(), this.#destroyed])
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

  /** After a timeout. Other connections may be dead for the same reason. */
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
      // An earlier user returned the connection with an open transaction. BEGIN would commit it.
      await session.run(ROLLBACK)
      await session.run(READ_COMMITTED)
    }
    await session.run(BEGIN)
  })
}

/** If the rollback fails, the connection is destroyed, which rolls back as well. */
async function rollBack(session: Session): Promise<void> {
  if (session.isDestroyed()) return
  await session.run(ROLLBACK).catch(() => session.destroy())
}

/** After a failure the state of the connection is unknown. */
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
 * Reads committed rows, even if an earlier user has left a transaction open on the session: within
 * it the session would show uncommitted rows of that transaction, and old versions of others. The
 * first column of the statement must be `IS_OPEN`; it is removed from the rows.
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
  // MySQL: no column can tell, but the flags of a statement without rows do.
  if (open === null) return isLeftOpen(await session.run(DO_NOTHING))
  return Number(open) !== 0
}

/**
 * Runs one writing statement that commits alone. In a session with autocommit off, or with a
 * transaction that an earlier user has left open, the statement would stay uncommitted without an
 * error, and a claim that was reported as taken would be lost with the connection.
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

/** Reads it from the first column of the rows, or from the flags of the session. */
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
    'mysqlStore: pool must be a pool of "mysql2/promise" or of "mysql2", not a single ' +
      'connection, on which an open transaction would block every other key. ' +
      `Got ${typeof pool === 'function' ? 'a function' : describe(pool)}`,
  )
}

function isCallbackFlavour<Promised>(client: object): client is { promise(): Promised } {
  return 'promise' in client && typeof client.promise === 'function'
}
