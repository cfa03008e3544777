/** Keeps the body of a Fastify request for the fingerprint, and leaves it for the parsers. */
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import type { Readable } from 'node:stream'
import type { FastifyRequest } from 'fastify'
import { InvalidRequestError } from '../../core/errors.ts'
import type { ExchangeBody } from '../../http/guard/exchange.ts'
import { isHttp2 } from '../node-http/http-version.ts'

/** Headers and body as the client sent them, before parsers and validators change them. */
export interface OriginalRequest {
  readonly headers: IncomingHttpHeaders
  readonly body: ExchangeBody
}

/** Set on the request itself: entries of a `WeakMap` live until a full garbage collection. */
const ORIGINAL = Symbol('oncekey.original')

type RequestWithOriginal = FastifyRequest & { [ORIGINAL]?: OriginalRequest }

/**
 * Reads the body from `payload`, up to one chunk more than `bytesMax`, and puts it back with
 * `unshift`. Parsers then read it from the payload or from the raw request.
 */
export async function keepOriginal(
  request: RequestWithOriginal,
  payload: Readable,
  bytesMax: number,
): Promise<void> {
  if (isHttp2(request.raw)) {
    throw new InvalidRequestError(
      'oncekey/fastify cannot capture replies over HTTP/2: let a proxy terminate HTTP/2 and ' +
        'connect to this server over HTTP/1.1',
    )
  }
  // A copy, because schema validation may convert headers or remove those it does not name.
  const headers = { ...request.raw.headers }
  request[ORIGINAL] = { headers, body: await peek(request.raw, payload, bytesMax) }
}

export function originalOf(request: RequestWithOriginal): OriginalRequest {
  const original = request[ORIGINAL]
  if (original !== undefined) return original
  throw new InvalidRequestError(
    `the body of ${request.method} ${request.url} was not kept, because the preParsing hooks ` +
      'did not run',
  )
}

function peek(
  raw: IncomingMessage,
  payload: Readable,
  bytesMax: number,
): Promise<ExchangeBody> | ExchangeBody {
  // Requests of `app.inject()` have neither `complete` nor a reliable length.
  if (payload === raw && typeof raw.complete === 'boolean') {
    const { 'content-length': length, 'transfer-encoding': encoding } = raw.headers
    if (encoding === undefined && (length === undefined || Number(length) === 0)) {
      return { kind: 'none' }
    }
    if (Number(length) > bytesMax) return { kind: 'too_large' }
  }
  if (payload.readableObjectMode) {
    throw new InvalidRequestError(
      'a preParsing hook has replaced the body with a stream of objects, which cannot be ' +
        'compared with a retry: return a stream of bytes',
    )
  }
  return payload === raw ? readAndPutBack(payload, bytesMax) : peekDecoded(payload, bytesMax)
}

/** An earlier hook has replaced the request with another stream, which decodes the body. */
async function peekDecoded(payload: Readable, bytesMax: number): Promise<ExchangeBody> {
  const body = await readAndPutBack(payload, bytesMax)
  return body.kind === 'bytes' ? { ...body, isDecoded: true } : body
}

function readAndPutBack(payload: Readable, bytesMax: number): Promise<ExchangeBody> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = []
    let bytes = 0
    const stop = () => {
      payload.off('readable', onReadable)
      payload.off('close', onClose)
      payload.off('error', onError)
    }
    const onReadable = () => {
      // Never reads beyond the last byte: the stream would emit "end", which it emits only once.
      while (payload.readableLength > 0 && bytes <= bytesMax) {
        const chunk = Buffer.from(payload.read() as Buffer | string)
        chunks.push(chunk)
        bytes += chunk.length
      }
      if (bytes <= bytesMax && !hasArrived(payload)) return
      stop()
      const whole = Buffer.concat(chunks)
      if (whole.length > 0) payload.unshift(whole)
      resolve(toBody(whole, bytesMax))
    }
    const onError = (error: Error) => {
      stop()
      reject(asClientError(error))
    }
    const onClose = () => onError(new Error('request aborted'))
    if (payload.destroyed) return onClose()
    payload.on('readable', onReadable)
    payload.on('close', onClose)
    payload.on('error', onError)
    if (hasArrived(payload)) onReadable()
  })
}

function toBody(whole: Buffer, bytesMax: number): ExchangeBody {
  if (whole.length > bytesMax) return { kind: 'too_large' }
  return whole.length === 0 ? { kind: 'none' } : { kind: 'bytes', bytes: whole }
}

/** Whether the last byte has arrived. Streams other than requests have it only in their state. */
function hasArrived(payload: Readable): boolean {
  const { complete, _readableState: state } = payload as {
    readonly complete?: unknown
    readonly _readableState?: { readonly ended?: unknown }
  }
  return typeof complete === 'boolean' ? complete : state?.ended === true
}

/** Gives the error status 400, as Fastify does for incomplete bodies, so that it is no 500. */
function asClientError(error: Error & { readonly statusCode?: unknown }): Error {
  const { statusCode } = error
  if (typeof statusCode === 'number' && statusCode >= 400) return error
  return Object.assign(error, { statusCode: 400 })
}
