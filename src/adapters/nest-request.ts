/** A request of Nest, on whichever platform, down to Node's own objects. */
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http'
import type { ExecutionContext } from '@nestjs/common'
import { InvalidRequestError } from '../core/errors.ts'
import type { HttpReply } from '../http/exchange.ts'
import type { HandlerContext } from '../http/handler-context.ts'
import type { HeaderPair } from '../http/stored-headers.ts'
import { isTimedOut, watchTimeLimit, type LimitedRequest } from './fastify-time-limit.ts'
import { takesResponse } from './nest-paths.ts'
import { ABOUT_BODY } from './outgoing.ts'
import { withoutNames } from './route-template.ts'

/** What a request of Express and one of Fastify have in common. Options may name their own type. */
export interface NestRequest {
  readonly method: string
  readonly url: string
  readonly originalUrl: string
  readonly headers: IncomingHttpHeaders
  readonly body?: unknown
  readonly params?: unknown
  readonly query?: unknown
  readonly ip?: string
  /** The key of this request and what its handler may do about it; absent where unprotected. */
  idempotency?: HandlerContext
}

interface PlatformRequest extends NestRequest, LimitedRequest {
  /** Fastify's: what Node has received. */
  readonly raw?: IncomingMessage
  /** Kept by Nest where the app was created with `rawBody: true`. */
  readonly rawBody?: unknown
  /** Express's. A parser of Express 4 marks what it has parsed. */
  readonly _body?: unknown
  readonly route?: { readonly path?: string }
  /** Fastify's. */
  readonly routeOptions?: { readonly url?: string; readonly handlerTimeout?: number }
}

interface PlatformResponse {
  /** Fastify's: what Node will send. */
  readonly raw?: ServerResponse
  /** Fastify's: also where somebody has taken the response away from it. */
  readonly sent?: boolean
  getHeaders(): Readonly<Record<string, number | string | readonly string[] | undefined>>
}

/** One request to a route, and the response that belongs to it. */
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

  /** The body as it was sent, where a parser of Fastify has kept it. Those never decode it. */
  get sentBody(): Uint8Array | undefined {
    if (!this.isFastify) return undefined
    const { rawBody, body } = this.#request
    return [rawBody, body].find((one) => one instanceof Uint8Array)
  }

  /** Whether the handler has asked for the response, and may reply before it returns. */
  get isRepliedByHandler(): boolean {
    return takesResponse(this.#context.getClass(), this.#context.getHandler())
  }

  /** The route's template as the platform matched it; parameter names are of no account. */
  get template(): string {
    const path = this.isFastify ? this.#request.routeOptions?.url : this.#request.route?.path
    return withoutNames(path ?? this.#request.originalUrl.split('?')[0]!)
  }

  /** What the platform's parser has made of the body. */
  parsedBody(): unknown {
    const value = this.#request.body
    const { 'content-type': type = '' } = this.req.headers
    const isParsed = /json|urlencoded/i.test(type)
    // Parsers of Express 4 leave an empty object in place of a body that they leave alone.
    const isMeant = isParsed || !isNothing(value) || this.#request._body === true
    if (value !== undefined && isMeant && !type.startsWith('multipart/')) return value
    throw new InvalidRequestError(
      'the body was read before @Idempotent() and cannot be compared with a retry: read it ' +
        'behind the guards of the route (as FileInterceptor does), or keep it in request.rawBody',
    )
  }

  /**
   * Headers that were set so far and that Node does not know of yet: those of Fastify, which it
   * keeps to itself until it replies.
   */
  headersBefore(): readonly HeaderPair[] {
    if (!this.isFastify) return []
    return Object.entries(this.#response.getHeaders()).flatMap(([name, value]) => {
      if (value === undefined || this.res.hasHeader(name)) return []
      return [value].flat().map((one): HeaderPair => [name, String(one)])
    })
  }

  /** Whether somebody has replied, or is about to, without the handler. */
  get isAnswered(): boolean {
    return this.res.writableEnded || this.#response.sent === true || isTimedOut(this.#request)
  }

  /** Of Fastify: it answers in place of the handler. */
  watchTimeLimit(context: HandlerContext): void {
    watchTimeLimit(this.#request, context)
  }

  /** Protected replies leave as they are recorded: each retry must be able to read them. */
  refuseCompression(): void {
    // On Fastify it happens before the reply gets to us, by plugins that respect this header.
    if (this.isFastify) this.req.headers['x-no-compression'] ??= 'true'
  }
}

function isNothing(value: unknown): boolean {
  if (value === null || value === undefined) return true
  if (typeof value !== 'object' || value instanceof Uint8Array) return false
  return Object.keys(value).length === 0
}

/** A reply that no handler has produced, with what was set for the client before (CORS). */
export function withHeaders(reply: HttpReply, before: readonly HeaderPair[]): HttpReply {
  const own = new Set(reply.headers.map(([name]) => name.toLowerCase()))
  const kept = before.filter(([name]) => !own.has(name) && !ABOUT_BODY.has(name))
  return { ...reply, headers: [...kept, ...reply.headers] }
}

/** Nest sets `@Header()` before interceptors run, also for a reply that is not the handler's. */
export function dropBodyHeaders(res: ServerResponse): void {
  for (const name of ABOUT_BODY) res.removeHeader(name)
}
