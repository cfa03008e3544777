import type { IncomingMessage, ServerResponse } from 'node:http'

type Socket = IncomingMessage['socket']
type Listener = (...args: unknown[]) => void
type Listen = (event: string, listener: Listener) => unknown

/** By these a socket says that it is over. */
const LAST_EVENTS: ReadonlySet<string> = new Set(['close', 'end', 'error'])

export interface HeldSocket {
  /** Lets the message show the quiet socket, and its own again. */
  cover(): void
  uncover(): void
  /** Gives the message its socket back, and all who have listened to the quiet one. */
  letGo(): void
}

/** Lets a request or response show a quiet socket in place of its own. */
export function holdSocket(message: IncomingMessage | ServerResponse): HeldSocket {
  let own: PropertyDescriptor | undefined
  let isCovered = false
  const prototype = Object.getPrototypeOf(message) as object
  let quiet: QuietSocket | undefined
  const get = () => {
    const accessed: unknown =
      own === undefined ? Reflect.get(prototype, 'socket', message) : own.value
    const real = accessed as Socket | null
    if (!real) return real
    quiet ??= new QuietSocket(real)
    return quiet.socket
  }
  const set = (real: unknown) => {
    if (own === undefined) Reflect.set(prototype, 'socket', real, message)
    else own.value = real
  }
  const cover = () => {
    if (isCovered) return
    isCovered = true
    // Requests own theirs; responses do up to Node 22, and share an accessor after that.
    own = Object.getOwnPropertyDescriptor(message, 'socket')
    for (const name of NAMES) Object.defineProperty(message, name, { configurable: true, get, set })
  }
  const uncover = () => {
    if (!isCovered) return
    isCovered = false
    for (const name of NAMES) Reflect.deleteProperty(message, name)
    if (own !== undefined) Object.defineProperty(message, 'socket', own)
  }
  const letGo = () => {
    uncover()
    quiet?.letGo()
  }
  cover()
  return { cover, uncover, letGo }
}

const NAMES = ['socket', 'connection'] as const

/** The real ones of the quiet sockets. */
const REAL = new WeakMap<Socket, Socket>()

/** The socket of a message, also of one that shows a quiet one. */
export function realSocketOf({ socket }: { readonly socket: Socket }): Socket {
  return REAL.get(socket) ?? socket
}

/**
 * A socket as a handler sees it while its reply is held: alive, whatever becomes of the client.
 * Body parsers and `sendFile` ask the socket itself before they do their work, and would leave it
 * undone for a client that is gone, while the handler behind them runs on.
 */
class QuietSocket {
  /** Everything else about it is the real one. */
  readonly socket: Socket
  readonly #real: Socket
  #quiet = true
  #waiting: { readonly name: string; readonly event: string; readonly listener: Listener }[] = []

  constructor(real: Socket) {
    this.#real = real
    this.socket = new Proxy(real, { get: (_target, name) => this.#get(name) })
    REAL.set(this.socket, real)
  }

  /** From now on it is what it is, also to those who have waited for its end. */
  letGo(): void {
    if (!this.#quiet) return
    this.#quiet = false
    const waiting = this.#waiting
    this.#waiting = []
    if (!this.#real.closed) {
      for (const { name, event, listener } of waiting) this.#method(name)(event, listener)
      return
    }
    process.nextTick(() => {
      for (const { event, listener } of waiting) if (event === 'close') listener(false)
    })
  }

  #get(name: string | symbol): unknown {
    switch (name) {
      case 'readable':
      case 'writable':
        return this.#quiet || this.#real[name]
      case 'destroyed':
      case 'closed':
        return !this.#quiet && this.#real[name]
      case 'on':
      case 'once':
      case 'addListener':
      case 'prependListener':
      case 'prependOnceListener':
        return this.#listen(name)
      case 'off':
      case 'removeListener':
        return this.#unlisten
      default: {
        const value: unknown = Reflect.get(this.#real, name)
        return typeof value === 'function' && name !== 'constructor'
          ? value.bind(this.#real)
          : value
      }
    }
  }

  #listen(name: string): Listen {
    return (event, listener) => {
      if (this.#quiet && LAST_EVENTS.has(event)) this.#waiting.push({ name, event, listener })
      else this.#method(name)(event, listener)
      return this.socket
    }
  }

  readonly #unlisten: Listen = (event, listener) => {
    this.#waiting = this.#waiting.filter((one) => one.event !== event || one.listener !== listener)
    this.#real.off(event, listener)
    return this.socket
  }

  #method(name: string): Listen {
    const method = Reflect.get(this.#real, name) as Listen
    return method.bind(this.#real)
  }
}
