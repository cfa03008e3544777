/**
 * A view of a socket that looks connected until `restore()`, even after the client is gone. Body
 * parsers and `sendFile` check the socket before they start, and would do nothing for a client
 * that is gone, although the handler still runs.
 *
 * Tests: test/adapters/node-http/captured-request.test.ts.
 */
import type { IncomingMessage } from 'node:http'

export type Socket = IncomingMessage['socket']

type Listener = (...args: unknown[]) => void
type Listen = (event: string, listener: Listener) => unknown

/** The events by which a socket reports its end. */
const LAST_EVENTS: ReadonlySet<string> = new Set(['close', 'end', 'error'])

const REAL = Symbol('real socket')
const VIEW_STATE = Symbol('state of a live socket')

/** `live`: the view looks connected. `restored`: it shows the real socket. */
type ViewState = 'live' | 'restored'

interface View {
  readonly [REAL]?: Socket
  readonly [VIEW_STATE]?: ViewState
}

/** The real socket of a message, also of a message that shows a view. */
export function realSocketOf({ socket }: { readonly socket: Socket }): Socket {
  return (socket as (Socket & View) | null)?.[REAL] ?? socket
}

/** `undefined` for a socket that is not a view. */
export function viewStateOf(socket: Socket): ViewState | undefined {
  return (socket as (Socket & View) | null)?.[VIEW_STATE]
}

export class LiveSocket implements ProxyHandler<Socket> {
  readonly socket: Socket
  readonly #real: Socket
  #state: ViewState = 'live'
  /** Listeners for the last events. The real socket gets them on `restore()`. */
  #waiting: { readonly name: string; readonly event: string; readonly listener: Listener }[] = []

  constructor(real: Socket) {
    this.#real = real
    this.socket = new Proxy(real, this)
  }

  /** Shows the real socket from now on, and calls listeners that have missed its `close`. */
  restore(): void {
    if (this.#state === 'restored') return
    this.#state = 'restored'
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
      case VIEW_STATE:
        return this.#state
      case 'readable':
      case 'writable':
        return this.#state === 'live' || this.#real[name]
      case 'destroyed':
      case 'closed':
        return this.#state !== 'live' && this.#real[name]
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
      const mustWait = this.#state === 'live' && LAST_EVENTS.has(event)
      if (mustWait) this.#waiting.push({ name, event, listener })
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
