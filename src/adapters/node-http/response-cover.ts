/**
 * Decides what the properties and methods of a response show while its reply is captured, and to
 * the handler of an orphaned reply. There are two ways, because of their cost:
 *
 * - The fast cover (`fast-cover.ts`) assigns functions that all responses share to plain
 *   properties, changes the plain data of Node (`_header`, `destroyed`, `_closed`) and later
 *   changes it back. It deletes nothing, so V8 keeps the fast shape of the response. A response
 *   with its own accessors, or one that has lost a property, is slow in all that Node does with
 *   it: a first request through Express took 514 µs of CPU with overrides, and 271 with the fast
 *   cover (bench/notes.md). A changed prototype is not possible: Express sets the prototype again
 *   for each mounted app.
 * - Property overrides (`property-overrides.ts`) define accessors and functions for one response.
 *   They work everywhere, and are used where the fast cover cannot: for a response that is
 *   captured twice, for one with a method that cannot be assigned, and for an orphaned reply,
 *   which shows the handler another head than the one that was sent.
 *
 * Both ways use the same list of methods and the same captured reply.
 *
 * Tests: test/adapters/node-http/fast-shapes.process.test.ts, promotion.process.test.ts beside it,
 * and test/adapters/express/*.test.ts.
 */
import type { ServerResponse } from 'node:http'
import { CapturedSocket } from './captured-socket.ts'
import { coverFast, uncoverFast } from './fast-cover.ts'
import { PropertyOverrides } from './property-overrides.ts'
import { callbackOf } from './reply-body.ts'
import { METHOD_NAMES, type CapturedReply, type RealMethods } from './response-methods.ts'

/** Plain properties of a response that change while it is captured. */
interface PlainState {
  _header: string | null
  destroyed: boolean
  _closed: boolean
  /** The listeners of the package `on-finished`. The handler gets a separate list. */
  __onFinished?: unknown
}

/** Stands for the text of the head, which Node writes only when the reply is sent. */
const CAPTURED_HEADER = 'captured'

const HEADER_READERS = [
  'getHeader',
  'getHeaders',
  'getHeaderNames',
  'getRawHeaderNames',
  'hasHeader',
] as const

/** Methods that send an informational response (1xx) before the reply. */
const INFORMATION_METHODS = ['writeContinue', 'writeEarlyHints', 'writeProcessing'] as const

/**
 * Packages that replace `writeHead` have seen it called during the capture. Node calls it again
 * when the reply is sent, and must not reach them a second time.
 */
const ALWAYS_RESTORED: ReadonlySet<string> = new Set(['writeHead'])

export class ResponseCover {
  /** `handler`: properties show the captured reply. `client`: they show what was sent. */
  view: 'handler' | 'client' = 'handler'
  readonly #res: ServerResponse
  readonly #reply: CapturedReply
  readonly #real: RealMethods
  readonly #socket: CapturedSocket
  /** `undefined` while the fast cover is used. */
  #overrides: PropertyOverrides | undefined
  /** The values of Node, which the fast cover hides. */
  #isDestroyed = false
  #isClosed = false
  #outerOnFinished: unknown
  /** The list of `on-finished` for the handler. */
  #innerOnFinished: unknown

  constructor(res: ServerResponse, reply: CapturedReply, real: RealMethods) {
    this.#res = res
    this.#reply = reply
    this.#real = real
    this.#socket = new CapturedSocket(res)
    if (coverFast(res, reply)) this.#hideState()
    else this.#override((this.#overrides = new PropertyOverrides(res)))
  }

  get #plain(): PlainState {
    return this.#res as unknown as PlainState
  }

  /** Shows whether the head is written. Node derives `headersSent` from `_header`. */
  showHead(isWritten: boolean): void {
    if (this.#overrides === undefined) this.#plain._header = isWritten ? CAPTURED_HEADER : null
  }

  /**
   * Hides that the client is gone, so that the handler runs to its end. `finished` is not changed:
   * a server that closes idle connections reads it, and this connection still has a reply to send.
   */
  hideEnd(): void {
    if (this.#overrides !== undefined) return
    const plain = this.#plain
    this.#isDestroyed = plain.destroyed
    this.#isClosed = plain._closed
    if (plain.destroyed) plain.destroyed = false
    if (plain._closed) plain._closed = false
  }

  /**
   * Shows the response as it is. A method that another package has put over ours stays, and
   * reaches the real one through ours, except for `ALWAYS_RESTORED`.
   */
  takeAway(): void {
    this.view = 'client'
    if (this.#overrides === undefined) {
      uncoverFast(this.#res, this.#real)
      this.#showState()
    } else {
      this.#overrides.restore(ALWAYS_RESTORED)
    }
    this.#socket.uncover()
  }

  /** Shows the real socket again, and passes it the listeners that the live one got. */
  restoreSocket(): void {
    this.#socket.restore()
  }

  /** Shows the handler the head of `scratch`, and the state that its reply would have. */
  showOrphan(scratch: ServerResponse): void {
    this.view = 'handler'
    const overrides = (this.#overrides ??= new PropertyOverrides(
      this.#res,
      this.#replacedMethods(),
    ))
    this.#override(overrides)
    for (const name of ['statusCode', 'statusMessage'] as const) {
      const set = (value: unknown) => void Reflect.set(scratch, name, value)
      this.#show(name, () => scratch[name], set)
    }
    for (const name of HEADER_READERS) {
      const own = Reflect.get(scratch, name) as (...args: unknown[]) => unknown
      const real = Reflect.get(this.#res, name) as typeof own
      const value = (...args: unknown[]) =>
        this.view === 'client' ? real.apply(this.#res, args) : own.apply(scratch, args)
      overrides.set(name, { value, writable: true })
    }
    // The client has its reply: a 1xx response now would become part of the next one.
    const value = (...args: unknown[]) => callbackOf(args[0], args[1])?.()
    for (const name of INFORMATION_METHODS) overrides.set(name, { value, writable: true })
  }

  #hideState(): void {
    this.hideEnd()
    const plain = this.#plain
    this.#outerOnFinished = plain.__onFinished
    if (this.#outerOnFinished !== undefined) plain.__onFinished = undefined
  }

  #showState(): void {
    const plain = this.#plain
    if (this.#reply.isHeadWritten) plain._header = null
    if (this.#isDestroyed) plain.destroyed = true
    if (this.#isClosed) plain._closed = true
    this.#innerOnFinished = plain.__onFinished
    if (this.#innerOnFinished !== this.#outerOnFinished) plain.__onFinished = this.#outerOnFinished
  }

  /** Methods that another package has put over ours. */
  #replacedMethods(): string[] {
    return METHOD_NAMES.filter((name) => this.#res[name] !== this.#real[name])
  }

  #override(overrides: PropertyOverrides): void {
    const reply = this.#reply
    for (const name of METHOD_NAMES) {
      const own = reply[name] as (...args: unknown[]) => unknown
      overrides.set(name, { value: (...args: unknown[]) => own.apply(reply, args), writable: true })
    }
    this.#show('headersSent', () => reply.isHeadWritten)
    this.#show('_header', () => (reply.isHeadWritten ? CAPTURED_HEADER : null))
    this.#show('writableEnded', () => reply.isEnded)
    this.#show('finished', () => reply.isOrphaned && reply.isEnded)
    for (const name of ['destroyed', '_closed']) {
      const set = (value: unknown) => overrides.setOriginal(name, value)
      this.#show(name, () => false, set)
    }
    const set = (value: unknown) => void (this.#innerOnFinished = value)
    overrides.set('__onFinished', { get: () => this.#innerOnFinished, set })
    this.#socket.cover()
  }

  /** Defines a property that has another value in the handler's view than in the client's. */
  #show(name: string, own: () => unknown, set: (value: unknown) => void = () => undefined): void {
    const overrides = this.#overrides!
    const get = () => (this.view === 'client' ? overrides.original(name) : own())
    overrides.set(name, { get, set })
  }
}
