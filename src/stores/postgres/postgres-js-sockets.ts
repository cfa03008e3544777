import { Socket } from 'node:net'
import { systemClock } from '../../core/clock.ts'
import { warnOnce } from '../../core/warn.ts'
import type { PostgresJsOptions, PostgresJsQuery } from './client.ts'

/** A socket that counts its bytes, as those of Node do, with and without TLS. */
interface CountingSocket {
  readonly bytesRead: number
  readonly bytesWritten: number
  readonly destroyed: boolean
  destroy(): unknown
  once(event: 'close', listener: () => void): unknown
}

interface Line {
  readonly socket: CountingSocket
  /** The object of the driver's connection that uses this socket, once that is known. */
  owner: object | undefined
  /** What it had read when an answer came last, on whatever connection. */
  readBefore: number
}

/** What the sockets had read and written at one moment. One that is missing was opened later. */
export interface Mark {
  readonly read: ReadonlyMap<object, number>
  readonly written: ReadonlyMap<object, number>
}

type SocketOption = (options: PostgresJsOptions) => unknown

const known = new WeakMap<PostgresJsOptions, PostgresJsSockets>()

/** One for each `sql`, also where several stores share it. */
export function socketsOf(options: PostgresJsOptions): PostgresJsSockets {
  let sockets = known.get(options)
  if (sockets === undefined) {
    known.set(options, (sockets = new PostgresJsSockets(options)))
  }
  return sockets
}

/**
 * Destroys single connections of `postgres.js`, which offers no way to do that.
 *
 * Its `socket` option makes the sockets, and is read with each new connection, so it is set here.
 * It does not say for which connection a socket is. That is learnt from the byte counts: the socket
 * of a connection that has just answered is among those that have just read something.
 */
export class PostgresJsSockets {
  readonly #lines = new Set<Line>()
  readonly #closing = new Set<Promise<void>>()
  readonly #listening = new Set<CountingSocket>()
  readonly #lineOf = new WeakMap<object, Line>()
  /** A socket that was opened before is not known, so nothing can be learnt by elimination. */
  readonly #isComplete: boolean

  constructor(options: PostgresJsOptions) {
    this.#isComplete = Object.keys(options.parameters ?? {}).length === 0
    if (!this.#isComplete) {
      warnOnce(
        'postgresStore: the sql of "postgres" had opened connections before the store was made, ' +
          'and the store cannot end those when they fall silent: make the store before the first ' +
          'query',
      )
    }
    this.#follow(options)
  }

  /** Made with every call. What is written to a socket matters only where its owner is unknown. */
  mark(isWhole = false): Mark {
    const read = new Map<object, number>()
    const written = new Map<object, number>()
    for (const line of this.#lines) {
      read.set(line, line.socket.bytesRead)
      if (isWhole || line.owner === undefined) written.set(line, line.socket.bytesWritten)
    }
    return { read, written }
  }

  /** The connection has answered a statement that was sent after the mark was made. */
  learn({ state }: PostgresJsQuery, mark: Mark): void {
    const owner = state ?? undefined
    if (owner === undefined) return
    if (!this.#isComplete || this.#find(owner) !== undefined) return
    const unowned = this.#live().filter((line) => line.owner === undefined)
    const answering = unowned.filter((line) => {
      return line.socket.bytesRead > Math.max(line.readBefore, mark.read.get(line) ?? 0)
    })
    // The answer is the last that was read, so a later one is by another connection, or later.
    for (const line of unowned) line.readBefore = line.socket.bytesRead
    const [line] = answering
    if (answering.length !== 1 || line === undefined) return
    line.owner = owner
    this.#lineOf.set(owner, line)
  }

  /** Another answer of `owner` may tell which socket it uses. */
  isUnknown(owner: object | undefined): boolean {
    return this.#isComplete && owner !== undefined && this.#find(owner) === undefined
  }

  /** Destroys the connection that carries a statement. */
  destroy({ state, active }: PostgresJsQuery, mark: Mark): void {
    const owner = state ?? undefined
    if (owner === undefined) return this.#destroyWhere((line) => isOpening(line, mark))
    const line = this.#find(owner)
    // Behind a statement of the application, which may only be slow.
    const isShared = active === false && line !== undefined && hasRead(line, mark)
    if (line === undefined || !isShared) this.destroyOwn(owner, mark)
  }

  /**
   * Destroys a connection that nothing else uses. Where it is not known which socket that is,
   * destroys those that have been sent something since the mark and have answered nothing.
   */
  destroyOwn(owner: object, mark: Mark): void {
    const line = this.#find(owner)
    this.#destroyWhere((one) =>
      line === undefined ? one.owner === undefined && isSilent(one, mark) : one === line,
    )
  }

  /** The same for a statement that the driver sends by itself. */
  destroySilent(mark: Mark): void {
    this.#destroyWhere((line) => isSilent(line, mark) || isOpening(line, mark))
  }

  /** Destroys the connection of a statement if it is known, and has read nothing since the mark. */
  destroyDoubtful({ state, active }: PostgresJsQuery, mark: Mark): void {
    const owner = state ?? undefined
    const line = owner && this.#find(owner)
    if (line === undefined || active !== true) return
    if (!hasRead(line, mark)) this.#destroyWhere((one) => one === line)
  }

  /** Other calls wait until this has been done. */
  hold(done: Promise<void>): void {
    const held = done.then(() => void this.#closing.delete(held))
    this.#closing.add(held)
  }

  get isClosing(): boolean {
    return this.#closing.size > 0
  }

  /** While the driver takes a destroyed connection for one in use, it would send more on it. */
  async untilClosed(): Promise<void> {
    while (this.isClosing) await Promise.all(this.#closing)
  }

  #destroyWhere(isMeant: (line: Line) => boolean): void {
    for (const { socket } of this.#live().filter(isMeant)) {
      const closed = new Promise<void>((resolve) => {
        // With TLS, the driver hears of it a moment later.
        socket.once('close', () => systemClock.soon(resolve))
      })
      this.hold(closed)
      socket.destroy()
    }
  }

  /** How many connections were open at the mark, and have not been used since, or not answered. */
  unusedSince(mark: Mark): number {
    return this.#live().filter((line) => {
      const isOpen = (mark.read.get(line) ?? 0) > 0
      return isOpen && !hasRead(line, mark) && !isSilent(line, mark)
    }).length
  }

  /** Destroys the connection that listens. The driver opens another by itself. */
  destroyListening(): void {
    for (const socket of this.#listening) socket.destroy()
    this.#listening.clear()
  }

  #follow(options: PostgresJsOptions): void {
    const { socket } = options
    const open: SocketOption = typeof socket === 'function' ? (socket as SocketOption) : opener()
    options.socket = async (asked: PostgresJsOptions) => {
      const opened = await open(asked)
      if (isCounting(opened)) this.#add(opened, asked === options)
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

  /** Forgets what has closed. The driver removes all listeners for `close` when it starts TLS. */
  #live(): Line[] {
    for (const line of this.#lines) if (line.socket.destroyed) this.#lines.delete(line)
    return [...this.#lines]
  }
}

const CANNOT_END =
  'postgresStore: the socket option of "postgres" returned a stream without bytesRead and ' +
  'bytesWritten, and the store cannot end such a connection when it falls silent: return a ' +
  'net.Socket'

function isCounting(socket: unknown): socket is CountingSocket {
  if (typeof socket !== 'object' || socket === null) return false
  return 'bytesRead' in socket && 'bytesWritten' in socket && 'destroy' in socket
}

function hasRead(line: Line, mark: Mark): boolean {
  return line.socket.bytesRead > (mark.read.get(line) ?? 0)
}

/** Has been sent something since the mark, and has answered nothing. */
function isSilent(line: Line, mark: Mark): boolean {
  if (hasRead(line, mark)) return false
  if (!mark.read.has(line)) return line.socket.bytesWritten > 0
  return line.socket.bytesWritten > (mark.written.get(line) ?? Infinity)
}

/** Was opening at the mark, and still is. The driver opens another for the statement that waits. */
function isOpening(line: Line, mark: Mark): boolean {
  return mark.read.get(line) === 0 && line.socket.bytesRead === 0
}

/**
 * Opens sockets as the driver does without the option. It does not wait until they are connected:
 * what is written before that is kept by Node, and a failure reaches the driver as an event.
 */
function opener(): SocketOption {
  let next = 0
  return ({ host = ['localhost'], port = [5432], path }) => {
    const socket = new Socket()
    if (typeof path === 'string' && path !== '') return socket.connect(path)
    const index = next++ % port.length
    const target = { host: host[index] ?? 'localhost', port: port[index] ?? 5432 }
    // The driver reads these for the name that the certificate must have, and for its messages.
    Object.assign(socket, target)
    return socket.connect(target.port, target.host)
  }
}
