/** Runs handlers of web-standard requests, which take a `Request` and return a `Response`. */
import { OutcomeUnknownError } from '../../core/errors.ts'
import type { Answer, CapturedHandler, HttpReply, Produced } from '../../http/guard/exchange.ts'
import type { HandlerContext, TransactionReply } from '../../http/guard/handler-context.ts'
import type { HeaderPair } from '../../http/reply/stored-headers.ts'
import { isEndless } from '../../http/reply/endless.ts'
import { Deferred } from '../node-http/deferred.ts'
import { joined, readUpTo, resumeStream, type PartialBody } from './body.ts'

/** The idempotency context of a web handler: its key, and the methods that it can call. */
export interface WebHandlerContext extends HandlerContext {
  /**
   * Runs `work` in a transaction of the store. The response that `work` returns, the key and all
   * writes of `work` are committed together. Then the response is sent; return it from the handler.
   * A response that is not recorded (5xx, 401, 403, 408, 425, 429) rolls everything back and is
   * sent, too.
   *
   * @example
   * ```ts
   * return idempotencyOf(request).transaction((tx: SqliteTransaction) => {
   *   tx.prepare('INSERT INTO orders (id) VALUES (?)').run(orderId)
   *   return Response.json({ orderId }, { status: 201 })
   * })
   * ```
   */
  transaction<Tx, Res extends Response = Response>(
    work: (tx: Tx) => Res | Promise<Res>,
  ): Promise<Res>
  transaction<Tx>(work: (tx: Tx) => TransactionReply | Promise<TransactionReply>): Promise<void>
}

/** Runs the handler of one request. */
export type Respond = (context: WebHandlerContext) => Response | Promise<Response>

export class WebHandler implements CapturedHandler {
  readonly #respond: Respond
  #bytesMax = 0
  #handlerReply: Promise<Produced> | undefined
  /** The response that the handler has returned. */
  #returned: BufferedResponse | undefined
  /** The response that a transaction of the handler has returned. Has priority over `#returned`. */
  #committing: BufferedResponse | undefined
  #whole = new Deferred<Produced>()
  /** Another reply is sent, so the response of the handler is discarded. */
  #isSuperseded = false

  constructor(respond: Respond) {
    this.#respond = respond
  }

  enter(context: HandlerContext, replyBytesMax: number): void {
    this.#bytesMax = replyBytesMax
    this.#handlerReply = this.#run(this.#withResponses(context))
    this.#awaitHandler()
  }

  whole(): Promise<Produced> {
    return this.#whole.promise
  }

  produced(): Produced | undefined {
    return this.#current()?.produced
  }

  /** The transaction was rolled back. The response that the handler itself returned is kept. */
  reset(): void {
    if (this.#committing === undefined) return
    cancelRest(this.#committing)
    this.#committing = undefined
    this.#whole = new Deferred()
    this.#awaitHandler()
  }

  failed(): void {}

  /** The guard gets errors of the handler unchanged. */
  seesErrors(): boolean {
    return true
  }

  /** `pass` runs the handler unprotected. */
  async answer(answer: Answer, pass: () => Response | Promise<Response>): Promise<Response> {
    switch (answer.kind) {
      case 'pass':
        return pass()
      case 'deliver':
        return this.#deliver(answer.headers)
      case 'reply':
        this.#discardAll()
        return toResponse(answer.reply)
      case 'error':
        this.#discardAll()
        throw answer.error
    }
  }

  async #run(context: WebHandlerContext): Promise<Produced> {
    let response: Response
    try {
      response = await this.#respond(context)
    } catch (error) {
      // The response of the transaction is sent, so the error is only reported.
      if (this.#committing !== undefined) context.failed(error)
      throw error
    }
    this.#returned = await bufferResponse(response, this.#bytesMax)
    if (this.#isSuperseded) cancelRest(this.#returned)
    return this.#returned.produced
  }

  /** Uses the response of the handler, unless a transaction returns one first. */
  #awaitHandler(): void {
    this.#handlerReply?.then(this.#whole.resolve, this.#whole.reject)
  }

  /** The context with a `transaction` that also accepts responses. */
  #withResponses(context: HandlerContext): WebHandlerContext {
    const run = context.transaction.bind(context)
    const transaction = async <Tx>(work: (tx: Tx) => Outcome | Promise<Outcome>) => {
      let response: Response | undefined
      const take = (outcome: Outcome): TransactionReply | Promise<TransactionReply> => {
        if (!isResponse(outcome)) return outcome
        return this.#holdForCommit(outcome).then((copy) => {
          response = copy
        })
      }
      await run<Tx>((tx) => {
        const outcome = work(tx)
        return outcome instanceof Promise ? outcome.then(take) : take(outcome)
      })
      return response
    }
    return Object.assign(context, { transaction })
  }

  /** Holds the response of a transaction. The handler gets a copy, because the body was read. */
  async #holdForCommit(response: Response): Promise<Response> {
    const buffered = await bufferResponse(response, this.#bytesMax)
    this.#committing = buffered
    this.#whole.resolve(buffered.produced)
    return buffered.body.rest === undefined ? responseOf(buffered, []) : response
  }

  #current(): BufferedResponse | undefined {
    return this.#committing ?? this.#returned
  }

  #deliver(added: readonly HeaderPair[]): Response {
    const buffered = this.#current()!
    // The response that the handler itself returns, now or later, is not sent.
    if (buffered === this.#committing) {
      this.#isSuperseded = true
      cancelRest(this.#returned)
    }
    return responseOf(buffered, added)
  }

  #discardAll(): void {
    this.#isSuperseded = true
    cancelRest(this.#committing)
    cancelRest(this.#returned)
  }
}

type Outcome = Response | TransactionReply

/** Checks a method, because servers replace the global class, and `instanceof` would fail then. */
function isResponse(outcome: unknown): outcome is Response {
  return typeof (outcome as Partial<Response> | null | undefined)?.arrayBuffer === 'function'
}

/** A response whose body was read completely, or up to the cap. */
interface BufferedResponse {
  readonly head: Response
  readonly body: PartialBody
  readonly produced: Produced
  /** The body of a light response, which was never a stream and need not become one. */
  readonly text: string | null | undefined
}

function bufferResponse(
  response: Response,
  bytesMax: number,
): BufferedResponse | Promise<BufferedResponse> {
  return bufferLight(response, bytesMax) ?? bufferStream(response, bytesMax)
}

/** Returns `undefined` if the response must be read as a stream. */
function bufferLight(response: Response, bytesMax: number): BufferedResponse | undefined {
  const text = isResponse(response) ? lightBody(response) : undefined
  if (text === undefined || !isFinal(response.status)) return undefined
  const { status } = response
  if (text !== null) {
    const content = response.headers.get('content-type')
    // The server would add a content type when it sends the text, and the record would lack it.
    if (content === null || isEndless(content) || hasNoBody(status)) return undefined
  }
  const bytes = encoder.encode(text ?? '')
  if (bytes.byteLength > bytesMax) return undefined
  const headers = [...response.headers] as HeaderPair[]
  const chunks = bytes.byteLength === 0 ? [] : [bytes]
  const produced: Produced = { kind: 'reply', reply: { status, headers, body: bytes } }
  return { head: response, body: { chunks, rest: undefined }, produced, text }
}

/**
 * The body of a light response of `@hono/node-server`: a string, or `null` for none. A light
 * response creates its stream only when it is read, which is expensive. Returns `undefined` if the
 * response is not light, or has a body of another type.
 */
function lightBody(response: Response): string | null | undefined {
  for (const symbol of Object.getOwnPropertySymbols(response)) {
    if (symbol.description !== 'cache') continue
    const cache: unknown = Reflect.get(response, symbol)
    if (!Array.isArray(cache) || cache[0] !== response.status) return undefined
    const body: unknown = cache[1]
    return typeof body === 'string' || body === null ? body : undefined
  }
  return undefined
}

const encoder = new TextEncoder()

async function bufferStream(response: Response, bytesMax: number): Promise<BufferedResponse> {
  checkResponse(response)
  const { status } = response
  const headers = [...response.headers] as HeaderPair[]
  const isStream = isEndless(response.headers.get('content-type') ?? '')
  // A stream of events is sent at once, so not even its first event is awaited.
  const body = await readUpTo(response.body, isStream ? -1 : bytesMax)
  const produced: Produced =
    body.rest === undefined
      ? { kind: 'reply', reply: { status, headers, body: joined(body.chunks) } }
      : { kind: 'oversized', status, headers }
  return { head: response, body, produced, text: undefined }
}

function responseOf(buffered: BufferedResponse, added: readonly HeaderPair[]): Response {
  const { head, body, text } = buffered
  // A new response with new headers, because a handler may return one response for many requests.
  const response = text === undefined ? rebuilt(head, body) : new Response(text, head)
  for (const [name, value] of added) response.headers.set(name, value)
  // The body is complete and has a length, so it is not sent in chunks.
  if (body.rest === undefined) response.headers.delete('transfer-encoding')
  return response
}

function rebuilt(head: Response, { chunks, rest }: PartialBody): Response {
  const { status, statusText } = head
  const isEmpty = hasNoBody(status) || (rest === undefined && chunks.length === 0)
  const content = isEmpty ? null : rest === undefined ? joined(chunks) : resumeStream(chunks, rest)
  return new Response(content, { status, statusText, headers: new Headers(head.headers) })
}

/** Cancels the unread part of the body, because it is never sent. */
function cancelRest(buffered: BufferedResponse | undefined): void {
  buffered?.body.rest?.cancel().catch(() => undefined)
}

/** Makes a response from a reply that does not come from the handler. */
export function toResponse({ status, headers, body }: HttpReply): Response {
  const all = new Headers()
  for (const [name, value] of headers) all.append(name, value)
  const isEmpty = hasNoBody(status) || body.byteLength === 0
  return new Response(isEmpty ? null : new Uint8Array(body), { status, headers: all })
}

/** Whether a `Response` with this status must not have a body. */
function hasNoBody(status: number): boolean {
  return status === 204 || status === 205 || status === 304
}

/** The handler has run, so without a reply to record its outcome is unknown. */
function checkResponse(response: unknown): asserts response is Response {
  const { status = -1, bodyUsed, body } = (response ?? {}) as Partial<Response>
  if (!isResponse(response) || !isFinal(status)) {
    throw new OutcomeUnknownError(whyNoReply(response, status))
  }
  if (bodyUsed === true || body?.locked === true) {
    throw new OutcomeUnknownError(
      'a protected handler returned a Response whose body was read already, so it can be neither ' +
        'sent nor recorded: return a new Response, or a clone made before the body is read',
    )
  }
}

function isFinal(status: number): boolean {
  return status >= 200 && status <= 599
}

function whyNoReply(response: unknown, status: number): string {
  if (status === 101) {
    return (
      'a protected handler returned an upgrade (101), which cannot be replayed: leave its route ' +
      'unprotected'
    )
  }
  const got = status === 0 ? 'Response.error()' : response === undefined ? 'nothing' : 'no Response'
  return `a protected handler must return a Response with a status of 200 to 599, got ${got}`
}
