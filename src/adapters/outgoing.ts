/** How a Node response is read and written, as far as we have to do it in its place. */
import type { ServerResponse } from 'node:http'
import type { HttpReply } from '../http/exchange.ts'
import type { HeaderPair } from '../http/stored-headers.ts'

export type HeaderValue = string | number | readonly string[]
export type HeldHeader = readonly [name: string, value: HeaderValue]

export type Callback = (error?: Error | null) => void

export interface Status {
  readonly statusCode: number
  readonly statusMessage: string
}

export interface Head extends Status {
  readonly headers: readonly HeldHeader[]
}

export function statusOf({ statusCode, statusMessage }: Status): Status {
  return { statusCode, statusMessage }
}

export function setStatus(res: ServerResponse, { statusCode, statusMessage }: Status): void {
  res.statusCode = statusCode
  res.statusMessage = statusMessage
}

export function headOf(res: ServerResponse): Head {
  const { statusCode, statusMessage } = res
  return { headers: readHeaders(res), statusCode, statusMessage }
}

/** Express takes a status as text too. */
export function asNumber(status: unknown): number {
  return Number(status)
}

/** The methods of a response that we put aside and call later. */
export interface RealMethods {
  readonly write: ServerResponse['write']
  readonly end: ServerResponse['end']
  readonly writeHead: ServerResponse['writeHead']
  readonly flushHeaders: ServerResponse['flushHeaders']
  readonly setHeader: ServerResponse['setHeader']
  readonly appendHeader: ServerResponse['appendHeader']
  readonly removeHeader: ServerResponse['removeHeader']
  readonly emit: ServerResponse['emit']
  readonly destroy: ServerResponse['destroy']
  readonly addTrailers: ServerResponse['addTrailers']
}

/** Of the last response: those of most are the same. */
let lastReal: RealMethods | undefined

export function realMethods(res: ServerResponse): RealMethods {
  if (lastReal !== undefined && hasMethods(res, lastReal)) return lastReal
  const { write, end, writeHead, flushHeaders, emit, destroy, addTrailers } = res
  const { setHeader, appendHeader, removeHeader } = res
  lastReal = {
    write,
    end,
    writeHead,
    flushHeaders,
    setHeader,
    appendHeader,
    removeHeader,
    emit,
    destroy,
    addTrailers,
  }
  return lastReal
}

function hasMethods(res: ServerResponse, real: RealMethods): boolean {
  return (
    res.write === real.write &&
    res.end === real.end &&
    res.writeHead === real.writeHead &&
    res.flushHeaders === real.flushHeaders &&
    res.setHeader === real.setHeader &&
    res.appendHeader === real.appendHeader &&
    res.removeHeader === real.removeHeader &&
    res.emit === real.emit &&
    res.destroy === real.destroy &&
    res.addTrailers === real.addTrailers
  )
}

/** Sends a reply that no handler has produced. Headers set earlier by others stay. */
export function sendReply(
  res: ServerResponse,
  reply: HttpReply,
  real: Pick<RealMethods, 'end' | 'setHeader' | 'appendHeader'> = res,
): void {
  res.statusCode = reply.status
  const seen = new Set<string>()
  for (const [name, value] of reply.headers) {
    if (seen.has(name)) real.appendHeader.call(res, name, value)
    else real.setHeader.call(res, name, value)
    seen.add(name)
  }
  // Node states it by itself, but not once a handler's own has been taken back.
  if (reply.status !== 204 && reply.status !== 304) {
    real.setHeader.call(res, 'Content-Length', reply.body.byteLength)
  }
  endWith(res, reply.body, real.end)
}

/** In one piece, so that Node states its length. */
export function endWith(
  res: ServerResponse,
  body: Uint8Array,
  end: ServerResponse['end'],
  callback?: () => void,
): void {
  const finish = end as (chunk?: Uint8Array, encoding?: undefined, callback?: () => void) => unknown
  finish.call(res, body.byteLength === 0 ? undefined : body, undefined, callback)
}

export function joined(chunks: readonly Uint8Array[]): Uint8Array {
  return chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks)
}

export function readHeaders(res: ServerResponse): HeldHeader[] {
  const headers: HeldHeader[] = []
  // Node has it on every outgoing message; its types know it on requests only.
  const names = (res as unknown as { getRawHeaderNames(): string[] }).getRawHeaderNames()
  for (const name of names) {
    const value = res.getHeader(name)
    if (value !== undefined) headers.push([name, value])
  }
  return headers
}

export function pairs(res: ServerResponse): HeaderPair[] {
  return readHeaders(res).flatMap(([name, value]) =>
    typeof value === 'object'
      ? value.map((one): HeaderPair => [name.toLowerCase(), one])
      : [[name.toLowerCase(), String(value)] as const],
  )
}

/** `writeHead` takes an object, a list of pairs, or one flat list of names and values. */
export function headersOf(headers: unknown): HeldHeader[] {
  if (headers === undefined || headers === null) return []
  if (!Array.isArray(headers)) return Object.entries(headers as Record<string, HeaderValue>)
  const list: readonly unknown[] = headers
  if (Array.isArray(list[0])) return list as HeldHeader[]
  if (list.length % 2 !== 0) {
    throw codedError(
      TypeError,
      'a flat list of headers has a value for each name',
      'ERR_INVALID_ARG_VALUE',
    )
  }
  const out: HeldHeader[] = []
  for (let i = 0; i < list.length; i += 2) out.push([String(list[i]), list[i + 1] as HeaderValue])
  return out
}

/** As Node refuses it, so that the error still reaches the handler that made it. */
export function checkHead(status: unknown, message: unknown): void {
  const code = Number(status)
  if (!(code >= 100 && code < 1000)) {
    const message = `Invalid status code: ${String(status)}`
    throw codedError(RangeError, message, 'ERR_HTTP_INVALID_STATUS_CODE')
  }
  // Tab and every visible character of Latin 1: what a header may hold.
  if (typeof message === 'string' && !/^[\t\x20-\x7e\x80-\xff]*$/.test(message)) {
    throw codedError(TypeError, 'Invalid character in statusMessage', 'ERR_INVALID_CHAR')
  }
}

export function toBytes(chunk: unknown, encoding: unknown): Uint8Array {
  if (typeof chunk === 'string') {
    const name = typeof encoding === 'string' ? (encoding as BufferEncoding) : 'utf8'
    return Buffer.from(chunk, name)
  }
  // A copy: the caller may reuse its buffer once `write` has called back.
  if (chunk instanceof Uint8Array) return Buffer.from(chunk)
  const message = `a reply is written as a string or bytes, got ${typeof chunk}`
  throw codedError(TypeError, message, 'ERR_INVALID_ARG_TYPE')
}

export function headersSentError(name: string): Error {
  return codedError(Error, `Cannot ${name} after the reply has begun`, 'ERR_HTTP_HEADERS_SENT')
}

export function codedError(
  type: new (message: string) => Error,
  message: string,
  code: string,
): Error {
  return Object.assign(new type(message), { code })
}

export function callbackOf(encoding: unknown, callback: unknown): Callback | undefined {
  if (typeof encoding === 'function') return encoding as Callback
  return typeof callback === 'function' ? (callback as Callback) : undefined
}

export function runAll(callbacks: readonly Callback[]): void {
  for (const callback of callbacks) callback()
}

/** Headers about one body: a reply with another one must not have them. */
export const ABOUT_BODY: ReadonlySet<string> = new Set([
  'content-disposition',
  'content-encoding',
  'content-language',
  'content-length',
  'content-location',
  'content-range',
  'content-type',
  'etag',
  'last-modified',
  'location',
  'transfer-encoding',
])
