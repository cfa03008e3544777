/**
 * Holds back what a handler writes to a Node response until the guard lets it go. Everything the
 * handler can see (`headersSent`, `writableEnded`, what `write` returns) looks as if the reply
 * had left, so that frameworks behave as they would without us.
 */
import { ServerResponse } from 'node:http'
import { isEndless } from '../http/endless.ts'
import type { HttpReply, Produced } from '../http/exchange.ts'
import type { HeaderPair } from '../http/stored-headers.ts'
import {
  asNumber,
  callbackOf,
  checkHead,
  codedError,
  endWith,
  headersOf,
  headOf,
  headersSentError,
  joined,
  pairs,
  realMethods,
  runAll,
  sendReply,
  setStatus,
  statusOf,
  toBytes,
  type Callback,
  type Head,
  type HeldHeader,
  type RealMethods,
  type Status,
} from './outgoing.ts'
import { leavingClient } from './leaving-client.ts'
import { Deferred } from './deferred.ts'
import { ResponseCover, type CoveredReply } from './response-cover.ts'

type TrailersInput = Parameters<ServerResponse['addTrailers']>[0]

/**
 * `held`: nothing has left. `flowing`: the guard has let it go. `orphaned`: the client got another
 * reply, but the handler may still run, and what it brings may still be recorded.
 */
type Phase = 'held' | 'flowing' | 'orphaned'

export class HeldResponse implements CoveredReply {
  readonly #res: ServerResponse
  readonly #bytesMax: number
  readonly #before: Head
  /** Those who listened before the handler came: what they hear is about the client. */
  readonly #outside: readonly (readonly unknown[])[]
  readonly #real: RealMethods
  readonly #cover: ResponseCover
  readonly #isLeaving: () => boolean
  #phase: Phase = 'held'
  /** Holds the head of an orphan: that of the response itself has left. */
  #scratch: ServerResponse | undefined
  /** The status with which the head was written: whatever is set after it changes nothing. */
  #written: Status | undefined
  /** Of an orphan, the response shows what has left: to those outside, and once all is over. */
  #showsSent = false
  #chunks: Uint8Array[] | undefined
  #bytes = 0
  #ended = false
  #crossed = false
  #closed = false
  #hasTrailers = false
  /** The handler has cut its reply off. */
  #dropped = false
  #error: { readonly error: unknown } | undefined
  #callbacks: Callback[] | undefined
  #produced: Produced | undefined
  #whole = new Deferred<Produced>()
  /** Whether `#whole` has settled. */
  #told = false

  constructor(res: ServerResponse, bytesMax: number) {
    this.#res = res
    this.#bytesMax = bytesMax
    this.#before = headOf(res)
    this.#outside = LAST_EVENTS.map((event) => res.rawListeners(event))
    this.#real = realMethods(res)
    this.#isLeaving = leavingClient(res)
    this.#cover = new ResponseCover(res, this, this.#real)
  }

  /** Whose head the handler sees and changes. */
  get #owner(): ServerResponse {
    return this.#scratch ?? this.#res
  }

  whole(): Promise<Produced> {
    return this.#whole.promise
  }

  /** Made once for each reply. */
  produced(): Produced | undefined {
    return (this.#produced ??= this.#produce())
  }

  #produce(): Produced | undefined {
    const status = asNumber((this.#written ?? this.#owner).statusCode)
    const headers = (): HeaderPair[] => pairs(this.#owner)
    if (this.#crossed) return { kind: 'oversized', status, headers: headers() }
    if (!this.#ended) return undefined
    return {
      kind: 'reply',
      reply: { status, headers: headers(), body: joined(this.#chunks ?? NOTHING) },
    }
  }

  /** As if the handler had not replied yet. */
  reset(): void {
    if (this.#phase === 'flowing') return
    this.#clear()
    this.#cover.showHead(false)
    this.#written = undefined
    this.#showsSent = false
    this.#ended = false
    this.#crossed = false
    this.#produced = undefined
    if (this.#hasTrailers) this.#real.addTrailers.call(this.#res, {})
    this.#hasTrailers = false
    this.#restoreHead()
    // Whoever has waited in vain so far waits on; whoever was told asks again.
    if (this.#told) this.#whole = new Deferred<Produced>()
    this.#told = false
  }

  /** The framework's error handling has been given this error. */
  failed(error: unknown): void {
    this.#error = { error }
    this.#giveUpIfCutOff()
  }

  /** Lets go what was held, with these headers added. What comes after flows through. */
  deliver(headers: readonly HeaderPair[]): void {
    const chunks = this.#chunks ?? NOTHING
    const callbacks = this.#callbacks ?? NOTHING
    this.#release()
    this.#cover.letSocketGo()
    this.#clear()
    const res = this.#res
    if (this.#written !== undefined) setStatus(res, this.#written)
    const { setHeader, write, end, destroy, flushHeaders } = this.#real
    for (const [name, value] of headers) setHeader.call(res, name, value)
    // In one piece its length is stated, and then there is no room for trailers.
    const isWhole = this.#ended && !this.#crossed && !this.#hasTrailers
    if (!isWhole) {
      for (const chunk of chunks) (write as (chunk: Uint8Array) => boolean).call(res, chunk)
      // Those who wait for events want to know at once that they will come.
      if (this.headWritten && chunks.length === 0) flushHeaders.call(res)
    }
    if (this.#ended) {
      const body = isWhole ? joined(chunks) : NO_BYTES
      if (this.#closed) return this.#endUnheard(body, callbacks)
      return endWith(res, body, end, () => runAll(callbacks))
    }
    if (this.#dropped) destroy.call(res)
    else process.nextTick(() => this.#resume(callbacks))
    this.#emitHeldClose()
  }

  /** A handler may wait for the end of its reply, of which Node is silent on a dead socket. */
  #endUnheard(body: Uint8Array, callbacks: readonly Callback[]): void {
    let isFinished = false
    this.#res.once('finish', () => {
      isFinished = true
    })
    endWith(this.#res, body, this.#real.end)
    process.nextTick(() => {
      if (!isFinished) this.#emitTo('finish', [], (listener) => !this.#isOutside(listener))
      runAll(callbacks)
    })
    this.#emitHeldClose()
  }

  /** Sends another reply in place of the held one. What the handler brings stays here. */
  replace(reply: HttpReply): void {
    const head = headOf(this.#res)
    this.#release()
    this.#restoreHead()
    sendReply(this.#res, reply, this.#real)
    this.#orphan(head)
    if (this.#crossed) this.#clear()
    if (this.#ended || this.#dropped) process.nextTick(() => this.#endOrphan())
    else if (this.#crossed) process.nextTick(() => this.#resume(this.#takeCallbacks()))
    this.#emitHeldClose()
  }

  /**
   * Steps aside without sending anything. Returns whether somebody else can still reply: not
   * where the handler has cut the client off itself.
   */
  letGo(): boolean {
    const callbacks = this.#callbacks ?? NOTHING
    this.#release()
    this.#cover.letSocketGo()
    this.#clear()
    if (this.#dropped) this.#real.destroy.call(this.#res)
    else this.#restoreHead()
    runAll(callbacks)
    this.#emitHeldClose()
    return !this.#dropped
  }

  #clear(): void {
    this.#chunks = undefined
    this.#bytes = 0
  }

  #callBack(callback: Callback): void {
    this.#callbacks = added(this.#callbacks, callback)
  }

  #takeCallbacks(): readonly Callback[] {
    const callbacks = this.#callbacks ?? NOTHING
    this.#callbacks = undefined
    return callbacks
  }

  #restoreHead(): void {
    const { setHeader, removeHeader } = this.#real
    const owner = this.#owner
    for (const name of owner.getHeaderNames()) removeHeader.call(owner, name)
    for (const [name, value] of this.#before.headers) setHeader.call(owner, name, value)
    setStatus(owner, this.#before)
  }

  #release(): void {
    this.#phase = 'flowing'
    this.#cover.takeAway()
  }

  #emitHeldClose(): void {
    if (this.#closed) process.nextTick(() => this.emit('close'))
  }

  #resume(callbacks: readonly Callback[]): void {
    runAll(callbacks)
    this.#real.emit.call(this.#res, 'drain')
  }

  /** The handler goes on with a response of its own, of which only the record will know. */
  #orphan({ headers, ...status }: Head): void {
    const scratch = new ServerResponse(this.#res.req)
    for (const [name, value] of headers) scratch.setHeader(name, value)
    setStatus(scratch, status)
    this.#scratch = scratch
    this.#phase = 'orphaned'
    this.#cover.showOrphan(scratch)
  }

  get headWritten(): boolean {
    return this.#written !== undefined
  }

  get ended(): boolean {
    return this.#ended
  }

  get isOrphaned(): boolean {
    return this.#phase === 'orphaned'
  }

  get showsSent(): boolean {
    return this.#showsSent
  }

  get shownEnded(): boolean | undefined {
    return this.#phase === 'held' ? this.#ended : undefined
  }

  setHeader(...args: never[]): unknown {
    return this.#changeHead('setHeader', args)
  }

  appendHeader(...args: never[]): unknown {
    return this.#changeHead('appendHeader', args)
  }

  removeHeader(...args: never[]): unknown {
    return this.#changeHead('removeHeader', args)
  }

  #changeHead(name: 'setHeader' | 'appendHeader' | 'removeHeader', args: never[]): unknown {
    const real: (...args: never[]) => unknown = this.#real[name]
    if (this.#phase === 'flowing') return real.apply(this.#res, args)
    if (this.headWritten) throw headersSentError(name)
    return real.apply(this.#owner, args)
  }

  write(chunk: unknown, encoding?: unknown, callback?: unknown): boolean {
    if (this.#phase === 'flowing') return Boolean(this.#pass('write', [chunk, encoding, callback]))
    const done = callbackOf(encoding, callback)
    if (this.#ended) {
      const error = codedError(Error, 'write after end', 'ERR_STREAM_WRITE_AFTER_END')
      process.nextTick(() => done?.(error))
      return false
    }
    const bytes = toBytes(chunk, encoding)
    this.#begin()
    this.#push(bytes)
    // Until the guard has let the head go, a writer that respects backpressure waits.
    if (this.#crossed && this.#phase === 'held') {
      if (done !== undefined) this.#callBack(done)
      return false
    }
    if (done !== undefined) process.nextTick(() => done())
    return true
  }

  end(chunk?: unknown, encoding?: unknown, callback?: unknown): unknown {
    if (this.#phase === 'flowing') return this.#pass('end', [chunk, encoding, callback])
    const done = typeof chunk === 'function' ? (chunk as Callback) : callbackOf(encoding, callback)
    // One that was cut off does not become whole by its end, as StreamableFile of Nest 10 tries.
    if (this.#ended || this.#dropped) return this.#res
    const hasChunk = chunk !== undefined && chunk !== null && typeof chunk !== 'function'
    const bytes = hasChunk ? toBytes(chunk, encoding) : NO_BYTES
    this.#begin()
    this.#push(bytes)
    this.#ended = true
    if (done !== undefined) this.#callBack(done)
    this.#tell()
    if (this.#phase === 'orphaned') process.nextTick(() => this.#endOrphan())
    return this.#res
  }

  /** Tells the handler's side that all is over, also where it has cut its reply off. */
  #endOrphan(): void {
    runAll(this.#takeCallbacks())
    const events = this.#ended ? LAST_EVENTS : (['close'] as const)
    for (const event of events) this.#emitTo(event, [], (one) => !this.#isOutside(one))
    this.#showsSent = true
    this.#cover.letSocketGo()
  }

  /** Writes the head the way Node does: through the response, where others may be listening. */
  #begin(): void {
    if (!this.headWritten) {
      this.#res.writeHead(this.#res.statusCode)
      if (!this.headWritten) this.#headIsWritten()
    }
    if (!this.#crossed && isEndless(String(this.#res.getHeader('content-type') ?? ''))) {
      this.#crossed = true
      this.#tell()
    }
  }

  #headIsWritten(): void {
    this.#written = statusOf(this.#res)
    this.#cover.showHead(true)
  }

  #push(bytes: Uint8Array): void {
    // Nobody is left to get what will not be recorded.
    if (this.#crossed && this.#phase === 'orphaned') return
    if (bytes.length > 0) this.#chunks = added(this.#chunks, bytes)
    this.#bytes += bytes.length
    if (this.#bytes <= this.#bytesMax || this.#crossed) return
    this.#crossed = true
    this.#tell()
  }

  #tell(): void {
    const produced = this.produced()
    if (produced === undefined) return
    this.#told = true
    this.#whole.resolve(produced)
  }

  writeHead(status: number, ...rest: unknown[]): unknown {
    if (this.#phase === 'flowing') return this.#pass('writeHead', [status, ...rest])
    if (this.headWritten) throw headersSentError('writeHead')
    const res = this.#res
    const hasReason = typeof rest[0] === 'string'
    checkHead(status, hasReason ? rest[0] : res.statusMessage)
    const headers = hasReason ? rest[1] : (rest[1] ?? rest[0])
    res.statusCode = asNumber(status)
    if (hasReason) res.statusMessage = rest[0] as string
    this.#setHeaders(headersOf(headers), Array.isArray(headers))
    this.#headIsWritten()
    return res
  }

  /** They replace what was set before; but in a list, a name may come twice. */
  #setHeaders(headers: readonly HeldHeader[], isList: boolean): void {
    const { setHeader, appendHeader, removeHeader } = this.#real
    const owner = this.#owner
    if (isList) for (const [name] of headers) removeHeader.call(owner, name)
    for (const [name, value] of headers) {
      if (!isList) setHeader.call(owner, name, value)
      else appendHeader.call(owner, name, typeof value === 'number' ? String(value) : value)
    }
  }

  flushHeaders(): void {
    if (this.#phase === 'flowing') this.#real.flushHeaders.call(this.#res)
    else this.#begin()
  }

  /** They leave with the first reply. They are of one message, so no replay has them. */
  addTrailers(trailers: TrailersInput): void {
    if (this.#phase === 'orphaned') return
    this.#hasTrailers = true
    this.#real.addTrailers.call(this.#res, trailers)
  }

  emit(event: string | symbol, ...args: unknown[]): boolean {
    if (event === 'close' && this.#phase === 'held') {
      this.#closed = true
      this.#cover.hideEnd()
      this.#giveUpIfCutOff()
      return false
    }
    if (this.#phase === 'orphaned' && LAST_EVENTS.some((last) => last === event)) {
      return this.#emitOutside(event, args)
    }
    return this.#real.emit.call(this.#res, event, ...args)
  }

  /** They are to see what the client has got, whatever the handler does. */
  #emitOutside(event: string | symbol, args: unknown[]): boolean {
    const before = this.#showsSent
    this.#showsSent = true
    try {
      return this.#emitTo(event, args, (listener) => this.#isOutside(listener))
    } finally {
      this.#showsSent = before
    }
  }

  #isOutside(listener: unknown): boolean {
    return this.#outside.some((listeners) => listeners.includes(listener))
  }

  #emitTo(event: string | symbol, args: unknown[], isMeant: (one: unknown) => boolean): boolean {
    const meant = this.#res.rawListeners(event).filter((listener) => isMeant(listener))
    for (const listener of meant) Reflect.apply(listener, this.#res, args)
    return meant.length > 0
  }

  destroy(error?: Error): unknown {
    if (this.#phase === 'flowing' || this.#isLeaving()) return this.#pass('destroy', [error])
    // A whole reply stands; without one, this is how the handler says that none will come.
    if (this.#ended) return this.#res
    const reason = error ?? this.#error?.error
    this.#drop(reason ?? new Error('the handler destroyed its response without a reply'))
    return this.#res
  }

  /**
   * After an error, a reply that has begun is cut off by Express. If it was not all there by
   * then, it never will be.
   */
  #giveUpIfCutOff(): void {
    if (this.#error === undefined || !this.#closed || !this.headWritten || this.#ended) return
    this.#drop(this.#error.error)
  }

  #drop(reason: unknown): void {
    const isNew = !this.#dropped
    this.#dropped = true
    if (isNew && this.#phase === 'orphaned') process.nextTick(() => this.#endOrphan())
    if (this.#crossed) return
    this.#told = true
    this.#whole.reject(reason)
  }

  #pass(name: 'write' | 'end' | 'writeHead' | 'destroy', args: readonly unknown[]): unknown {
    const method = this.#real[name] as (...args: unknown[]) => unknown
    return method.apply(this.#res, [...args])
  }
}

/** By these a response says that it is over. */
const LAST_EVENTS = ['prefinish', 'finish', 'close'] as const

const NO_BYTES = new Uint8Array(0)
const NOTHING: readonly never[] = []

/** Most have one, so the list is made with it. */
function added<Item>(list: Item[] | undefined, item: Item): Item[] {
  if (list === undefined) return [item]
  list.push(item)
  return list
}
