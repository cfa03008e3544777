import { Socket } from 'node:net'
import { systemClock } from '../../../core/time/clock.ts'
import { warnOnce } from '../../../core/warn.ts'
import type { PostgresJsOptions, PostgresJsQuery } from '../client.ts'

/** A socket that counts its bytes, as Node's sockets do, with and without TLS. */
interface CountingSocket {
  readonly bytesRead: number
  readonly bytesWritten: number
  readonly destroyed: boolean
  destroy(): unknown
  once(event: 'close', listener: () => void): unknown
}

/** A socket of the pool, and what is known about its connection. */
interface Line {
  readonly socket: CountingSocket
  /** The object of the driver's connection that uses this socket, once that is known. */
  owner: object | undefined
  /** The bytes it had read when the last answer arrived, on any connection. */
  readBefore: number
}

/** The byte counts of all sockets at one moment. A missing socket was opened later. */
export interface Mark {
  readonly read: ReadonlyMap<object, number>
  readonly written: ReadonlyMap<object, number>
}

type SocketOption = (options: PostgresJsOptions) => unknown

const known = new WeakMap<PostgresJsOptions, PostgresJsSockets>()

/** Returns one object for each `sql`, also if several stores share it. */
export function socketsOf(options: PostgresJsOptions): PostgresJsSockets {
  let sockets = known.get(options)
  if (sockets === undefined) {
    known.set(options, (sockets = new PostgresJsSockets(options)))
  }
  return sockets
}

/**
 * Destroys single connections of `postgres.js`, which has no method for that.
 *
 * The driver reads its option `socket`, which creates sockets, for each new connection, so this
 * class replaces the option. The option does not get the connection for which it creates a socket.
 * The byte counts show it: the socket of a connection that has just answered is among the sockets
 * that have just read bytes.
 *
 * Tests: test/stores/postgres/silence/, driver/warnings.slow.test.ts.
 */
export class PostgresJsSockets {
  readonly #lines = new Set<Line>()
  readonly #closing = new Set<Promise<void>>()
  readonly #listening = new Set<CountingSocket>()
  readonly #lineOf = new WeakMap<object, Line>()
  /** False if sockets were opened before: then no socket can be found by elimination. */
  readonly #isComplete: boolean

  constructor(options: PostgresJsOptions) {
    this.#isComplete = Object.keys(options.parameters ?? {}).length === 0
    if (!this.#isComplete) {
      warnOnce(
        'postgresStore: the sql of "postgres" had opened connections before the store was ' +
          'created, and the store cannot end those when they stop answering: create the store ' +
          'before the first query',
      )
    }
    this.#follow(options)
  }

  /** Called for every call. Written bytes matter only for sockets whose owner is unknown. */
  mark(isWhole = false): Mark {
    const read = new Map<object, number>()
    const written = new Map<object, number>()
    for (const line of this.#lines) {
      read.set(line, line.socket.bytesRead)
      if (isWhole || line.owner === undefined) written.set(line, line.socket.bytesWritten)
    }
    return { read, written }
  }

  /** Learns from an answer to a statement that was sent after the mark was made. */
  learn({ state }: PostgresJsQuery, mark: Mark): void {
    const owner = state ?? undefined
    if (owner === undefined) return
    if (!this.#isComplete || this.#find(owner) !== undefined) return
    const unowned = this.#live().filter((line) => line.owner === undefined)
    const answering = unowned.filter((line) => {
      return line.socket.bytesRead > Math.max(line.readBefore, mark.read.get(line) ?? 0)
    })
    // Bytes that a socket reads from now on belong to another answer.
    for (const line of unowned) line.readBefore = line.socket.bytesRead
    const [line] = answering
    if (answering.length !== 1 || line === undefined) return
    line.owner = owner
    this.#lineOf.set(owner, line)
  }

  /** Whether another answer of `owner` may show which socket it uses. */
  isUnknown(owner: object | undefined): boolean {
    return this.#isComplete && owner !== undefined && this.#find(owner) === undefined
  }

  /** Destroys the connection that carries a statement. */
  destroy({ state, active }: PostgresJsQuery, mark: Mark): void {
    const owner = state ?? undefined
    if (owner === undefined) return this.#destroyWhere((line) => isOpening(line, mark))
    const line = this.#find(owner)
    // The statement waits behind one of the application, which may only be slow.
    const isShared = active === false && line !== undefined && hasRead(line, mark)
    if (line === undefined || !isShared) this.destroyOwn(owner, mark)
  }

  /**
   * Destroys a connection that nothing else uses. If its socket is not known, destroys all sockets
   * that were written to since the mark and have read nothing.
   */
  destroyOwn(owner: object, mark: Mark): void {
    const line = this.#find(owner)
    this.#destroyWhere((one) =>
      line === undefined ? one.owner === undefined && isSilent(one, mark) : one === line,
    )
  }

  /** Destroys the silent connections after a statement that the driver sends by itself. */
  destroySilent(mark: Mark): void {
    this.#destroyWhere((line) => isSilent(line, mark) || isOpening(line, mark))
  }

  /** Destroys the connection of a statement if it is known and has read nothing since the mark. */
  destroySuspect({ state, active }: PostgresJsQuery, mark: Mark): void {
    const owner = state ?? undefined
    const line = owner && this.#find(owner)
    if (line === undefined || active !== true) return
    if (!hasRead(line, mark)) this.#destroyWhere((one) => one === line)
  }

  /** Other calls wait until `done` resolves. */
  hold(done: Promise<void>): void {
    const held = done.then(() => void this.#closing.delete(held))
    this.#closing.add(held)
  }

  get isClosing(): boolean {
    return this.#closing.size > 0
  }

  /** Until the driver notices that a connection is destroyed, it would send statements on it. */
  async untilClosed(): Promise<void> {
    while (this.isClosing) await Promise.all(this.#closing)
  }

  #destroyWhere(matches: (line: Line) => boolean): void {
    for (const { socket } of this.#live().filter(matches)) {
      const closed = new Promise<void>((resolve) => {
        // With TLS, the driver gets the event one turn of the event loop later.
        socket.once('close', () => systemClock.soon(resolve))
      })
      this.hold(closed)
      socket.destroy()
    }
  }

  /** Counts connections that were open at the mark and have not been used since. */
  unusedSince(mark: Mark): number {
    return this.#live().filter((line) => {
      const isOpen = (mark.read.get(line) ?? 0) > 0
      return isOpen && !hasRead(line, mark) && !isSilent(line, mark)
    }).length
  }

  /** Destroys the connection that listens. The driver opens a new one by itself. */
  destroyListening(): void {
    for (const socket of this.#listening) socket.destroy()
    this.#listening.clear()
  }

  #follow(options: PostgresJsOptions): void {
    const { socket } = options
    const open: SocketOption = typeof socket === 'function' ? (socket as SocketOption) : opener()
    options.socket = async (given: PostgresJsOptions) => {
      const opened = await open(given)
      if (isCounting(opened)) this.#add(opened, given === options)
      else warnOnce(CANNOT_END)
      return opened
    }
  }

  #add(socket: CountingSocket, isOfPool: boolean): void {
    if (isOfPool) {
      this.#live()
      this.#lines.add({ socket, owner: undefined, readBefore: 0 })
      return
    }
    // The driver listens with a copy of its options, on one connection.
    for (const old of this.#listening) if (old.destroyed) this.#listening.delete(old)
    this.#listening.add(socket)
  }

  #find(owner: object): Line | undefined {
    const line = this.#lineOf.get(owner)
    if (line?.socket.destroyed !== true) return line
    this.#lineOf.delete(owner)
    return undefined
  }

  /** Drops closed sockets here: the driver removes all listeners for `close` when it starts TLS. */
  #live(): Line[] {
    for (const line of this.#lines) if (line.socket.destroyed) this.#lines.delete(line)
    return [...this.#lines]
  }
}

const CANNOT_END =
  'postgresStore: the socket option of "postgres" returned a stream without bytesRead and ' +
  'bytesWritten, and the store cannot end such a connection when it stops answering: return a ' +
  'net.Socket'

function isCounting(socket: unknown): socket is CountingSocket {
  if (typeof socket !== 'object' || socket === null) return false
  return 'bytesRead' in socket && 'bytesWritten' in socket && 'destroy' in socket
}

function hasRead(line: Line, mark: Mark): boolean {
  return line.socket.bytesRead > (mark.read.get(line) ?? 0)
}

/** The socket was written to since the mark and has read nothing. */
function isSilent(line: Line, mark: Mark): boolean {
  if (hasRead(line, mark)) return false
  if (!mark.read.has(line)) return line.socket.bytesWritten > 0
  return line.socket.bytesWritten > (mark.written.get(line) ?? Infinity)
}

/** The socket was opening at the mark and still is. The driver opens another for the statement. */
function isOpening(line: Line, mark: Mark): boolean {
  return mark.read.get(line) === 0 && line.socket.bytesRead === 0
}

/**
 * Opens sockets as the driver does without the option. It does not wait until they are connected:
 * Node buffers earlier writes, and a failure reaches the driver as an event.
 */
function opener(): SocketOption {
  let next = 0
  return ({ host = ['localhost'], port = [5432], path }) => {
    const socket = new Socket()
    if (typeof path === 'string' && path !== '') return socket.connect(path)
    const index = next++ % port.length
    const target = { host: host[index] ?? 'localhost', port: port[index] ?? 5432 }
    // The driver reads these for the name in the certificate, and for its error messages.
    Object.assign(socket, target)
    return socket.connect(target.port, target.host)
  }
}
