/** What a response shows of itself while its reply is held, and afterwards to a handler alone. */
import type { ServerResponse } from 'node:http'
import { HeldSocket } from './held-socket.ts'
import { callbackOf, type RealMethods } from './outgoing.ts'
import { coverQuickly, METHOD_NAMES, uncoverQuickly, type HeldMethods } from './quick-shadows.ts'
import { Shadows } from './shadows.ts'

/** What is known of the reply behind a cover. */
export interface CoveredReply extends HeldMethods {
  readonly headWritten: boolean
  readonly ended: boolean
  readonly isOrphaned: boolean
  /** The response shows what has left: to those outside, and once all is over. */
  readonly showsSent: boolean
}

/** What Node keeps as plain properties of a response, and we change while it is held. */
interface Inside {
  _header: string | null
  destroyed: boolean
  _closed: boolean
  /** What `on-finished` keeps on a response. Those outside have a list of their own. */
  __onFinished?: unknown
}

/** What is asked of the headers of a response. */
const HEADER_METHODS = [
  'getHeader',
  'getHeaders',
  'getHeaderNames',
  'getRawHeaderNames',
  'hasHeader',
] as const

/** By these a response says something before its reply. */
const INFORMATION_METHODS = ['writeContinue', 'writeEarlyHints', 'writeProcessing'] as const

/** The head was written before the eyes of whoever is over us: it is not written by them again. */
const NEVER_COVERED: ReadonlySet<string> = new Set(['writeHead'])

export class ResponseCover {
  readonly #res: ServerResponse
  readonly #reply: CoveredReply
  readonly #real: RealMethods
  readonly #socket: HeldSocket
  /** Absent as long as the quick ones will do. */
  #shadows: Shadows | undefined
  /** What the response would show without us. */
  #isDestroyed = false
  #isClosed = false
  #outerFinished: unknown
  /** What `on-finished` keeps for those inside. */
  #onFinished: unknown

  constructor(res: ServerResponse, reply: CoveredReply, real: RealMethods) {
    this.#res = res
    this.#reply = reply
    this.#real = real
    this.#socket = new HeldSocket(res)
    if (coverQuickly(res, reply)) this.#hideState()
    else this.#shadow((this.#shadows = new Shadows(res)))
  }

  get #inside(): Inside {
    return this.#res as unknown as Inside
  }

  /** The head is written, or forgotten again. Node goes by this property, and so does the rest. */
  showHead(isWritten: boolean): void {
    if (this.#shadows === undefined) this.#inside._header = isWritten ? 'held' : null
  }

  /**
   * The client may be gone; the handler is to finish as if it were not. `finished` is as it should
   * be: by it the server tells connections that it may close, and ours has a reply to send.
   */
  hideEnd(): void {
    if (this.#shadows !== undefined) return
    const inside = this.#inside
    this.#isDestroyed = inside.destroyed
    this.#isClosed = inside._closed
    if (inside.destroyed) inside.destroyed = false
    if (inside._closed) inside._closed = false
  }

  /**
   * Shows everything as it is. What others have put over our methods stays, and reaches the real
   * ones through us; only the head, which they have seen written, is not written by them again.
   */
  takeAway(): void {
    if (this.#shadows === undefined) {
      uncoverQuickly(this.#res, this.#real)
      this.#showState()
    } else {
      this.#shadows.takeAway(NEVER_COVERED)
    }
    this.#socket.uncover()
  }

  /** Gives the response its socket back, and all who have listened to the quiet one. */
  letSocketGo(): void {
    this.#socket.letGo()
  }

  /** The handler goes on with a response of its own, of which only the record will know. */
  showOrphan(scratch: ServerResponse): void {
    const shadows = (this.#shadows ??= new Shadows(this.#res, this.#coveredByOthers()))
    this.#shadow(shadows)
    for (const name of ['statusCode', 'statusMessage'] as const) {
      const set = (value: unknown) => void Reflect.set(scratch, name, value)
      this.#show(name, () => scratch[name], set)
    }
    for (const name of HEADER_METHODS) {
      const own = Reflect.get(scratch, name) as (...args: unknown[]) => unknown
      const real = Reflect.get(this.#res, name) as typeof own
      const value = (...args: unknown[]) =>
        this.#reply.showsSent ? real.apply(this.#res, args) : own.apply(scratch, args)
      shadows.put(name, { value, writable: true })
    }
    // The client has its reply: a word before it would fall into the next one.
    const value = (...args: unknown[]) => callbackOf(args[0], args[1])?.()
    for (const name of INFORMATION_METHODS) shadows.put(name, { value, writable: true })
  }

  #hideState(): void {
    this.hideEnd()
    const inside = this.#inside
    this.#outerFinished = inside.__onFinished
    if (this.#outerFinished !== undefined) inside.__onFinished = undefined
  }

  #showState(): void {
    const inside = this.#inside
    if (this.#reply.headWritten) inside._header = null
    if (this.#isDestroyed) inside.destroyed = true
    if (this.#isClosed) inside._closed = true
    this.#onFinished = inside.__onFinished
    if (this.#onFinished !== this.#outerFinished) inside.__onFinished = this.#outerFinished
  }

  /** Where others have put theirs over our quick ones, and reach us through them. */
  #coveredByOthers(): string[] {
    return METHOD_NAMES.filter((name) => this.#res[name] !== this.#real[name])
  }

  /** By the book: for what the quick ones cannot do. */
  #shadow(shadows: Shadows): void {
    const reply = this.#reply
    for (const name of METHOD_NAMES) {
      const own = reply[name] as (...args: unknown[]) => unknown
      shadows.put(name, { value: (...args: unknown[]) => own.apply(reply, args), writable: true })
    }
    this.#show('headersSent', () => reply.headWritten)
    this.#show('_header', () => (reply.headWritten ? 'held' : null))
    this.#show('writableEnded', () => reply.ended)
    this.#show('finished', () => reply.isOrphaned && reply.ended)
    for (const name of ['destroyed', '_closed']) {
      const set = (value: unknown) => shadows.setBeneath(name, value)
      this.#show(name, () => false, set)
    }
    const set = (value: unknown) => void (this.#onFinished = value)
    shadows.put('__onFinished', { get: () => this.#onFinished, set })
    this.#socket.cover()
  }

  /** A property as the handler is to see it. */
  #show(name: string, own: () => unknown, set: (value: unknown) => void = () => undefined): void {
    const shadows = this.#shadows!
    const get = () => (this.#reply.showsSent ? shadows.beneath(name) : own())
    shadows.put(name, { get, set })
  }
}
