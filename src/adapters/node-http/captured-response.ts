/**
 * Captures what a handler writes to a Node response until the guard decides what the client gets.
 * `headersSent`, `writableEnded` and the result of `write` look to the handler as if the reply had
 * been sent, so frameworks behave as they do without the guard.
 *
 * `reply-state.ts` has the states of a reply and a chart of them. Beside its state, a reply has
 * `#produced`, which is what the guard records. Above the size limit, `#produced` is `oversized`:
 * only the head is recorded, and the writer waits until the guard delivers. An oversized reply
 * can still end or be cut off. Three facts are independent of the state and have their own fields:
 * trailers, a `close` event that waits, and whether the promise of `whole()` has settled.
 *
 * Tests: test/adapters/node-http/destroyed-response.test.ts, test/adapters/express/*.test.ts,
 * test/adapters/adapter-cases.test.ts.
 */
import { NO_BYTES } from '../../core/bytes.ts'
import type { ServerResponse } from 'node:http'
import { isEndless } from '../../http/reply/endless.ts'
import type { HttpReply, Produced } from '../../http/guard/exchange.ts'
import type { HeaderPair } from '../../http/reply/stored-headers.ts'
import { Deferred } from './deferred.ts'
import {
  emitOutside,
  emitToHandler,
  isLastEvent,
  LAST_EVENTS,
  outsideListeners,
  type OutsideListeners,
} from './last-events.ts'
import { clientLeavingCheck } from './client-leaving.ts'
import { headersSentError, writeAfterEndError } from './node-errors.ts'
import { added, callbackOf, joined, runAll, toBytes, type Callback } from './reply-body.ts'
import {
  afterDestroy,
  afterEnd,
  afterReplace,
  afterReset,
  isCaptured,
  isCutOff,
  isEnded,
  isOrphaned,
  type ReplyState,
} from './reply-state.ts'
import { ResponseCover } from './response-cover.ts'
import {
  checkHead,
  headerPairs,
  headOf,
  replaceHeaders,
  scratchResponse,
  setHead,
  setStatus,
  statusNumber,
  statusOf,
  type Head,
  type Status,
} from './response-head.ts'
import { realMethods, type CapturedReply, type RealMethods } from './response-methods.ts'
import { endWith, sendReply } from './send-reply.ts'

type TrailersInput = Parameters<ServerResponse['addTrailers']>[0]

const NOTHING: readonly never[] = []

export interface ReplyListener {
  /** The reply is whole. Called in the async context of the code that replied. */
  readonly replied?: () => void
}

export class CapturedResponse implements CapturedReply {
  readonly #res: ServerResponse
  readonly #bytesMax: number
  readonly #listener: ReplyListener
  /** The head before the handler ran. */
  readonly #before: Head
  readonly #outside: OutsideListeners
  readonly #real: RealMethods
  readonly #cover: ResponseCover
  readonly #isClientLeaving: () => boolean
  #state: ReplyState = 'open'
  /** Has the head of an orphan, which is recorded and never sent. */
  #scratch: ServerResponse | undefined
  /** The status when the head was written. A status that is set later has no effect. */
  #writtenStatus: Status | undefined
  #chunks: Uint8Array[] | undefined
  #bytes = 0
  #callbacks: Callback[] | undefined
  #hasTrailers = false
  /** The connection closed during the capture, and the `close` event waits for the guard. */
  #isCloseWithheld = false
  /** The last error that the framework's error handling got. */
  #error: { readonly error: unknown } | undefined
  #produced: Produced | undefined
  #whole = new Deferred<Produced>()
  #isWholeSettled = false

  constructor(res: ServerResponse, bytesMax: number, listener: ReplyListener = {}) {
    this.#res = res
    this.#bytesMax = bytesMax
    this.#listener = listener
    this.#before = headOf(res)
    this.#outside = outsideListeners(res)
    this.#real = realMethods(res)
    this.#isClientLeaving = clientLeavingCheck(res)
    this.#cover = new ResponseCover(res, this, this.#real)
  }

  get isCaptured(): boolean {
    return isCaptured(this.#state)
  }

  get isOrphaned(): boolean {
    return isOrphaned(this.#state)
  }

  get isEnded(): boolean {
    return isEnded(this.#state)
  }

  get #isOversized(): boolean {
    return this.#produced?.kind === 'oversized'
  }

  get isHeadWritten(): boolean {
    return this.#writtenStatus !== undefined
  }

  /** The response whose head the handler reads and changes. */
  get #headOwner(): ServerResponse {
    return this.#scratch ?? this.#res
  }

  // Called by the guard.

  /** Resolves when the reply has ended or is oversized; rejects when the handler cuts it off. */
  whole(): Promise<Produced> {
    return this.#whole.promise
  }

  produced(): Produced | undefined {
    return this.#produced
  }

  /** Forgets the reply, so that the handler can write another one. */
  reset(): void {
    if (this.#state === 'flowing') return
    this.#clear()
    this.#cover.showHead(false)
    this.#cover.view = 'handler'
    this.#writtenStatus = undefined
    this.#produced = undefined
    this.#state = afterReset(this.#state)
    if (this.#hasTrailers) this.#real.addTrailers.call(this.#res, {})
    this.#hasTrailers = false
    this.#restoreHead()
    // A caller that still waits gets the next reply. A caller that got one calls `whole()` again.
    if (this.#isWholeSettled) this.#whole = new Deferred<Produced>()
    this.#isWholeSettled = false
  }

  /** The framework's error handling got this error. */
  failed(error: unknown): void {
    this.#error = { error }
    this.#cutOffIfAborted()
  }

  /** The application has recovered from that error. */
  recovered(): void {
    this.#error = undefined
  }

  /** Sends the captured reply with these headers added. Later calls go to the real response. */
  deliver(headers: readonly HeaderPair[]): void {
    const chunks = this.#chunks ?? NOTHING
    const callbacks = this.#callbacks ?? NOTHING
    const state = this.#state
    this.#stopCapture()
    this.#cover.restoreSocket()
    this.#clear()
    const res = this.#res
    if (this.#writtenStatus !== undefined) setStatus(res, this.#writtenStatus)
    const { setHeader, write, end, destroy, flushHeaders } = this.#real
    for (const [name, value] of headers) setHeader.call(res, name, value)
    // A body in one piece has a Content-Length, and then HTTP does not allow trailers.
    const isOnePiece = isEnded(state) && !this.#isOversized && !this.#hasTrailers
    if (!isOnePiece) {
      for (const chunk of chunks) (write as (chunk: Uint8Array) => boolean).call(res, chunk)
      // A client of an event stream waits for the head before the first event.
      if (this.isHeadWritten && chunks.length === 0) flushHeaders.call(res)
    }
    if (isEnded(state)) {
      const body = isOnePiece ? joined(chunks) : NO_BYTES
      if (this.#isCloseWithheld) return this.#endForHandler(body, callbacks)
      return endWith(res, body, end, () => runAll(callbacks))
    }
    if (isCutOff(state)) destroy.call(res)
    else process.nextTick(() => this.#resume(callbacks))
    this.#emitWithheldClose()
  }

  /** Sends another reply than the captured one. The handler continues as an orphan. */
  replace(reply: HttpReply): void {
    const head = headOf(this.#res)
    const state = this.#state
    this.#stopCapture()
    this.#restoreHead()
    sendReply(this.#res, reply, this.#real)
    this.#scratch = scratchResponse(this.#res.req, head)
    this.#cover.showOrphan(this.#scratch)
    this.#state = afterReplace(state)
    if (this.#isOversized) this.#clear()
    if (this.#state !== 'orphan_open') process.nextTick(() => this.#endOrphan())
    else if (this.#isOversized) process.nextTick(() => this.#resume(this.#takeCallbacks()))
    this.#emitWithheldClose()
  }

  /**
   * Stops the capture without sending anything. Returns whether the framework can still reply:
   * `false` when the handler has cut the client off.
   */
  withdraw(): boolean {
    const callbacks = this.#callbacks ?? NOTHING
    const wasCutOff = isCutOff(this.#state)
    this.#stopCapture()
    this.#cover.restoreSocket()
    this.#clear()
    if (wasCutOff) this.#real.destroy.call(this.#res)
    else this.#restoreHead()
    runAll(callbacks)
    this.#emitWithheldClose()
    return !wasCutOff
  }

  #stopCapture(): void {
    this.#state = 'flowing'
    this.#cover.takeAway()
  }

  #clear(): void {
    this.#chunks = undefined
    this.#bytes = 0
  }

  #takeCallbacks(): readonly Callback[] {
    const callbacks = this.#callbacks ?? NOTHING
    this.#callbacks = undefined
    return callbacks
  }

  #restoreHead(): void {
    setHead(this.#headOwner, this.#before, this.#real)
  }

  /** Tells a writer that waits for backpressure to end that it can continue. */
  #resume(callbacks: readonly Callback[]): void {
    runAll(callbacks)
    this.#real.emit.call(this.#res, 'drain')
  }

  /** Emits `finish` itself where Node does not, on a closed socket: the handler may wait for it. */
  #endForHandler(body: Uint8Array, callbacks: readonly Callback[]): void {
    let isFinished = false
    this.#res.once('finish', () => {
      isFinished = true
    })
    endWith(this.#res, body, this.#real.end)
    process.nextTick(() => {
      if (!isFinished) emitToHandler(this.#res, this.#outside, 'finish')
      runAll(callbacks)
    })
    this.#emitWithheldClose()
  }

  #emitWithheldClose(): void {
    if (this.#isCloseWithheld) process.nextTick(() => this.emit('close'))
  }

  /** Emits the last events to the handler's listeners, and then shows what the client got. */
  #endOrphan(): void {
    runAll(this.#takeCallbacks())
    const events = this.isEnded ? LAST_EVENTS : (['close'] as const)
    for (const event of events) emitToHandler(this.#res, this.#outside, event)
    this.#cover.view = 'client'
    this.#cover.restoreSocket()
  }

  // Called by the handler: these methods replace those of the response.

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
    if (this.#state === 'flowing') return real.apply(this.#res, args)
    if (this.isHeadWritten) throw headersSentError(name)
    return real.apply(this.#headOwner, args)
  }

  writeHead(status: number, ...rest: unknown[]): unknown {
    if (this.#state === 'flowing') return this.#pass('writeHead', [status, ...rest])
    if (this.isHeadWritten) throw headersSentError('writeHead')
    const res = this.#res
    const hasReason = typeof rest[0] === 'string'
    checkHead(status, hasReason ? rest[0] : res.statusMessage)
    const headers = hasReason ? rest[1] : (rest[1] ?? rest[0])
    res.statusCode = statusNumber(status)
    if (hasReason) res.statusMessage = rest[0] as string
    replaceHeaders(this.#headOwner, headers, this.#real)
    this.#noteHead()
    return res
  }

  flushHeaders(): void {
    if (this.#state === 'flowing') this.#real.flushHeaders.call(this.#res)
    else this.#writeHeadOnce()
  }

  write(chunk: unknown, encoding?: unknown, callback?: unknown): boolean {
    if (this.#state === 'flowing') return Boolean(this.#pass('write', [chunk, encoding, callback]))
    const done = callbackOf(encoding, callback)
    if (this.isEnded) {
      const error = writeAfterEndError()
      process.nextTick(() => done?.(error))
      return false
    }
    const bytes = toBytes(chunk, encoding)
    this.#writeHeadOnce()
    this.#push(bytes)
    // A writer that respects backpressure waits until the guard delivers the head.
    if (this.#isOversized && this.isCaptured) {
      if (done !== undefined) this.#callbacks = added(this.#callbacks, done)
      return false
    }
    if (done !== undefined) process.nextTick(() => done())
    return true
  }

  end(chunk?: unknown, encoding?: unknown, callback?: unknown): unknown {
    if (this.#state === 'flowing') return this.#pass('end', [chunk, encoding, callback])
    const done = typeof chunk === 'function' ? (chunk as Callback) : callbackOf(encoding, callback)
    // `end` does not complete a reply that was cut off: StreamableFile of Nest 10 calls both.
    if (this.isEnded || isCutOff(this.#state)) return this.#res
    const hasChunk = chunk !== undefined && chunk !== null && typeof chunk !== 'function'
    const bytes = hasChunk ? toBytes(chunk, encoding) : NO_BYTES
    this.#writeHeadOnce()
    this.#push(bytes)
    if (done !== undefined) this.#callbacks = added(this.#callbacks, done)
    this.#finish()
    return this.#res
  }

  #finish(): void {
    const before = this.#state
    this.#state = afterEnd(before)
    // A package that replaces `writeHead` has ended the reply or cut it off.
    if (this.#state === before) return
    this.#produceReply()
    if (before === 'orphan_open') process.nextTick(() => this.#endOrphan())
  }

  /** Trailers leave with the first reply. They belong to one message, so no replay has them. */
  addTrailers(trailers: TrailersInput): void {
    if (this.isOrphaned) return
    this.#hasTrailers = true
    this.#real.addTrailers.call(this.#res, trailers)
  }

  destroy(error?: Error): unknown {
    if (this.#state === 'flowing' || this.#isClientLeaving()) return this.#pass('destroy', [error])
    // A whole reply stands. Without one, the handler says by `destroy` that there will be none.
    if (this.isEnded) return this.#res
    const reason = error ?? this.#error?.error
    this.#cutOff(reason ?? new Error('the handler destroyed its response without a reply'))
    return this.#res
  }

  emit(event: string | symbol, ...args: unknown[]): boolean {
    if (event === 'close' && this.isCaptured) {
      this.#isCloseWithheld = true
      this.#cover.hideEnd()
      this.#cutOffIfAborted()
      return false
    }
    if (this.isOrphaned && isLastEvent(event)) return this.#emitOutside(event, args)
    return this.#real.emit.call(this.#res, event, ...args)
  }

  /** Outside listeners see what the client got, even while the handler still writes. */
  #emitOutside(event: string | symbol, args: unknown[]): boolean {
    const before = this.#cover.view
    this.#cover.view = 'client'
    try {
      return emitOutside(this.#res, this.#outside, event, args)
    } finally {
      this.#cover.view = before
    }
  }

  /** Calls `writeHead` of the response, as Node does: packages such as on-headers replace it. */
  #writeHeadOnce(): void {
    if (!this.isHeadWritten) {
      this.#res.writeHead(this.#res.statusCode)
      if (!this.isHeadWritten) this.#noteHead()
    }
    if (this.#produced !== undefined) return
    if (isEndless(String(this.#res.getHeader('content-type') ?? ''))) this.#produceOversized()
  }

  #noteHead(): void {
    this.#writtenStatus = statusOf(this.#res)
    this.#cover.showHead(true)
  }

  #push(bytes: Uint8Array): void {
    // An oversized orphan is neither sent nor recorded with its body.
    if (this.#isOversized && this.isOrphaned) return
    if (bytes.length > 0) this.#chunks = added(this.#chunks, bytes)
    this.#bytes += bytes.length
    if (this.#bytes > this.#bytesMax && this.#produced === undefined) this.#produceOversized()
  }

  #produceOversized(): void {
    const headers = headerPairs(this.#headOwner)
    this.#settleWhole({ kind: 'oversized', status: this.#status, headers })
  }

  #produceReply(): void {
    // An oversized reply was produced when it crossed the limit.
    if (this.#produced !== undefined) return
    const headers = headerPairs(this.#headOwner)
    const body = joined(this.#chunks ?? NOTHING)
    this.#settleWhole({ kind: 'reply', reply: { status: this.#status, headers, body } })
  }

  get #status(): number {
    return statusNumber((this.#writtenStatus ?? this.#headOwner).statusCode)
  }

  #settleWhole(produced: Produced): void {
    this.#produced = produced
    this.#listener.replied?.()
    this.#isWholeSettled = true
    this.#whole.resolve(produced)
  }

  /** After an error, Express closes the connection of a reply that has begun and not ended. */
  #cutOffIfAborted(): void {
    if (this.#error === undefined || !this.#isCloseWithheld) return
    if (this.isHeadWritten && !this.isEnded) this.#cutOff(this.#error.error)
  }

  #cutOff(reason: unknown): void {
    const before = this.#state
    this.#state = afterDestroy(before)
    if (before === 'orphan_open') process.nextTick(() => this.#endOrphan())
    // The guard records an oversized reply, even one that is cut off later.
    if (this.#isOversized) return
    this.#isWholeSettled = true
    this.#whole.reject(reason)
  }

  #pass(name: 'write' | 'end' | 'writeHead' | 'destroy', args: readonly unknown[]): unknown {
    const method = this.#real[name] as (...args: unknown[]) => unknown
    return method.apply(this.#res, [...args])
  }
}
