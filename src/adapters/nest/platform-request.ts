/** A request to Nest on Express or Fastify, with the request and response objects of Node. */
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http'
import type { ExecutionContext } from '@nestjs/common'
import { InvalidRequestError } from '../../core/errors.ts'
import type { HttpReply } from '../../http/guard/exchange.ts'
import type { HandlerContext } from '../../http/guard/handler-context.ts'
import type { HeaderPair } from '../../http/reply/stored-headers.ts'
import { isTimedOut, watchTimeLimit, type TimeLimitedRequest } from '../fastify/time-limit.ts'
import { takesResponse } from './route.ts'
import { BODY_HEADERS } from '../node-http/response-head.ts'
import { withoutNames } from '../node-http/route-template.ts'

/** The properties that requests of Express and Fastify share. Options may name another type. */
export interface NestRequest {
  readonly method: string
  readonly url: string
  readonly originalUrl: string
  readonly headers: IncomingHttpHeaders
  readonly body?: unknown
  readonly params?: unknown
  readonly query?: unknown
  readonly ip?: string
  /** The idempotency context. `undefined` on unprotected requests: see `idempotencyOf`. */
  idempotency?: HandlerContext
}

interface PlatformRequest extends NestRequest, TimeLimitedRequest {
  /** Fastify only: the request of Node. */
  readonly raw?: IncomingMessage
  /** The unparsed body, if the app was created with `rawBody: true`. */
  readonly rawBody?: unknown
  /** Express 4 only: parsers mark the bodies that they have parsed. */
  readonly _body?: unknown
  /** Express only. */
  readonly route?: { readonly path?: string }
  /** Fastify only. */
  readonly routeOptions?: { readonly url?: string; readonly handlerTimeout?: number }
}

interface PlatformResponse {
  /** Fastify only: the response of Node. */
  readonly raw?: ServerResponse
  /** Fastify only: true also after `reply.hijack()`. */
  readonly sent?: boolean
  getHeaders(): Readonly<Record<string, number | string | readonly string[] | undefined>>
}

/** One request to a route, and its response. */
export class NestCall {
  readonly request: NestRequest
  readonly req: IncomingMessage
  readonly res: ServerResponse
  readonly isFastify: boolean
  readonly #context: ExecutionContext
  readonly #request: PlatformRequest
  readonly #response: PlatformResponse

  constructor(context: ExecutionContext) {
    const http = context.switchToHttp()
    this.#context = context
    this.#request = http.getRequest<PlatformRequest>()
    this.#response = http.getResponse<PlatformResponse>()
    const { raw } = this.#request
    this.request = this.#request
    this.isFastify = raw !== undefined
    this.req = raw ?? (this.#request as unknown as IncomingMessage)
    this.res = this.#response.raw ?? (this.#response as unknown as ServerResponse)
  }

  /** The bytes of the body, if a parser of Fastify has kept them. Fastify decompresses none. */
  get sentBody(): Uint8Array | undefined {
    if (!this.isFastify) return undefined
    const { rawBody, body } = this.#request
    return [rawBody, body].find((one) => one instanceof Uint8Array)
  }

  /** Whether the handler takes the response as an argument, and may reply before it returns. */
  get isRepliedByHandler(): boolean {
    return takesResponse(this.#context.getClass(), this.#context.getHandler())
  }

  /** The template of the route as the platform matched it, without parameter names. */
  get template(): string {
    const path = this.isFastify ? this.#request.routeOptions?.url : this.#request.route?.path
    return withoutNames(path ?? this.#request.originalUrl.split('?')[0]!)
  }

  /** The body as the parser of the platform has read it. */
  parsedBody(): unknown {
    const value = this.#request.body
    const { 'content-type': type = '' } = this.req.headers
    const isParsedType = /json|urlencoded/i.test(type)
    // Parsers of Express 4 set an empty object also for bodies that they do not parse.
    const isParsed = isParsedType || !isEmpty(value) || this.#request._body === true
    if (value !== undefined && isParsed && !type.startsWith('multipart/')) return value
    throw new InvalidRequestError(
      'the body was read before @Idempotent() and cannot be compared with a retry: read it ' +
        'behind the guards of the route (as FileInterceptor does), or keep it in request.rawBody',
    )
  }

  /**
   * The headers that were set so far but are not on the response of Node yet. Fastify keeps them
   * until it replies; Express has none.
   */
  headersBefore(): readonly HeaderPair[] {
    if (!this.isFastify) return []
    return Object.entries(this.#response.getHeaders()).flatMap(([name, value]) => {
      if (value === undefined || this.res.hasHeader(name)) return []
      return [value].flat().map((one): HeaderPair => [name, String(one)])
    })
  }

  /** Whether other code has replied in place of the handler, or is about to. */
  get isAnswered(): boolean {
    return this.res.writableEnded || this.#response.sent === true || isTimedOut(this.#request)
  }

  /** Watches `handlerTimeout` of Fastify, which answers in place of the handler. */
  watchTimeLimit(context: HandlerContext): void {
    watchTimeLimit(this.#request, context)
  }

  /** A reply is recorded as it is sent, and every retry must be able to read it. */
  refuseCompression(): void {
    // Plugins of Fastify compress a reply before it is captured. They respect this header.
    if (this.isFastify) this.req.headers['x-no-compression'] ??= 'true'
  }
}

function isEmpty(value: unknown): boolean {
  if (value === null || value === undefined) return true
  if (typeof value !== 'object' || value instanceof Uint8Array) return false
  return Object.keys(value).length === 0
}

/** Adds headers that were set before the guard, such as those of CORS, to a reply of the guard. */
export function withHeaders(reply: HttpReply, before: readonly HeaderPair[]): HttpReply {
  const own = new Set(reply.headers.map(([name]) => name.toLowerCase()))
  const kept = before.filter(([name]) => !own.has(name) && !BODY_HEADERS.has(name))
  return { ...reply, headers: [...kept, ...reply.headers] }
}

/**
 * Removes headers that describe the body of the handler. Nest sets those of `@Header()` before
 * interceptors run, so a reply in place of the handler would have them too.
 */
export function dropBodyHeaders(res: ServerResponse): void {
  for (const name of BODY_HEADERS) res.removeHeader(name)
}
