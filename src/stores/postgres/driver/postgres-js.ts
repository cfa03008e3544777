import { systemClock } from '../../../core/time/clock.ts'
import { warnOnce } from '../../../core/warn.ts'
import type { PostgresJsClient, PostgresJsPool, PostgresJsQuery } from '../client.ts'
import { isCausedBy, isConnectionLost, storeFailed } from '../failures.ts'
import type { Driver, Listen, Row, Session, Value } from './driver.ts'
import { onAbort, unlessGivenUp } from './giving-up.ts'
import { socketsOf, type Mark, type PostgresJsSockets } from './postgres-js-sockets.ts'

/** The driver's default is 30 s, and every connection of the pool may hang that long. */
const CONNECT_TIMEOUT_S_MAX = 5

export function postgresJsDriver(pool: PostgresJsPool, prepare: boolean): Driver {
  warnOfSlowConnect(pool)
  warnOfFetchTypes(pool)
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
      probes.send(mark, systemClock.monotonicMs() - sinceMs)
    }
    const rows = await unlessGivenUp(signal, Promise.resolve(query.values()), giveUp)
    sockets.learn(query, mark)
    return rows.map(withNulls)
  }
  const probes = new Probes(sockets, pool)

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

/** The driver fetches the types by itself, and does not handle a failure of that query. */
function warnOfFetchTypes({ options }: PostgresJsPool): void {
  if (options.fetch_types !== true) return
  warnOnce(
    'postgresStore: fetch_types of "postgres" is true, and a connection that is lost while it is ' +
      'opened then ends the process with an unhandled rejection: set it to false, or create a ' +
      'separate sql for the store',
  )
}

/**
 * Probes idle connections after a call timed out, and destroys those that have not answered since.
 * A network that loses its state without a reset breaks all of them at once, and each would cost
 * one call its whole time limit. The driver does not report which connections are idle, but it
 * sends statements on idle connections first, so the store sends one statement for each. A
 * connection whose socket is not known gets time to answer.
 */
class Probes {
  readonly #sockets: PostgresJsSockets
  readonly #pool: PostgresJsPool
  #isRunning = false

  constructor(sockets: PostgresJsSockets, pool: PostgresJsPool) {
    this.#sockets = sockets
    this.#pool = pool
  }

  /** Does nothing while probes are running: their timeouts prove nothing new. */
  send(mark: Mark, limitMs: number): void {
    if (this.#isRunning) return
    this.#isRunning = true
    const count = Math.min(this.#sockets.unusedSince(mark), this.#pool.options.max)
    const probes = Array.from({ length: count }, () => this.#probe(mark, limitMs))
    void Promise.all(probes).then(() => {
      this.#isRunning = false
    })
  }

  /** Never rejects, because an error is an answer as well. */
  async #probe(mark: Mark, limitMs: number): Promise<void> {
    const query = this.#pool.unsafe('SELECT 1')
    const answered = Promise.resolve(query.values())
    const written = twoTurns()
    this.#sockets.hold(written.then(() => this.#sockets.destroySuspect(query, mark)))
    const limit = new AbortController()
    const cancel = systemClock.after(limitMs, () => limit.abort())
    await unlessGivenUp(limit.signal, answered, () => {
      // Otherwise the connection still runs an earlier statement of the application.
      if (query.active === true) this.#sockets.destroy(query, mark)
    }).catch(() => undefined)
    cancel()
  }
}

/**
 * Waits two turns of the event loop. The driver writes a statement in a later turn, and a
 * connection that is lost before that stays unusable: the driver never writes to its next socket.
 */
function twoTurns(): Promise<void> {
  return new Promise((resolve) => systemClock.soon(() => systemClock.soon(resolve)))
}

/**
 * The driver listens to all channels on one connection until the pool is closed. It reopens that
 * connection by itself, also if the first attempt fails: then `opened` is the first call.
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
        // A failure is ignored: the connection was never opened or is lost.
        listening.then((request) => request.unlisten()).catch(() => undefined)
      },
      drop: () => sockets.destroyListening(),
    }
  }
}

/** Restores nulls: a `transform` of the application may have made them `undefined`. */
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
 * How many statements an open transaction sends to learn which socket it uses. One answer is enough
 * unless a connection that the store has not used yet was busy at that moment.
 */
const LEARNING_TRIES_MAX = 5

/** Sends nothing on a lost connection, because that would make the driver end the process. */
class Transaction {
  readonly #pool: PostgresJsPool
  readonly #sockets: PostgresJsSockets
  readonly #send: Send
  #step = 'begin'
  #isLost = false
  /** The last statement of the store, whose `state` identifies the connection. */
  #lastQuery: PostgresJsQuery | undefined
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
      // While the transaction waits for a connection, the driver has no call that could fail.
      onAbort(signal, () => {
        if (this.#lastQuery === undefined) reject(storeFailed(BEGIN, signal?.reason))
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
          // If the error were thrown, the driver would send ROLLBACK on a lost connection.
          reject(toLossError(end.error))
          await new Promise<never>(() => undefined)
        }
      }
      this.#pool.begin('isolation level read committed', within).then(
        () => resolve((end as { readonly result: Result }).result),
        (error: unknown) => {
          this.#isLost = true
          // If the body failed, the caller gets the error of the body.
          if (end !== undefined && 'error' in end) reject(toLossError(end.error))
          else reject(storeFailed(`${this.#step} a transaction`, error))
        },
      )
    })
  }

  /** The driver has sent BEGIN by itself. */
  async #open(tx: PostgresJsClient, opening: string | undefined): Promise<Session> {
    const answer = await this.#identify(tx, opening ?? 'SELECT 1')
    const hasOpening = opening !== undefined
    for (let tries = 1; tries <= LEARNING_TRIES_MAX; tries++) {
      if (!this.#sockets.isUnknown(this.#lastQuery?.state ?? undefined)) break
      await this.#identify(tx, 'SELECT 1')
    }
    return {
      opened: hasOpening ? ((answer as unknown[][][]).at(-1) ?? []) : answer,
      tx: this.#checked(tx),
      backend: (this.#lastQuery?.state as { readonly pid?: number } | undefined)?.pid,
      query: async (text, values) => {
        this.#check()
        this.#mark = this.#sockets.mark()
        return this.#noteLoss(this.#send(tx, text, values))
      },
      script: async (sql) => {
        await this.#untilClosed()
        this.#check()
        this.#mark = this.#sockets.mark()
        await this.#noteLoss(tx.unsafe(sql))
      },
      destroy: () => this.#destroy(),
    }
  }

  /** Sends a statement without values, which identifies the connection of the transaction. */
  async #identify(tx: PostgresJsClient, sql: string): Promise<unknown[][]> {
    this.#mark = this.#sockets.mark()
    const query = tx.unsafe(sql)
    this.#lastQuery = query
    const answer = await this.#noteLoss(query.values())
    this.#sockets.learn(query, this.#mark)
    return answer
  }

  /** Before the first statement, BEGIN has no connection yet, or fails with its connection. */
  #destroy(): void {
    if (this.#lastQuery !== undefined) this.#isLost = true
    const owner = this.#lastQuery?.state ?? undefined
    if (owner === undefined) this.#sockets.destroySilent(this.#mark)
    else this.#sockets.destroyOwn(owner, this.#mark)
  }

  #check(): void {
    if (this.#isLost)
      throw storeFailed('continue a transaction', new Error('the connection is closed'))
  }

  /** Wraps the client for the work, which does not know that the connection is lost. */
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

  /** Only for the store's statements: errors of the work may concern other connections. */
  async #noteLoss<Answer>(statement: PromiseLike<Answer>): Promise<Answer> {
    try {
      return await statement
    } catch (error) {
      if (isConnectionLost(error)) this.#isLost = true
      throw error
    }
  }

  /** A lost connection is closed one turn of the event loop after its last query has failed. */
  async #untilClosed(): Promise<void> {
    await new Promise<void>((resolve) => systemClock.soon(resolve))
  }
}

/**
 * The error of work whose connection was lost. If a query of this driver failed with it, the error
 * is a store failure: it must not look like an external call whose answer was lost.
 */
function toLossError(error: unknown): Error {
  const isQuery = (cause: Error) =>
    isConnectionLost(cause) && 'query' in cause && 'parameters' in cause
  return isCausedBy(error, isQuery)
    ? storeFailed('continue a transaction', error)
    : (error as Error)
}
