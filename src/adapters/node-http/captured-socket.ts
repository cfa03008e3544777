/**
 * Shows a live socket (`live-socket.ts`) in place of the real one on a request or a response.
 *
 * There are two ways. On a response, `socket` is an accessor of the prototype (a plain property up
 * to Node 22), and gets an accessor that all responses share. On a request, `socket` is a plain
 * property, and gets another value: an accessor there would make the request slow in all that Node
 * does with it.
 *
 * Tests: test/adapters/node-http/captured-request.test.ts, fast-shapes.process.test.ts beside it.
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import { LiveSocket, realSocketOf, viewStateOf, type Socket } from './live-socket.ts'

type Message = (IncomingMessage | ServerResponse) & { [CAPTURE]?: CapturedSocket }

const CAPTURE = Symbol('captured socket')

const NAMES = ['socket', 'connection'] as const

/** One getter and one setter for all messages: with its own, each would get a different shape. */
const SHOWN: PropertyDescriptor = {
  configurable: true,
  get(this: Message) {
    return this[CAPTURE]!.shown
  },
  set(this: Message, real: unknown) {
    this[CAPTURE]!.shown = real
  },
}

/** Captures the socket of a response, or of a request whose `socket` is not a plain property. */
export class CapturedSocket {
  readonly #message: Message
  readonly #prototype: object
  /** The own `socket` of the message: requests have one, and responses up to Node 22. */
  #own: PropertyDescriptor | undefined
  /** An earlier capture of the same message, which is in effect again after this one. */
  #outer: CapturedSocket | undefined
  #isCovered = false
  #live: LiveSocket | undefined

  constructor(message: IncomingMessage | ServerResponse) {
    this.#message = message
    this.#prototype = Object.getPrototypeOf(message) as object
    this.cover()
  }

  /** Shows the live socket. */
  cover(): void {
    if (this.#isCovered) return
    this.#isCovered = true
    const message = this.#message
    const present = message[CAPTURE]
    message[CAPTURE] = this
    const own = Object.getOwnPropertyDescriptor(message, 'socket')
    if (own?.get === SHOWN.get) {
      if (present !== this) this.#outer = present
      return
    }
    this.#own = own
    for (const name of NAMES) Object.defineProperty(message, name, SHOWN)
  }

  /**
   * Shows the real socket. Where the message had no own `socket`, our accessor stays: an object
   * that loses a property stays slow.
   */
  uncover(): void {
    if (!this.#isCovered) return
    this.#isCovered = false
    if (this.#outer !== undefined) this.#message[CAPTURE] = this.#outer
    if (this.#own === undefined) return
    for (const name of NAMES) Reflect.deleteProperty(this.#message, name)
    Object.defineProperty(this.#message, 'socket', this.#own)
  }

  /** Shows the real socket, and passes it the listeners that the live one got. */
  restore(): void {
    this.uncover()
    this.#live?.restore()
  }

  get shown(): unknown {
    const real = this.#real
    if (!this.#isCovered || !real) return real
    this.#live ??= new LiveSocket(real)
    return this.#live.socket
  }

  set shown(real: unknown) {
    if (this.#outer !== undefined) this.#outer.shown = real
    else if (this.#own !== undefined) this.#own.value = real
    else Reflect.set(this.#prototype, 'socket', real, this.#message)
  }

  get #real(): Socket | null {
    if (this.#outer !== undefined) return this.#outer.#real
    const own = this.#own
    const real: unknown =
      own === undefined ? Reflect.get(this.#prototype, 'socket', this.#message) : own.value
    return real as Socket | null
  }
}

/** The captured socket of a request. */
export interface CapturedRequestSocket {
  /** Shows the real socket again. */
  restore(): void
}

export function captureRequestSocket(req: IncomingMessage): CapturedRequestSocket {
  const isPlain = req.socket && hasPlainSocket(req)
  return isPlain ? new ReplacedSocket(req) : new CapturedSocket(req)
}

/** Whether the request shows a live socket at present. */
export function hasCapturedSocket({ socket }: { readonly socket: Socket }): boolean {
  return viewStateOf(socket) === 'live'
}

class ReplacedSocket implements CapturedRequestSocket {
  readonly #req: IncomingMessage
  readonly #before: Socket
  readonly #live: LiveSocket

  constructor(req: IncomingMessage) {
    this.#req = req
    this.#before = req.socket
    this.#live = new LiveSocket(req.socket)
    this.#replace(this.#before, this.#live.socket)
  }

  restore(): void {
    // An outer capture of the same request may have ended before this one.
    const isOuterOver = viewStateOf(this.#before) === 'restored'
    const before = isOuterOver ? realSocketOf({ socket: this.#before }) : this.#before
    this.#replace(this.#live.socket, before)
    this.#live.restore()
  }

  /** Does nothing when other code has set another socket since. */
  #replace(present: Socket, next: Socket): void {
    const req = this.#req
    // `connection` reads `socket` in every version of Node. Some versions warn when it is used.
    if (hasPlainSocket(req) && req.socket === present) req.socket = next
  }
}

function hasPlainSocket(req: IncomingMessage): boolean {
  return Object.getOwnPropertyDescriptor(req, 'socket')?.writable === true
}
