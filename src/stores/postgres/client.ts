/**
 * The parts of the drivers that are used here. Described, not imported: the package depends on no
 * driver, and whatever behaves like one of them will do.
 */

/** A row as an array: names of columns may be changed by a driver's own settings. */
export type Row = readonly unknown[]

/** Every value is sent as text that PostgreSQL parses, so that no driver has to know its type. */
export type Value = string | number | null

/** A connection with an open transaction. */
export interface Session {
  query(sql: string, values: readonly Value[]): Promise<readonly Row[]>
  /** Several statements without values. */
  script(sql: string): Promise<void>
  /** What the caller's work gets: the driver's own object for this connection. */
  readonly tx: object
  /** What the last statement of the opening gave. */
  readonly opened: readonly Row[]
  /**
   * The process of the database that the connection was opened with. Another one carries the
   * statements where a pooler is in between. `undefined`: the driver does not tell.
   */
  readonly backend: number | undefined
  /** Drops the connection, whatever it is doing. What the transaction wrote is gone. */
  destroy(): void
}

/** What is heard on a channel. */
export interface Listener {
  /** From here on everything is heard. Called again after an interruption. */
  opened(): void
  heard(payload: string): void
  /** Nothing will be heard any more. */
  lost(): void
}

/** Listens on a connection of its own. */
export type Listen = (channel: string, listener: Listener) => Listening

export interface Listening {
  /** Stops listening. The listener gets no call after that. */
  end(): void
  /**
   * Destroys the connection, for it is silent. The listener then hears `lost`, or `opened` again
   * where the driver listens anew by itself.
   */
  drop(): void
}

/** What the store needs of a driver. */
export interface Driver {
  /** Connections that the pool opens at the most. */
  readonly connectionsMax: number
  /** Statements of the caller's may come in between, even into a transaction. */
  readonly isShared?: boolean
  /**
   * On any connection, as a transaction of its own. Where the signal aborts, the connection that
   * carries the statement is destroyed; nothing is cancelled in the database.
   */
  query(sql: string, values: readonly Value[], signal?: AbortSignal): Promise<readonly Row[]>
  /**
   * Runs `body` in a READ COMMITTED transaction on a connection of its own. Commits if it
   * resolves; rolls back and rethrows if it rejects. Failures to begin and to commit are
   * `StoreFailedError`s. `opening`: statements without values that come right behind BEGIN. Where
   * the signal aborts, the connection is destroyed.
   */
  transact<Result>(
    body: (session: Session) => Promise<Result>,
    opening?: string,
    signal?: AbortSignal,
  ): Promise<Result>
  readonly listen?: Listen
}

/** A query as `pg` takes it. */
export interface PgQuery {
  text: string
  values?: Value[]
  name?: string
  rowMode: 'array'
  types: PgTypes
}

/** What reads each type of column. */
export interface PgTypes {
  getTypeParser(type: number): (text: string) => unknown
}

/** Where `pg` keeps the socket of a client. A client of `pg-native` has none. */
export interface PgSocketHolder {
  readonly connection?: { readonly stream?: { destroy?(): unknown } }
  readonly processID?: number | null
}

/** The part of a client from `pg`'s pool that is used. */
export interface PgClient extends PgSocketHolder {
  query(query: PgQuery): Promise<{ rows: unknown[][] }>
  query(text: string): Promise<unknown>
  release(destroy?: boolean): void
  /** `T` or `E` where a transaction is open. From `pg` 8.21 on. */
  getTransactionStatus?(): string | null
  on(event: 'error', listener: (error: Error) => void): unknown
  removeListener(event: 'error', listener: (error: Error) => void): unknown
}

/** The part of `pg`'s Pool that is used. */
export interface PgPool {
  connect(): Promise<PgClient>
  readonly options: {
    readonly max?: number | undefined
    readonly connectionTimeoutMillis?: number | undefined
  }
  on?(event: 'connect', listener: (client: PgClient) => void): unknown
  /** The class of its clients. Where it is known, one more of them can be made to listen. */
  readonly Client?: unknown
}

/** The part of a Client that is used to listen. */
export interface PgListeningClient extends PgSocketHolder {
  connect(): Promise<unknown>
  query(text: string): Promise<unknown>
  end(): Promise<unknown>
  unref?(): void
  on(event: 'error' | 'end', listener: () => void): unknown
  on(event: 'notification', listener: (message: { payload?: string }) => void): unknown
}

/** A statement of `postgres.js`. */
export interface PostgresJsQuery extends PromiseLike<unknown> {
  values(): PromiseLike<unknown[][]>
  /** An object of the connection that carries the statement; null until one does. */
  readonly state?: object | null
  /** False while another statement is before it on its connection. */
  readonly active?: boolean
}

/** The part of a `postgres.js` connection or transaction that is used. */
export interface PostgresJsClient {
  unsafe(text: string, values?: Value[], options?: { prepare?: boolean }): PostgresJsQuery
}

/** The part of the options of `postgres.js` that is used, as the driver has resolved them. */
export interface PostgresJsOptions {
  readonly max: number
  readonly host?: readonly string[]
  readonly port?: readonly number[]
  readonly path?: string | false | undefined
  readonly fetch_types?: boolean
  readonly connect_timeout?: number | false | null | undefined
  /** What servers have reported. Empty until the first connection is open. */
  readonly parameters?: object
  /** Makes the sockets. The driver asks for it with every connection that it opens. */
  socket?: unknown
}

/** The part of the `sql` of `postgres.js` that is used. */
export interface PostgresJsPool extends PostgresJsClient {
  begin(options: string, body: (tx: PostgresJsClient) => Promise<unknown>): Promise<unknown>
  listen(
    channel: string,
    heard: (payload: string) => void,
    opened: () => void,
  ): PromiseLike<{ unlisten(): Promise<unknown> }>
  readonly options: PostgresJsOptions
}

/** The part of a single, connected Client of `pg` that is used. */
export interface PgSingleClient extends PgSocketHolder {
  query(query: PgQuery): Promise<{ rows: unknown[][] }>
  query(text: string): Promise<unknown>
  /** `I` where no transaction is open. */
  getTransactionStatus(): string | null
  readonly pipeline?: boolean
  end?(): Promise<unknown>
}

export type PostgresPool = PgPool | PgSingleClient | PostgresJsPool
