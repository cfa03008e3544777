/** The interface between the store and a driver: `pg.ts`, `pg-client.ts`, `postgres-js.ts`. */

/** A row as an array: a driver's settings may change the names of columns. */
export type Row = readonly unknown[]

/** Every value is sent as text that PostgreSQL parses, so that no driver has to know its type. */
export type Value = string | number | null

/** A connection with an open transaction. */
export interface Session {
  query(sql: string, values: readonly Value[]): Promise<readonly Row[]>
  /** Sends several statements without values. */
  script(sql: string): Promise<void>
  /** The driver's object for this connection, which the caller's work gets. */
  readonly tx: object
  /** The rows of the last statement of the opening. */
  readonly opened: readonly Row[]
  /**
   * Process id of the server that the connection was opened with. Behind a pooler, another process
   * may run the statements. `undefined` if the driver does not report it.
   */
  readonly backend: number | undefined
  /** Closes the connection even during a statement. The transaction is rolled back. */
  destroy(): void
}

/** Receives the notifications of a channel. */
export interface Listener {
  /** Every notification from here on is received. Called again after an interruption. */
  opened(): void
  heard(payload: string): void
  /** No notification is received any more. */
  lost(): void
}

/** Listens to a channel on a separate connection. */
export type Listen = (channel: string, listener: Listener) => Listening

export interface Listening {
  /** Stops listening. The listener gets no call after that. */
  end(): void
  /**
   * Destroys the connection because it is silent. The listener then gets `lost`, or `opened` again
   * if the driver reconnects by itself.
   */
  drop(): void
}

/** The calls that the store makes to a driver. */
export interface Driver {
  /** The most connections that the pool opens. */
  readonly connectionsMax: number
  /** The caller may send statements on the same connection, even during a transaction. */
  readonly isShared?: boolean
  /**
   * Runs a statement on any connection, as a separate transaction. If the signal aborts, the
   * connection that carries the statement is destroyed; the database cancels nothing.
   */
  query(sql: string, values: readonly Value[], signal?: AbortSignal): Promise<readonly Row[]>
  /**
   * Runs `body` in a READ COMMITTED transaction on a connection that nothing else uses. Commits if
   * `body` resolves; rolls back and rethrows if it rejects. Failures to begin and to commit are
   * `StoreFailedError`s. `opening`: statements without values that are sent right after BEGIN. If
   * the signal aborts, the connection is destroyed.
   */
  transact<Result>(
    body: (session: Session) => Promise<Result>,
    opening?: string,
    signal?: AbortSignal,
  ): Promise<Result>
  readonly listen?: Listen
}
