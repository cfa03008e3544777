/** The handler of a request to a Node server, as the guard sees it. All Node frameworks use it. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import { InvalidRequestError, NotExecutedError } from '../../core/errors.ts'
import type {
  Answer,
  ExchangeBody,
  CapturedHandler,
  HttpReply,
  Produced,
} from '../../http/guard/exchange.ts'
import type { HandlerContext } from '../../http/guard/handler-context.ts'
import { CapturedResponse, type ReplyListener } from './captured-response.ts'
import { sendReply } from './send-reply.ts'
import { CapturedRequest } from './captured-request.ts'
import { peekBody } from './request-body.ts'

/** The steps that differ between frameworks. */
export interface NodeFlow extends ReplyListener {
  /** Runs the handler under its key. */
  readonly enter: (context: HandlerContext) => void
  /** Runs the handler without a key. */
  readonly pass: () => void
  /** Passes an error to the framework's error handling. */
  readonly fail: (error: unknown) => void
  /** Sends a reply in place of the handler. @default writes to the response */
  readonly reply?: (reply: HttpReply) => void
  /** See `CapturedHandler.seesErrors`. @default true */
  readonly seesErrors?: () => boolean
  /**
   * Whether the request was answered, or is about to be, before the handler was entered.
   *
   * @default true when the response has ended
   */
  readonly isAnswered?: () => boolean
  /** The body as a parser before the guard has read it. */
  readonly parsedBody?: () => unknown
}

export class NodeHandler implements CapturedHandler {
  readonly #req: IncomingMessage
  readonly #res: ServerResponse
  readonly #flow: NodeFlow
  #captured: CapturedResponse | undefined
  #capturedRequest: CapturedRequest | undefined

  constructor(req: IncomingMessage, res: ServerResponse, flow: NodeFlow) {
    this.#req = req
    this.#res = res
    this.#flow = flow
  }

  /** Reads the whole body, and keeps it readable until the guard has answered. */
  body(bytesMax: number): ExchangeBody | Promise<ExchangeBody> {
    const body = this.#readBody(bytesMax)
    return body instanceof Promise ? body.then((read) => this.#keep(read)) : this.#keep(body)
  }

  #keep(body: ExchangeBody): ExchangeBody {
    if (body.kind === 'bytes' && !this.#req.readableEnded) {
      this.#capturedRequest = new CapturedRequest(this.#req)
    }
    return body
  }

  enter(context: HandlerContext, replyBytesMax: number): void {
    // A timeout may have answered while the key was claimed. The client may retry, so this
    // request must not run the handler.
    if (this.#isAnswered() || this.#res.headersSent) return
    this.capture(replyBytesMax)
    this.#flow.enter(context)
  }

  /** Captures all that is written to the response from now on. */
  capture(replyBytesMax: number): void {
    this.#captured = new CapturedResponse(this.#res, replyBytesMax, this.#flow)
  }

  whole(): Promise<Produced> {
    if (this.#captured !== undefined) return this.#captured.whole()
    return Promise.reject(
      new NotExecutedError('the request was answered before its handler could run'),
    )
  }

  produced(): Produced | undefined {
    return this.#captured?.produced()
  }

  reset(): void {
    this.#captured?.reset()
  }

  failed(error: unknown): void {
    this.#captured?.failed(error)
  }

  recovered(): void {
    this.#captured?.recovered()
  }

  seesErrors(): boolean {
    return this.#flow.seesErrors?.() ?? true
  }

  act(answer: Answer): void {
    const captured = this.#captured
    this.#capturedRequest?.restore()
    // Another reply is on its way to the client, and a second one would cut it off.
    if (captured === undefined && answer.kind !== 'pass' && this.#isAnswered()) return
    switch (answer.kind) {
      case 'pass':
        return this.#flow.pass()
      case 'deliver':
        return captured?.deliver(answer.headers)
      case 'reply':
        return captured === undefined ? this.#reply(answer.reply) : captured.replace(answer.reply)
      case 'error':
        if (captured === undefined || captured.withdraw()) this.#flow.fail(answer.error)
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
 * A `verify` hook for body parsers that are mounted before the guard. It keeps the bytes of the
 * body in `req.rawBody`, so that requests are compared exactly: two numbers that are too big for
 * JavaScript can become equal when they are parsed.
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

/** Parsers decode the body (`Content-Encoding`) before they pass it on. */
function sized(bytes: Uint8Array, bytesMax: number): ExchangeBody {
  if (bytes.byteLength > bytesMax) return { kind: 'too_large' }
  return { kind: 'bytes', bytes, isDecoded: true }
}
