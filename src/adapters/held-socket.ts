import type { IncomingMessage, ServerResponse } from 'node:http'

type Socket = IncomingMessage['socket']
type Listener = (...args: unknown[]) => void
type Listen = (event: string, listener: Listener) => unknown

/** By these a socket says that it is over. */
const LAST_EVENTS: ReadonlySet<string> = new Set(['close', 'end', 'error'])

type Message = (IncomingMessage | ServerResponse) & { [HOLDER]?: HeldSocket }

const HOLDER = Symbol('held socket')

const NAMES = ['socket', 'connection'] as const

/** The same functions for all messages: with others, each would get a shape of its own. */
const SHOWN: PropertyDescriptor = {
  configurable: true,
  get(this: Message) {
    return this[HOLDER]!.shown
  },
  set(this: Message, real: unknown) {
    this[HOLDER]!.shown = real
  },
}

/** Lets a request or response show a quiet socket in place of its own. */
export class HeldSocket {
  readonly #message: Message
  readonly #prototype: object
  /** What the message has of its own: requests do, and responses up to Node 22. */
  #own: PropertyDescriptor | undefined
  /** Another one holds it already, and does so again once this one has let go. */
  #under: HeldSocket | undefined
  #isCovered = false
  #quiet: QuietSocket | undefined

  constructor(message: IncomingMessage | ServerResponse) {
    this.#message = message
    this.#prototype = Object.getPrototypeOf(message) as object
    this.cover()
  }

  /** Lets the message show the quiet socket, and its own again. */
  cover(): void {
    if (this.#isCovered) return
    this.#isCovered = true
    const message = this.#message
    const holder = message[HOLDER]
    message[HOLDER] = this
    const own = Object.getOwnPropertyDescriptor(message, 'socket')
    if (own?.get === SHOWN.get) {
      if (holder !== this) this.#under = holder
      return
    }
    this.#own = own
    for (const name of NAMES) Object.defineProperty(message, name, SHOWN)
  }

  /** Where there was nothing, our property stays: an object that loses one is slow for ever. */
  uncover(): void {
    if (!this.#isCovered) return
    this.#isCovered = false
    if (this.#under !== undefined) this.#message[HOLDER] = this.#under
    if (this.#own === undefined) return
    for (const name of NAMES) Reflect.deleteProperty(this.#message, name)
    Object.defineProperty(this.#message, 'socket', this.#own)
  }

  /** Gives the message its socket back, and all who have listened to the quiet one. */
  letGo(): void {
    this.uncover()
    this.#quiet?.letGo()
  }

  get shown(): unknown {
    const real = this.#real
    if (!this.#isCovered || !real) return real
    this.#quiet ??= new QuietSocket(real)
    return this.#quiet.socket
  }

  set shown(real: unknown) {
    if (this.#under !== undefined) this.#under.shown = real
    else if (this.#own !== undefined) this.#own.value = real
    else Reflect.set(this.#prototype, 'socket', real, this.#message)
  }

  get #real(): Socket | null {
    if (this.#under !== undefined) return this.#under.#real
    const own = this.#own
    const real: unknown =
      own === undefined ? Reflect.get(this.#prototype, 'socket', this.#message) : own.value
    return real as Socket | null
  }
}

/** What lets go of the socket of a request again. */
export interface HeldRequestSocket {
  letGo(): void
}

/**
 * Lets a request show a quiet socket. A request has its socket as a plain property, and is given
 * another value for it: with an accessor in its place it would be slow in all that Node does with
 * it. Where it is anything else, it is held as that of a response is.
 */
export function holdRequestSocket(req: IncomingMessage): HeldRequestSocket {
  const isPlain = req.socket && hasPlainSocket(req)
  return isPlain ? new ReplacedSocket(req) : new HeldSocket(req)
}

class ReplacedSocket implements HeldRequestSocket {
  readonly #req: IncomingMessage
  readonly #before: Socket
  readonly #quiet: QuietSocket

  constructor(req: IncomingMessage) {
    this.#req = req
    this.#before = req.socket
    this.#quiet = new QuietSocket(req.socket)
    this.#replace(this.#before, this.#quiet.socket)
  }

  letGo(): void {
    // Whoever has held it before us may be gone.
    const isOver = markOf(this.#before) === 'over'
    const before = isOver ? realSocketOf({ socket: this.#before }) : this.#before
    this.#replace(this.#quiet.socket, before)
    this.#quiet.letGo()
  }

  /** Unless somebody else has given it another one since. */
  #replace(one: Socket, other: Socket): void {
    const req = this.#req
    // `connection` reads this one, everywhere. Not even looked at: some warn of its use.
    if (hasPlainSocket(req) && req.socket === one) req.socket = other
  }
}

function hasPlainSocket(req: IncomingMessage): boolean {
  return Object.getOwnPropertyDescriptor(req, 'socket')?.writable === true
}

/** By these a quiet socket tells the real one, and whether it is still quiet. */
const REAL = Symbol('real socket')
const MARK = Symbol('quiet socket')

interface Marked {
  readonly [REAL]?: Socket
  readonly [MARK]?: 'quiet' | 'over'
}

/** The socket of a message, also of one that shows a quiet one. */
export function realSocketOf({ socket }: { readonly socket: Socket }): Socket {
  return (socket as (Socket & Marked) | null)?.[REAL] ?? socket
}

export function hasQuietSocket({ socket }: { readonly socket: Socket }): boolean {
  return markOf(socket) === 'quiet'
}

/** `undefined` where it is none of ours. */
function markOf(socket: Socket): Marked[typeof MARK] {
  return (socket as (Socket & Marked) | null)?.[MARK]
}

/**
 * A socket as a handler sees it while its reply is held: alive, whatever becomes of the client.
 * Body parsers and `sendFile` ask the socket itself before they do their work, and would leave it
 * undone for a client that is gone, while the handler behind them runs on.
 */
class QuietSocket implements ProxyHandler<Socket> {
  /** Everything else about it is the real one. */
  readonly socket: Socket
  readonly #real: Socket
  #quiet = true
  #waiting: { readonly name: string; readonly event: string; readonly listener: Listener }[] = []

  constructor(real: Socket) {
    this.#real = real
    this.socket = new Proxy(real, this)
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

  /** The trap of the proxy. */
  get(_target: Socket, name: string | symbol): unknown {
    switch (name) {
      case REAL:
        return realSocketOf({ socket: this.#real })
      case MARK:
        return this.#quiet ? 'quiet' : 'over'
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
