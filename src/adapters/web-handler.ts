/** The handler of a web-standard request: it takes a `Request` and gives a `Response`. */
import { InvalidRequestError } from '../core/errors.ts'
import type { Answer, ExchangeBody, HeldHandler, HttpReply, Produced } from '../http/exchange.ts'
import type { HandlerContext } from '../http/handler-context.ts'
import type { HeaderPair } from '../http/stored-headers.ts'
import { isEndless } from '../http/endless.ts'

export class WebHandler implements HeldHandler {
  readonly #respond: (context: HandlerContext) => Response | Promise<Response>
  #whole: Promise<Produced> | undefined
  #produced: Produced | undefined
  #response: Response | undefined
  /** What was read of a body that goes on. */
  #begun: { readonly chunks: Uint8Array[]; readonly rest: Reader | undefined } | undefined

  constructor(respond: (context: HandlerContext) => Response | Promise<Response>) {
    this.#respond = respond
  }

  enter(context: HandlerContext, replyBytesMax: number): void {
    this.#whole = this.#collect(context, replyBytesMax)
    // The guard asks for it; should it have ended by then, nobody is left to hear of a failure.
    this.#whole.catch(() => undefined)
  }

  whole(): Promise<Produced> {
    return this.#whole!
  }

  produced(): Produced | undefined {
    return this.#produced
  }

  /** A response is returned, not sent: until the handler returns there is nothing to take back. */
  reset(): void {}

  failed(): void {}

  /** What a handler throws reaches us as it is. */
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
        this.#begun?.rest?.cancel().catch(() => undefined)
        return toResponse(answer.reply)
      case 'error':
        this.#begun?.rest?.cancel().catch(() => undefined)
        throw answer.error
    }
  }

  async #collect(context: HandlerContext, bytesMax: number): Promise<Produced> {
    const response = await this.#respond(context)
    checkResponse(response)
    this.#response = response
    const { status } = response
    const headers = [...response.headers] as HeaderPair[]
    const { chunks, rest } = await readUpTo(response, bytesMax)
    this.#begun = { chunks, rest }
    this.#produced =
      rest === undefined
        ? { kind: 'reply', reply: { status, headers, body: joined(chunks) } }
        : { kind: 'oversized', status, headers }
    return this.#produced
  }

  #deliver(added: readonly HeaderPair[]): Response {
    const { status, statusText, headers } = this.#response!
    const all = new Headers(headers)
    for (const [name, value] of added) all.set(name, value)
    const { chunks, rest } = this.#begun!
    const isEmpty = hasNoBody(status) || (rest === undefined && chunks.length === 0)
    const body = isEmpty ? null : rest === undefined ? joined(chunks) : resumed(chunks, rest)
    return new Response(body, { status, statusText, headers: all })
  }
}

type Reader = ReadableStreamDefaultReader<Uint8Array>

/**
 * The whole body, read from a copy, so that the handler finds the request as it was sent. The
 * copy is given up where the body is too large, and with it the request.
 */
export async function readRequest(request: Request, bytesMax: number): Promise<ExchangeBody> {
  if (Number(request.headers.get('content-length')) > bytesMax) return { kind: 'too_large' }
  if (request.bodyUsed) {
    throw new InvalidRequestError(
      'the body was read before idempotency and cannot be compared with a retry: protect the ' +
        'handler before anything reads the request',
    )
  }
  if (request.body === null) return { kind: 'none' }
  const { chunks, rest } = await readUpTo(request.clone(), bytesMax)
  if (rest === undefined) return { kind: 'bytes', bytes: joined(chunks) }
  rest.cancel().catch(() => undefined)
  return { kind: 'too_large' }
}

/** A reply that no handler has produced. */
export function toResponse({ status, headers, body }: HttpReply): Response {
  const all = new Headers()
  for (const [name, value] of headers) all.append(name, value)
  const isEmpty = hasNoBody(status) || body.byteLength === 0
  return new Response(isEmpty ? null : Uint8Array.from(body), { status, headers: all })
}

/** Reads a body until it ends or crosses the cap; `rest` reads on. */
async function readUpTo(
  message: Request | Response,
  bytesMax: number,
): Promise<{ readonly chunks: Uint8Array[]; readonly rest: Reader | undefined }> {
  const chunks: Uint8Array[] = []
  if (message.body === null) return { chunks, rest: undefined }
  const reader = (message.body as ReadableStream<Uint8Array>).getReader()
  if (message instanceof Response && isEndless(message.headers.get('content-type') ?? '')) {
    return { chunks, rest: reader }
  }
  for (let length = 0; length <= bytesMax;) {
    const { done, value } = await reader.read()
    if (done) return { chunks, rest: undefined }
    chunks.push(value)
    length += value.byteLength
  }
  return { chunks, rest: reader }
}

function resumed(chunks: readonly Uint8Array[], rest: Reader): ReadableStream<Uint8Array> {
  const held = [...chunks]
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      const chunk = held.shift()
      if (chunk !== undefined) return controller.enqueue(chunk)
      const { done, value } = await rest.read()
      if (done) controller.close()
      else controller.enqueue(value)
    },
    cancel: (reason) => rest.cancel(reason),
  })
}

function joined(chunks: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(chunks.reduce((sum, { byteLength }) => sum + byteLength, 0))
  let at = 0
  for (const chunk of chunks) {
    bytes.set(chunk, at)
    at += chunk.byteLength
  }
  return bytes
}

/** Statuses with which a `Response` must not be given a body. */
function hasNoBody(status: number): boolean {
  return status === 204 || status === 205 || status === 304
}

function checkResponse(response: unknown): asserts response is Response {
  const { status } = (response ?? {}) as { readonly status?: unknown }
  if (typeof status === 'number' && status >= 200 && status <= 599) return
  throw new InvalidRequestError(
    status === 101
      ? 'a protected handler has answered with an upgrade (101), which no retry can be given ' +
          'again: leave its route unprotected'
      : 'a protected handler must return a Response',
  )
}
