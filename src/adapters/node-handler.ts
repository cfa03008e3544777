/** The handler of a request to a Node server, whichever framework calls it. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import { InvalidRequestError, NotExecutedError } from '../core/errors.ts'
import type { Answer, ExchangeBody, HeldHandler, HttpReply, Produced } from '../http/exchange.ts'
import type { HandlerContext } from '../http/handler-context.ts'
import { HeldResponse } from './held-response.ts'
import { sendReply } from './outgoing.ts'
import { HeldRequest, peekBody } from './request-body.ts'

/** What the framework does with a request. */
export interface NodeFlow {
  /** Lets the handler run under its key. */
  readonly enter: (context: HandlerContext) => void
  /** Lets the handler run as if we were not there. */
  readonly pass: () => void
  /** Hands an error to the framework's error handling. */
  readonly fail: (error: unknown) => void
  /** Sends a reply without the handler, where the framework goes on. @default to the response */
  readonly reply?: (reply: HttpReply) => void
  /** See `HeldHandler`. @default true */
  readonly seesErrors?: () => boolean
  /**
   * Whether somebody else has answered, or is about to, before the handler was entered.
   *
   * @default whether the response has ended
   */
  readonly isAnswered?: () => boolean
  /** What a parser before us has made of the body. */
  readonly parsedBody?: () => unknown
}

export class NodeHandler implements HeldHandler {
  readonly #req: IncomingMessage
  readonly #res: ServerResponse
  readonly #flow: NodeFlow
  #held: HeldResponse | undefined
  #heldRequest: HeldRequest | undefined

  constructor(req: IncomingMessage, res: ServerResponse, flow: NodeFlow) {
    this.#req = req
    this.#res = res
    this.#flow = flow
  }

  /** The whole body, which stays readable for as long as this request is ours. */
  body(bytesMax: number): ExchangeBody | Promise<ExchangeBody> {
    const body = this.#readBody(bytesMax)
    return body instanceof Promise ? body.then((read) => this.#keep(read)) : this.#keep(body)
  }

  #keep(body: ExchangeBody): ExchangeBody {
    if (body.kind === 'bytes' && !this.#req.readableEnded) {
      this.#heldRequest = new HeldRequest(this.#req)
    }
    return body
  }

  enter(context: HandlerContext, replyBytesMax: number): void {
    // A time limit, say, has answered while the key was claimed. The client may try again, so
    // this request must run nothing any more.
    if (this.#isAnswered() || this.#res.headersSent) return
    this.hold(replyBytesMax)
    this.#flow.enter(context)
  }

  /** Holds back what is replied from now on, whoever replies. */
  hold(replyBytesMax: number): void {
    this.#held = new HeldResponse(this.#res, replyBytesMax)
  }

  whole(): Promise<Produced> {
    if (this.#held !== undefined) return this.#held.whole()
    return Promise.reject(
      new NotExecutedError('the request was answered by somebody else before its handler ran'),
    )
  }

  produced(): Produced | undefined {
    return this.#held?.produced()
  }

  reset(): void {
    this.#held?.reset()
  }

  failed(error: unknown): void {
    this.#held?.failed(error)
  }

  seesErrors(): boolean {
    return this.#flow.seesErrors?.() ?? true
  }

  act(answer: Answer): void {
    const held = this.#held
    this.#heldRequest?.letGo()
    // Nobody waits for it; and what is on its way to the client must not be cut off by it.
    if (held === undefined && answer.kind !== 'pass' && this.#isAnswered()) return
    switch (answer.kind) {
      case 'pass':
        return this.#flow.pass()
      case 'deliver':
        return held?.deliver(answer.headers)
      case 'reply':
        return held === undefined ? this.#reply(answer.reply) : held.replace(answer.reply)
      case 'error':
        if (held === undefined || held.letGo()) this.#flow.fail(answer.error)
        return
    }
  }

  #isAnswered(): boolean {
    return this.#flow.isAnswered?.() ?? this.#res.writableEnded
  }

  #reply(reply: HttpReply): void {
    if (this.#flow.reply === undefined) sendReply(this.#res, reply)
    else this.#flow.reply(reply)
  }

  #readBody(bytesMax: number): Promise<ExchangeBody> | ExchangeBody {
    const raw = (this.#req as { readonly rawBody?: unknown }).rawBody
    if (raw instanceof Uint8Array) return sized(raw, bytesMax)
    const peeked = peekBody(this.#req, bytesMax)
    if (peeked !== undefined) return peeked

    const value = this.#flow.parsedBody?.()
    const isMultipart = (this.#req.headers['content-type'] ?? '').startsWith('multipart/')
    if (value === undefined || isMultipart) {
      throw new InvalidRequestError(
        'the body was read before idempotency() and cannot be compared with a retry: mount ' +
          'idempotency() before the parser, or let it keep req.rawBody (verify: keepRawBody)',
      )
    }
    return value instanceof Uint8Array ? sized(value, bytesMax) : { kind: 'value', value }
  }
}

/**
 * A `verify` hook for body parsers mounted before the guard: it keeps the body as it was sent, so
 * that numbers too big for JavaScript still tell two requests apart.
 *
 * @example
 * ```ts
 * app.use(express.json({ verify: keepRawBody }))
 * ```
 */
export function keepRawBody(req: object, _res: unknown, body: Uint8Array): void {
  Object.assign(req, { rawBody: body })
}

export function splitUrl(url: string): [path: string, query: string] {
  const at = url.indexOf('?')
  return at === -1 ? [url, ''] : [url.slice(0, at), url.slice(at + 1)]
}

/** What parsers hand out is decoded. */
function sized(bytes: Uint8Array, bytesMax: number): ExchangeBody {
  if (bytes.byteLength > bytesMax) return { kind: 'too_large' }
  return { kind: 'bytes', bytes, isDecoded: true }
}
