/**
 * The parts of the clients that are used here. Described, not imported: the package depends on no
 * client, and whatever behaves like one of them will do.
 */

export type Argument = string | Buffer

/** What the store needs of a client. */
export interface Driver {
  /** Keys of different slots cannot share a script. */
  readonly isCluster: boolean
  /**
   * To the master that has `key`. Strings of the answer come as `Buffer`s. When `signal` aborts,
   * the call rejects, and a connection that has answered nothing meanwhile is ended.
   */
  send(args: readonly Argument[], key: string, signal?: AbortSignal): Promise<unknown>
  /** To every master: what each of them answers, in no particular order. */
  askMasters(args: readonly string[], signal?: AbortSignal): Promise<unknown[]>
  /**
   * A connection of our own to the same server. Absent where there is more than one server. When
   * `signal` aborts, the connection is ended, also while it is being opened.
   */
  readonly connect?: (signal: AbortSignal) => Promise<Connection>
}

/**
 * A connection that is used by nobody else. Commands of one turn of the event loop reach the server
 * one behind the other on one socket, or fail: none is ever sent again on a new one.
 */
export interface Connection {
  send(args: readonly Argument[]): Promise<unknown>
  close(): void
}

/** The part of `Redis` of ioredis that is used. */
export interface IoRedisClient {
  callBuffer(command: string, ...args: Argument[]): Promise<unknown>
  duplicate(options: object): IoRedisConnection
  readonly isCluster: boolean
}

export interface IoRedisConnection {
  callBuffer(command: string, ...args: Argument[]): Promise<unknown>
  connect(): Promise<unknown>
  disconnect(): void
  /** Absent until it connects. */
  readonly stream?: { destroy(): unknown } | undefined
  on(event: 'error', listener: (error: Error) => void): unknown
}

/** The part of `Redis.Cluster` of ioredis that is used. */
export interface IoRedisCluster {
  callBuffer(command: string, ...args: Argument[]): Promise<unknown>
  nodes(role: 'master'): Pick<IoRedisClient, 'callBuffer'>[]
  readonly isCluster: boolean
}

/** The part of a client of node-redis (`createClient`) that is used. */
export interface NodeRedisClient {
  sendCommand(args: Argument[], options?: object): Promise<unknown>
  duplicate(options?: object): NodeRedisConnection
  readonly options?: { readonly socket?: object | undefined } | undefined
}

export interface NodeRedisConnection {
  sendCommand(args: Argument[], options?: object): Promise<unknown>
  connect(): Promise<unknown>
  /** The names of the same thing in version 4, and since version 5. */
  disconnect?(): Promise<unknown>
  destroy?(): void
  on(event: 'error', listener: (error: Error) => void): unknown
}

/** The part of a cluster client of node-redis (`createCluster`) that is used. */
export interface NodeRedisCluster {
  sendCommand(
    firstKey: Argument | undefined,
    isReadonly: boolean | undefined,
    args: Argument[],
    options?: object,
  ): Promise<unknown>
  readonly masters: readonly object[]
  nodeClient(node: never): unknown
}

export type RedisClient = IoRedisClient | IoRedisCluster | NodeRedisClient | NodeRedisCluster
