import { systemClock } from '../../core/clock.ts'
import type {
  Driver,
  Listen,
  PostgresJsClient,
  PostgresJsPool,
  Row,
  Session,
  Value,
} from './client.ts'
import { isCausedBy, isConnectionLost, storeFailed } from './failures.ts'
import { BACKEND_ID, TERMINATE } from './sql.ts'

export function postgresJsDriver(pool: PostgresJsPool, prepare: boolean): Driver {
  const send = async (
    client: PostgresJsClient,
    text: string,
    values: readonly Value[],
  ): Promise<readonly Row[]> =>
    (await client.unsafe(text, [...values], { prepare }).values()).map(withNulls)

  return {
    connectionsMax: pool.options.max,
    query: (text, values) => send(pool, text, values),
    transact: (body, opening) => new Transaction(pool, send).run(body, opening),
    listen: listenBeside(pool),
  }
}

/**
 * The driver keeps one connection for all that is listened to, until it is ended itself. It opens
 * it again by itself, and after a first failure, too: then `opened` is the first that is heard.
 */
function listenBeside(pool: PostgresJsPool): Listen {
  return (channel, listener) => {
    let isOver = false
    const heard = (payload: string) => {
      if (!isOver) listener.heard(payload)
    }
    const opened = () => {
      if (!isOver) listener.opened()
    }
    const listening = Promise.resolve(pool.listen(channel, heard, opened))
    listening.catch(() => undefined)
    return () => {
      isOver = true
      // Where it cannot be taken back, there is nothing to take back, or nobody to hear it.
      listening.then((request) => request.unlisten()).catch(() => undefined)
    }
  }
}

/** A `transform` that the application has chosen may have made them `undefined`. */
function withNulls(row: Row): Row {
  return row.includes(undefined) ? row.map((value) => value ?? null) : row
}

const BEGIN = 'begin a transaction'

type Callable = (...values: unknown[]) => unknown

type Send = (
  client: PostgresJsClient,
  text: string,
  values: readonly Value[],
) => Promise<readonly Row[]>

/** The driver ends the process where something is written to a connection that is gone. */
class Transaction {
  readonly #pool: PostgresJsPool
  readonly #send: Send
  #step = 'begin'
  #isLost = false

  constructor(pool: PostgresJsPool, send: Send) {
    this.#pool = pool
    this.#send = send
  }

  run<Result>(
    body: (session: Session) => Promise<Result>,
    opening: string | undefined,
  ): Promise<Result> {
    return new Promise((resolve, reject) => {
      let end: { readonly result: Result } | { readonly error: Error } | undefined
      const within = async (tx: PostgresJsClient) => {
        try {
          const session = await this.#open(tx, opening)
          this.#step = 'continue'
          end = { result: await body(session) }
          this.#step = 'commit'
          this.#check()
        } catch (error) {
          end = { error: this.#step === 'begin' ? storeFailed(BEGIN, error) : (error as Error) }
          await this.#untilClosed()
          if (!this.#isLost) throw error
          // Thrown, it would make the driver roll back on a connection that is gone.
          reject(ofLostConnection(end.error))
          await new Promise<never>(() => undefined)
        }
      }
      this.#pool.begin('isolation level read committed', within).then(
        () => resolve((end as { readonly result: Result }).result),
        (error: unknown) => {
          this.#isLost = true
          // Where the body failed, its own error is the one that counts.
          if (end !== undefined && 'error' in end) reject(ofLostConnection(end.error))
          else reject(storeFailed(`${this.#step} a transaction`, error))
        },
      )
    })
  }

  /** The driver says BEGIN by itself; the rest of the opening goes along with its own question. */
  async #open(tx: PostgresJsClient, opening: string | undefined): Promise<Session> {
    const sql = opening === undefined ? BACKEND_ID : `${BACKEND_ID}; ${opening}`
    const answer = await this.#onIt(tx.unsafe(sql).values())
    const answers = opening === undefined ? [answer] : (answer as unknown[][][])
    const id = answers[0]?.[0]?.[0] as number
    return {
      opened: answers.at(-1) ?? [],
      tx: this.#checked(tx),
      query: async (text, values) => {
        this.#check()
        return this.#onIt(this.#send(tx, text, values))
      },
      script: async (sql) => {
        await this.#untilClosed()
        this.#check()
        await this.#onIt(tx.unsafe(sql))
      },
      // This driver cannot drop one connection, so the database is asked to. Where that fails,
      // the connection has been cut already, or the whole database is out of reach.
      destroy: () => {
        this.#isLost = true
        this.#send(this.#pool, TERMINATE, [id]).catch(() => undefined)
      },
    }
  }

  #check(): void {
    if (this.#isLost)
      throw storeFailed('continue a transaction', new Error('the connection is closed'))
  }

  /** For the work, which cannot know. */
  #checked(tx: PostgresJsClient): object {
    return new Proxy(tx, {
      get: (_, name) => {
        this.#check()
        return Reflect.get(tx, name) as unknown
      },
      apply: (callee, self, values: unknown[]) => {
        this.#check()
        return Reflect.apply(callee as unknown as Callable, self, values)
      },
    })
  }

  /** The store's own statements tell of the connection; the work's errors may be about others. */
  async #onIt<Answer>(statement: PromiseLike<Answer>): Promise<Answer> {
    try {
      return await statement
    } catch (error) {
      if (isConnectionLost(error)) this.#isLost = true
      throw error
    }
  }

  /** A connection that was cut is closed a moment after its last query has failed. */
  async #untilClosed(): Promise<void> {
    await new Promise<void>((resolve) => systemClock.soon(resolve))
  }
}

/**
 * Of work whose connection is gone. Where it was a query of this driver that failed with it, that
 * is the store's trouble: it must not look like an outside call whose answer was lost.
 */
function ofLostConnection(error: unknown): Error {
  const isQuery = (cause: Error) =>
    isConnectionLost(cause) && 'query' in cause && 'parameters' in cause
  return isCausedBy(error, isQuery)
    ? storeFailed('continue a transaction', error)
    : (error as Error)
}
