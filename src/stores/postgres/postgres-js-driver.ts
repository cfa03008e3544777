import { systemClock } from '../../core/clock.ts'
import { warnOnce } from '../../core/warn.ts'
import type {
  Driver,
  Listen,
  PostgresJsClient,
  PostgresJsPool,
  PostgresJsQuery,
  Row,
  Session,
  Value,
} from './client.ts'
import { isCausedBy, isConnectionLost, storeFailed } from './failures.ts'
import { onAbort, unlessGivenUp } from './giving-up.ts'
import { socketsOf, type Mark, type PostgresJsSockets } from './postgres-js-sockets.ts'

/** The default of the driver is 30 s, in which every connection of the pool may hang. */
const CONNECT_TIMEOUT_S_MAX = 5

export function postgresJsDriver(pool: PostgresJsPool, prepare: boolean): Driver {
  warnOfSlowConnect(pool)
  warnOfFetchedTypes(pool)
  const sockets = socketsOf(pool.options)
  const send = async (
    client: PostgresJsClient,
    text: string,
    values: readonly Value[],
    signal?: AbortSignal,
  ): Promise<readonly Row[]> => {
    if (sockets.isClosing) await sockets.untilClosed()
    signal?.throwIfAborted()
    const mark = sockets.mark()
    const sinceMs = systemClock.monotonicMs()
    const query = client.unsafe(text, [...values], { prepare })
    const giveUp = () => {
      sockets.destroy(query, mark)
      soundings.send(mark, systemClock.monotonicMs() - sinceMs)
    }
    const rows = await unlessGivenUp(signal, Promise.resolve(query.values()), giveUp)
    sockets.learn(query, mark)
    return rows.map(withNulls)
  }
  const soundings = new Soundings(sockets, pool)

  return {
    connectionsMax: pool.options.max,
    query: (text, values, signal) => send(pool, text, values, signal),
    transact: (body, opening, signal) => {
      return new Transaction(pool, sockets, send).run(body, opening, signal)
    },
    listen: listenBeside(pool, sockets),
  }
}

function warnOfSlowConnect({ options }: PostgresJsPool): void {
  const seconds = options.connect_timeout
  if (typeof seconds === 'number' && seconds > 0 && seconds <= CONNECT_TIMEOUT_S_MAX) return
  warnOnce(
    `postgresStore: connect_timeout of "postgres" is ${String(seconds)} s, and a connection that ` +
      'hangs while it is opened keeps its place in the pool for that time: set it to less than ' +
      'storeTimeoutMs, for example to 3 (seconds)',
  )
}

/** The driver asks for the types by itself, and handles no failure of that. */
function warnOfFetchedTypes({ options }: PostgresJsPool): void {
  if (options.fetch_types !== true) return
  warnOnce(
    'postgresStore: fetch_types of "postgres" is true, and a connection that is lost while it is ' +
      'opened then ends the process with an unhandled rejection: set it to false, or give the ' +
      'store a sql of its own',
  )
}

/**
 * Finds idle connections after one was silent, and destroys those that have not been heard of
 * since. A network that loses its state without a reset kills all of them at once, and each would
 * cost one call its whole time limit. The driver does not tell which are idle, so each is given a
 * statement: it gives those to idle connections first. A connection whose socket is not known gets
 * time to answer.
 */
class Soundings {
  readonly #sockets: PostgresJsSockets
  readonly #pool: PostgresJsPool
  #isUnderWay = false

  constructor(sockets: PostgresJsSockets, pool: PostgresJsPool) {
    this.#sockets = sockets
    this.#pool = pool
  }

  /** Not again while some are under way: their own silence says nothing new. */
  send(mark: Mark, limitMs: number): void {
    if (this.#isUnderWay) return
    this.#isUnderWay = true
    const count = Math.min(this.#sockets.unusedSince(mark), this.#pool.options.max)
    const asked = Array.from({ length: count }, () => this.#ask(mark, limitMs))
    void Promise.all(asked).then(() => {
      this.#isUnderWay = false
    })
  }

  /** Never rejects: an error is an answer, too. */
  async #ask(mark: Mark, limitMs: number): Promise<void> {
    const query = this.#pool.unsafe('SELECT 1')
    const answered = Promise.resolve(query.values())
    const written = twoTurns()
    this.#sockets.hold(written.then(() => this.#sockets.destroyDoubtful(query, mark)))
    const limit = new AbortController()
    const cancel = systemClock.after(limitMs, () => limit.abort())
    await unlessGivenUp(limit.signal, answered, () => {
      // Otherwise a statement of the application is before it.
      if (query.active === true) this.#sockets.destroy(query, mark)
    }).catch(() => undefined)
    cancel()
  }
}

/**
 * The driver writes a moment after it has been given a statement, and a connection that is lost
 * before that stays unusable: the driver then never writes to its next socket.
 */
function twoTurns(): Promise<void> {
  return new Promise((resolve) => systemClock.soon(() => systemClock.soon(resolve)))
}

/**
 * The driver keeps one connection for all that is listened to, until it is ended itself. It opens
 * it again by itself, and after a first failure, too: then `opened` is the first that is heard.
 */
function listenBeside(pool: PostgresJsPool, sockets: PostgresJsSockets): Listen {
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
    return {
      end: () => {
        isOver = true
        // Where it cannot be taken back, there is nothing to take back, or nobody to hear it.
        listening.then((request) => request.unlisten()).catch(() => undefined)
      },
      drop: () => sockets.destroyListening(),
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

/**
 * How often an open transaction asks for another answer until it is known which socket it uses. One
 * answer is enough unless a connection that the store has not used yet was busy at that moment.
 */
const LEARNING_TRIES_MAX = 5

/** The driver ends the process where something is written to a connection that is gone. */
class Transaction {
  readonly #pool: PostgresJsPool
  readonly #sockets: PostgresJsSockets
  readonly #send: Send
  #step = 'begin'
  #isLost = false
  /** The last statement of the store's own, which tells the connection. */
  #asked: PostgresJsQuery | undefined
  #mark: Mark

  constructor(pool: PostgresJsPool, sockets: PostgresJsSockets, send: Send) {
    this.#pool = pool
    this.#sockets = sockets
    this.#send = send
    this.#mark = sockets.mark(true)
  }

  async run<Result>(
    body: (session: Session) => Promise<Result>,
    opening: string | undefined,
    signal: AbortSignal | undefined,
  ): Promise<Result> {
    const stop = onAbort(signal, () => this.#destroy())
    try {
      return await this.#run(body, opening, signal)
    } finally {
      stop()
    }
  }

  #run<Result>(
    body: (session: Session) => Promise<Result>,
    opening: string | undefined,
    signal: AbortSignal | undefined,
  ): Promise<Result> {
    return new Promise((resolve, reject) => {
      // While it waits for a connection, nothing of the driver fails when it is given up.
      onAbort(signal, () => {
        if (this.#asked === undefined) reject(storeFailed(BEGIN, signal?.reason))
      })
      let end: { readonly result: Result } | { readonly error: Error } | undefined
      const within = async (tx: PostgresJsClient) => {
        try {
          signal?.throwIfAborted()
          const session = await this.#open(tx, opening)
          this.#step = 'continue'
          end = { result: await body(session) }
          this.#step = 'commit'
          this.#check()
          this.#mark = this.#sockets.mark()
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

  /** The driver says BEGIN by itself. */
  async #open(tx: PostgresJsClient, opening: string | undefined): Promise<Session> {
    const answer = await this.#ask(tx, opening ?? 'SELECT 1')
    const isOneOfMany = opening !== undefined
    for (let tries = 1; tries <= LEARNING_TRIES_MAX; tries++) {
      if (!this.#sockets.isUnknown(this.#asked?.state ?? undefined)) break
      await this.#ask(tx, 'SELECT 1')
    }
    return {
      opened: isOneOfMany ? ((answer as unknown[][][]).at(-1) ?? []) : answer,
      tx: this.#checked(tx),
      backend: (this.#asked?.state as { readonly pid?: number } | undefined)?.pid,
      query: async (text, values) => {
        this.#check()
        this.#mark = this.#sockets.mark()
        return this.#onIt(this.#send(tx, text, values))
      },
      script: async (sql) => {
        await this.#untilClosed()
        this.#check()
        this.#mark = this.#sockets.mark()
        await this.#onIt(tx.unsafe(sql))
      },
      destroy: () => this.#destroy(),
    }
  }

  /** A statement without values, by which the connection of the transaction becomes known. */
  async #ask(tx: PostgresJsClient, sql: string): Promise<unknown[][]> {
    this.#mark = this.#sockets.mark()
    const query = tx.unsafe(sql)
    this.#asked = query
    const answer = await this.#onIt(query.values())
    this.#sockets.learn(query, this.#mark)
    return answer
  }

  /** Before the first statement, BEGIN has no connection yet, or fails together with its own. */
  #destroy(): void {
    if (this.#asked !== undefined) this.#isLost = true
    const owner = this.#asked?.state ?? undefined
    if (owner === undefined) this.#sockets.destroySilent(this.#mark)
    else this.#sockets.destroyOwn(owner, this.#mark)
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
