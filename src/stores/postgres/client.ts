import type { Value } from './driver/driver.ts'

/**
 * The parts of the two drivers that the store uses. They are described here and not imported: the
 * package depends on no driver, and any object with these methods works.
 */

/** A query as `pg` takes it. */
export interface PgQuery {
  text: string
  values?: Value[]
  name?: string
  rowMode: 'array'
  types: PgTypes
}

/** Returns the parser of each column type. */
export interface PgTypes {
  getTypeParser(type: number): (text: string) => unknown
}

/** The place where `pg` keeps the socket of a client. A client of `pg-native` has no socket. */
export interface PgSocketHolder {
  readonly connection?: { readonly stream?: { destroy?(): unknown } }
  readonly processID?: number | null
}

/** The part of a client of `pg`'s Pool that is used. */
export interface PgClient extends PgSocketHolder {
  query(query: PgQuery): Promise<{ rows: unknown[][] }>
  query(text: string): Promise<unknown>
  release(destroy?: boolean): void
  /** `T` or `E` while a transaction is open. Exists from `pg` 8.21 on. */
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
  /** The class of its clients. With it, the store can open one more client that listens. */
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
  /** An object of the connection that carries the statement; null until it is sent. */
  readonly state?: object | null
  /** False while the connection still runs an earlier statement. */
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
  /** Settings that servers have reported. Empty until the first connection is open. */
  readonly parameters?: object
  /** Creates sockets. The driver reads this option for each connection that it opens. */
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
  /** `I` while no transaction is open. */
  getTransactionStatus(): string | null
  readonly pipeline?: boolean
  end?(): Promise<unknown>
}

/** The objects that `postgresStore({ pool })` accepts. */
export type PostgresPool = PgPool | PgSingleClient | PostgresJsPool
