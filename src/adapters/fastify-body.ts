/** Keeps the body of a Fastify request for the fingerprint, and leaves it there for the parsers. */
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import type { Readable } from 'node:stream'
import type { FastifyRequest } from 'fastify'
import { InvalidRequestError } from '../core/errors.ts'
import type { ExchangeBody } from '../http/exchange.ts'
import { isHttp2 } from './http-version.ts'

/** A request as it came, before parsers and validators have changed anything about it. */
export interface Arrival {
  readonly headers: IncomingHttpHeaders
  readonly body: ExchangeBody
}

/** On the request itself: entries of a `WeakMap` outlive their requests by far. */
const ARRIVAL = Symbol('arrival')

type Arrived = FastifyRequest & { [ARRIVAL]?: Arrival }

/**
 * Reads the body from `payload`, up to one chunk more than `bytesMax`, and puts all of it back:
 * parsers read on from there, whether they take it from the payload or from the raw request.
 */
export async function keepArrival(
  request: Arrived,
  payload: Readable,
  bytesMax: number,
): Promise<void> {
  if (isHttp2(request.raw)) {
    throw new InvalidRequestError(
      'oncekey/fastify cannot hold back replies over HTTP/2: let a proxy speak it, and HTTP/1.1 ' +
        'with this server',
    )
  }
  // A copy, now: validation by a schema may convert headers, or remove those it does not name.
  const headers = { ...request.raw.headers }
  request[ARRIVAL] = { headers, body: await peek(request.raw, payload, bytesMax) }
}

export function arrivalOf(request: Arrived): Arrival {
  const arrival = request[ARRIVAL]
  if (arrival !== undefined) return arrival
  throw new InvalidRequestError(
    `the body of ${request.method} ${request.url} was not kept: preParsing hooks did not run`,
  )
}

function peek(
  raw: IncomingMessage,
  payload: Readable,
  bytesMax: number,
): Promise<ExchangeBody> | ExchangeBody {
  // Only what `app.inject()` makes up does not say whether it is complete, nor how long it is.
  if (payload === raw && typeof raw.complete === 'boolean') {
    const { 'content-length': length, 'transfer-encoding': encoding } = raw.headers
    if (encoding === undefined && (length === undefined || Number(length) === 0)) {
      return { kind: 'none' }
    }
    if (Number(length) > bytesMax) return { kind: 'too_large' }
  }
  if (payload.readableObjectMode) {
    throw new InvalidRequestError('a preParsing hook has made a stream of objects of the body')
  }
  return payload === raw ? readAndPutBack(payload, bytesMax) : peekDecoded(payload, bytesMax)
}

/** A hook before us has put another stream in the place of the request: it decodes the body. */
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
      // Never a read beyond the last byte: the stream would say "end", and say it only once.
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

/** Whether the last byte is there. Streams that are no requests tell it in their state only. */
function hasArrived(payload: Readable): boolean {
  const { complete, _readableState: state } = payload as {
    readonly complete?: unknown
    readonly _readableState?: { readonly ended?: unknown }
  }
  return typeof complete === 'boolean' ? complete : state?.ended === true
}

/** As Fastify has it for bodies that do not arrive: nobody's fault, and no 500. */
function asClientError(error: Error & { readonly statusCode?: unknown }): Error {
  const { statusCode } = error
  if (typeof statusCode === 'number' && statusCode >= 400) return error
  return Object.assign(error, { statusCode: 400 })
}
