/**
 * Holds back what a handler writes to a Node response until the guard lets it go. Everything the
 * handler can see (`headersSent`, `writableEnded`, what `write` returns) looks as if the reply
 * had left, so that frameworks behave as they would without us.
 */
import type { ServerResponse } from 'node:http'
import type { HttpReply, Produced } from '../http/exchange.ts'
import type { HeaderPair } from '../http/stored-headers.ts'

type Callback = (error?: Error | null) => void

/** `held`: nothing has left. `flowing`: the guard has let it go. `void`: it is thrown away. */
type Phase = 'held' | 'flowing' | 'void'

/** Properties of the response that stand in for its own while it is held. */
const SHADOWED = [
  'write',
  'end',
  'writeHead',
  'flushHeaders',
  'setHeader',
  'appendHeader',
  'removeHeader',
  'emit',
  'destroy',
  'headersSent',
  'writableEnded',
  'finished',
  'destroyed',
  '_closed',
] as const

export class HeldResponse {
  readonly #res: ServerResponse
  readonly #bytesMax: number
  readonly #shadowed: ReadonlyMap<string, PropertyDescriptor | undefined>
  readonly #headersBefore: readonly HeldHeader[]
  readonly #real: RealMethods
  #phase: Phase = 'held'
  #chunks: Uint8Array[] = []
  #bytes = 0
  #headWritten = false
  #ended = false
  #crossed = false
  #closed = false
  #callbacks: Callback[] = []
  #whole = deferred<Produced>()

  constructor(res: ServerResponse, bytesMax: number) {
    this.#res = res
    this.#bytesMax = bytesMax
    this.#headersBefore = readHeaders(res)
    this.#real = realMethods(res)
    this.#shadowed = new Map(
      SHADOWED.map((name) => [name, Object.getOwnPropertyDescriptor(res, name)]),
    )
    this.#shadow()
  }

  whole(): Promise<Produced> {
    return this.#whole.promise
  }

  produced(): Produced | undefined {
    const { statusCode: status } = this.#res
    if (this.#crossed) return { kind: 'oversized', status, headers: pairs(this.#res) }
    if (!this.#ended) return undefined
    const body = joined(this.#chunks)
    return { kind: 'reply', reply: { status, headers: pairs(this.#res), body } }
  }

  /** As if the handler had not replied yet. */
  reset(): void {
    this.#clear()
    this.#headWritten = false
    this.#ended = false
    this.#crossed = false
    this.#restoreHeaders()
    this.#whole = deferred<Produced>()
  }

  /** Lets go what was held, with these headers added. What comes after flows through. */
  deliver(headers: readonly HeaderPair[]): void {
    const chunks = this.#chunks
    const callbacks = this.#callbacks
    this.#release('flowing')
    const res = this.#res
    for (const [name, value] of headers) res.setHeader(name, value)
    if (this.#ended && !this.#crossed) {
      endWith(res, joined(chunks), this.#real.end, () => runAll(callbacks))
    } else {
      for (const chunk of chunks) res.write(chunk)
      if (this.#ended) res.end(() => runAll(callbacks))
      else process.nextTick(() => this.#resume(callbacks))
    }
    this.#emitHeldClose()
  }

  /** Sends another reply in place of the held one. What the handler still writes is void. */
  replace(reply: HttpReply): void {
    const callbacks = this.#callbacks
    this.#restoreHeaders()
    this.#release('void')
    sendReply(this.#res, reply, this.#real)
    runAll(callbacks)
    this.#emitHeldClose()
  }

  /** Steps aside without sending anything: somebody else will reply. */
  letGo(): void {
    const callbacks = this.#callbacks
    this.#restoreHeaders()
    this.#release('flowing')
    runAll(callbacks)
    this.#emitHeldClose()
  }

  #clear(): void {
    this.#chunks = []
    this.#bytes = 0
  }

  #restoreHeaders(): void {
    const { setHeader, removeHeader } = this.#real
    for (const name of this.#res.getHeaderNames()) removeHeader.call(this.#res, name)
    for (const [name, value] of this.#headersBefore) setHeader.call(this.#res, name, value)
    this.#res.statusCode = 200
    // `undefined` is how Node says: the usual phrase for the code.
    this.#res.statusMessage = undefined as unknown as string
  }

  /** Takes the shadows away. A void response keeps swallowing what the handler writes. */
  #release(phase: 'flowing' | 'void'): void {
    this.#phase = phase
    this.#clear()
    for (const [name, descriptor] of this.#shadowed) {
      if (phase === 'void' && (name === 'write' || name === 'end')) continue
      if (descriptor !== undefined) Object.defineProperty(this.#res, name, descriptor)
      else Reflect.deleteProperty(this.#res, name)
    }
    if (this.#closed) Object.assign(this.#res, { destroyed: true, _closed: true })
  }

  #emitHeldClose(): void {
    if (this.#closed) this.#res.emit('close')
  }

  #resume(callbacks: readonly Callback[]): void {
    runAll(callbacks)
    this.#res.emit('drain')
  }

  #shadow(): void {
    const res = this.#res
    const methods = {
      write: (chunk: unknown, encoding?: unknown, callback?: unknown) =>
        this.#write(chunk, encoding, callback),
      end: (chunk?: unknown, encoding?: unknown, callback?: unknown) =>
        this.#end(chunk, encoding, callback),
      writeHead: (status: number, ...rest: unknown[]) => this.#writeHead(status, rest),
      flushHeaders: () => {
        this.#headWritten = true
      },
      setHeader: this.#unlessSent('setHeader'),
      appendHeader: this.#unlessSent('appendHeader'),
      removeHeader: this.#unlessSent('removeHeader'),
      emit: (event: string | symbol, ...args: unknown[]) => this.#emit(event, args),
      destroy: (error?: Error) => this.#destroy(error),
    }
    for (const [name, value] of Object.entries(methods)) define(res, name, { value, writable: true })
    define(res, 'headersSent', { get: () => this.#headWritten })
    define(res, 'writableEnded', { get: () => this.#ended })
    define(res, 'finished', { get: () => this.#ended, set: () => undefined })
    // The client may be gone; the handler is to finish as if it were not.
    define(res, 'destroyed', { get: () => false, set: () => undefined })
    define(res, '_closed', { get: () => false, set: () => undefined })
  }

  #unlessSent(name: 'setHeader' | 'appendHeader' | 'removeHeader'): (...args: never[]) => unknown {
    const real = this.#real[name] as (...args: never[]) => unknown
    return (...args) => {
      if (this.#headWritten) throw headersSentError(name)
      return real.apply(this.#res, args)
    }
  }

  #write(chunk: unknown, encoding: unknown, callback: unknown): boolean {
    const done = callbackOf(encoding, callback)
    if (this.#phase === 'void') return swallow(done)
    if (this.#ended) {
      const error = codedError('write after end', 'ERR_STREAM_WRITE_AFTER_END')
      process.nextTick(() => done?.(error))
      return false
    }
    this.#headWritten = true
    this.#push(chunk, encoding)
    // Until the guard has let the head go, a writer that respects backpressure waits.
    if (this.#crossed) {
      if (done !== undefined) this.#callbacks.push(done)
      return false
    }
    return swallow(done)
  }

  #end(chunk: unknown, encoding: unknown, callback: unknown): ServerResponse {
    const done = typeof chunk === 'function' ? (chunk as Callback) : callbackOf(encoding, callback)
    if (this.#phase === 'void') {
      swallow(done)
      return this.#res
    }
    if (this.#ended) return this.#res
    if (chunk !== undefined && chunk !== null && typeof chunk !== 'function') {
      this.#push(chunk, encoding)
    }
    this.#headWritten = true
    this.#ended = true
    if (done !== undefined) this.#callbacks.push(done)
    this.#tell()
    return this.#res
  }

  #push(chunk: unknown, encoding: unknown): void {
    const bytes = toBytes(chunk, encoding)
    this.#chunks.push(bytes)
    this.#bytes += bytes.length
    if (this.#bytes <= this.#bytesMax || this.#crossed) return
    this.#crossed = true
    this.#headWritten = true
    this.#tell()
  }

  #tell(): void {
    const produced = this.produced()
    if (produced !== undefined) this.#whole.resolve(produced)
  }

  #writeHead(status: number, rest: readonly unknown[]): ServerResponse {
    if (this.#headWritten) throw headersSentError('writeHead')
    const res = this.#res
    res.statusCode = status
    if (typeof rest[0] === 'string') res.statusMessage = rest[0]
    const headers = typeof rest[0] === 'string' ? rest[1] : rest[0]
    for (const [name, value] of headersOf(headers)) this.#real.setHeader.call(res, name, value)
    this.#headWritten = true
    return res
  }

  #emit(event: string | symbol, args: unknown[]): boolean {
    if (event === 'close') {
      this.#closed = true
      return false
    }
    return this.#real.emit.call(this.#res, event, ...args)
  }

  #destroy(error: Error | undefined): ServerResponse {
    // A whole reply stands; without one, this is how the handler says that none will come.
    const reason = error ?? new Error('the handler destroyed its response without a reply')
    if (!this.#ended && !this.#crossed) this.#whole.reject(reason)
    return this.#res
  }
}

type HeaderValue = string | number | readonly string[]
type HeldHeader = readonly [name: string, value: HeaderValue]

interface RealMethods {
  readonly end: ServerResponse['end']
  readonly setHeader: ServerResponse['setHeader']
  readonly appendHeader: ServerResponse['appendHeader']
  readonly removeHeader: ServerResponse['removeHeader']
  readonly emit: ServerResponse['emit']
}

function realMethods(res: ServerResponse): RealMethods {
  const { end, setHeader, appendHeader, removeHeader, emit } = res
  return { end, setHeader, appendHeader, removeHeader, emit }
}

/** Sends a reply that no handler has produced. Headers set earlier by others stay. */
export function sendReply(
  res: ServerResponse,
  reply: HttpReply,
  { end }: { readonly end: ServerResponse['end'] } = res,
): void {
  res.statusCode = reply.status
  const seen = new Set<string>()
  for (const [name, value] of reply.headers) {
    if (seen.has(name)) res.appendHeader(name, value)
    else res.setHeader(name, value)
    seen.add(name)
  }
  endWith(res, reply.body, end)
}

/** In one piece, so that Node states its length. */
function endWith(
  res: ServerResponse,
  body: Uint8Array,
  end: ServerResponse['end'],
  callback?: () => void,
): void {
  const finish = end as (chunk?: Uint8Array, encoding?: undefined, callback?: () => void) => unknown
  finish.call(res, body.byteLength === 0 ? undefined : body, undefined, callback)
}

function joined(chunks: readonly Uint8Array[]): Uint8Array {
  return chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks)
}

interface Deferred<Value> {
  readonly promise: Promise<Value>
  readonly resolve: (value: Value) => void
  readonly reject: (error: unknown) => void
}

function deferred<Value>(): Deferred<Value> {
  let resolve!: (value: Value) => void
  let reject!: (error: unknown) => void
  const promise = new Promise<Value>((yes, no) => {
    resolve = yes
    reject = no
  })
  // Whoever waits for it hears of a rejection; nobody has to.
  promise.catch(() => undefined)
  return { promise, resolve, reject }
}

function define(target: object, name: string, descriptor: PropertyDescriptor): void {
  Object.defineProperty(target, name, { configurable: true, enumerable: true, ...descriptor })
}

function readHeaders(res: ServerResponse): HeldHeader[] {
  const headers: HeldHeader[] = []
  // Node has it on every outgoing message; its types know it on requests only.
  const names = (res as unknown as { getRawHeaderNames(): string[] }).getRawHeaderNames()
  for (const name of names) {
    const value = res.getHeader(name)
    if (value !== undefined) headers.push([name, value])
  }
  return headers
}

function pairs(res: ServerResponse): HeaderPair[] {
  return readHeaders(res).flatMap(([name, value]) =>
    typeof value === 'object'
      ? value.map((one): HeaderPair => [name.toLowerCase(), one])
      : [[name.toLowerCase(), String(value)] as const],
  )
}

/** `writeHead` takes an object, a list of pairs, or one flat list of names and values. */
function headersOf(headers: unknown): HeldHeader[] {
  if (headers === undefined || headers === null) return []
  if (!Array.isArray(headers)) return Object.entries(headers as Record<string, HeaderValue>)
  const list: readonly unknown[] = headers
  if (Array.isArray(list[0])) return list as HeldHeader[]
  const out: HeldHeader[] = []
  for (let i = 0; i + 1 < list.length; i += 2) out.push([String(list[i]), list[i + 1] as HeaderValue])
  return out
}

function toBytes(chunk: unknown, encoding: unknown): Uint8Array {
  if (typeof chunk === 'string') {
    const name = typeof encoding === 'string' ? (encoding as BufferEncoding) : 'utf8'
    return Buffer.from(chunk, name)
  }
  // A copy: the caller may reuse its buffer once `write` has called back.
  if (chunk instanceof Uint8Array) return Uint8Array.from(chunk)
  const message = `a reply is written as a string or bytes, got ${typeof chunk}`
  throw Object.assign(new TypeError(message), { code: 'ERR_INVALID_ARG_TYPE' })
}

function callbackOf(encoding: unknown, callback: unknown): Callback | undefined {
  if (typeof encoding === 'function') return encoding as Callback
  return typeof callback === 'function' ? (callback as Callback) : undefined
}

function swallow(done: Callback | undefined): true {
  if (done !== undefined) process.nextTick(() => done())
  return true
}

function runAll(callbacks: readonly Callback[]): void {
  for (const callback of callbacks) callback()
}

function headersSentError(name: string): Error {
  return codedError(`Cannot ${name} after the reply has begun`, 'ERR_HTTP_HEADERS_SENT')
}

function codedError(message: string, code: string): Error {
  return Object.assign(new Error(message), { code })
}
