/**
 * The parts of the clients that the store uses. They are described here and not imported: the
 * package depends on no client, and any object with these methods works.
 */

export type Argument = string | Buffer

/** The operations that the store needs, implemented on each kind of client. */
export interface Driver {
  /** On a cluster, keys of different slots cannot share a script. */
  readonly isCluster: boolean
  /**
   * Sends a command to the master that has `key`. Strings in the answer are `Buffer`s. When
   * `signal` aborts, the call rejects, and a connection that has answered nothing since the start
   * of the call is ended.
   */
  send(args: readonly Argument[], key: string, signal?: AbortSignal): Promise<unknown>
  /** Sends a command to every master. The answers are in no particular order. */
  askMasters(args: readonly string[], signal?: AbortSignal): Promise<unknown[]>
  /**
   * Opens a separate connection to the same server. Absent for a cluster, which has several
   * servers. When `signal` aborts, the connection is ended, even while it is being opened.
   */
  readonly connect?: (signal: AbortSignal) => Promise<Connection>
}

/**
 * A connection that only the store uses. Commands of one turn of the event loop reach the server in
 * order on one socket, or fail. No command is sent again on a new socket.
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
  /** Absent until the client connects. */
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
  /** Closes the connection in version 4. From version 5 on, `destroy` does. */
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

/** A client of ioredis or of node-redis, for a single server or for a cluster. */
export type RedisClient = IoRedisClient | IoRedisCluster | NodeRedisClient | NodeRedisCluster
