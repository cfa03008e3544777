/** The handler of a web-standard request: it takes a `Request` and gives a `Response`. */
import { OutcomeUnknownError } from '../core/errors.ts'
import type { Answer, HeldHandler, HttpReply, Produced } from '../http/exchange.ts'
import type { HandlerContext, Sent } from '../http/handler-context.ts'
import type { HeaderPair } from '../http/stored-headers.ts'
import { isEndless } from '../http/endless.ts'
import { Deferred } from './deferred.ts'
import { lightBody } from './light-response.ts'
import { joined, readUpTo, resumed, type Begun } from './web-body.ts'

/** What a web handler can know and do about its key. */
export interface WebHandlerContext extends HandlerContext {
  /**
   * Runs `work` in a transaction of the store. The response that `work` returns, the key and
   * everything `work` wrote are committed together; then it leaves. Return it from the handler.
   * A response that would not be recorded (5xx, 401, 403, 408, 425, 429) rolls everything back and
   * leaves all the same.
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
  transaction<Tx>(work: (tx: Tx) => Sent | Promise<Sent>): Promise<void>
}

/** Runs the handler of one request. */
export type Respond = (context: WebHandlerContext) => Response | Promise<Response>

export class WebHandler implements HeldHandler {
  readonly #respond: Respond
  #bytesMax = 0
  #end: Promise<Produced> | undefined
  /** What the handler has returned. */
  #returned: Kept | undefined
  /** What a transaction of the handler has returned; it comes before anything else. */
  #committing: Kept | undefined
  #whole = new Deferred<Produced>()
  /** Another reply leaves: nobody will read what the handler returns. */
  #isVoid = false

  constructor(respond: Respond) {
    this.#respond = respond
  }

  enter(context: HandlerContext, replyBytesMax: number): void {
    this.#bytesMax = replyBytesMax
    this.#end = this.#run(this.#withResponses(context))
    this.#follow()
  }

  whole(): Promise<Produced> {
    return this.#whole.promise
  }

  produced(): Produced | undefined {
    return this.#kept()?.produced
  }

  /** Its transaction was rolled back; what the handler itself has returned is not touched. */
  reset(): void {
    if (this.#committing === undefined) return
    drop(this.#committing)
    this.#committing = undefined
    this.#whole = new Deferred()
    this.#follow()
  }

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
        this.#leave()
        return toResponse(answer.reply)
      case 'error':
        this.#leave()
        throw answer.error
    }
  }

  async #run(context: WebHandlerContext): Promise<Produced> {
    let response: Response
    try {
      response = await this.#respond(context)
    } catch (error) {
      // Its transaction has brought a reply already; the error is told all the same.
      if (this.#committing !== undefined) context.failed(error)
      throw error
    }
    this.#returned = await keep(response, this.#bytesMax)
    if (this.#isVoid) drop(this.#returned)
    return this.#returned.produced
  }

  /** What the handler returns is its reply, unless a transaction has brought one before. */
  #follow(): void {
    this.#end?.then(this.#whole.resolve, this.#whole.reject)
  }

  /** The context, whose transactions take responses too. */
  #withResponses(context: HandlerContext): WebHandlerContext {
    const run = context.transaction.bind(context)
    const transaction = async <Tx>(work: (tx: Tx) => Outcome | Promise<Outcome>) => {
      let response: Response | undefined
      const take = (outcome: Outcome): Sent | Promise<Sent> => {
        if (!isResponse(outcome)) return outcome
        return this.#commit(outcome).then((again) => {
          response = again
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

  /** Holds the response of a transaction; the handler gets another one like it to return. */
  async #commit(response: Response): Promise<Response> {
    const kept = await keep(response, this.#bytesMax)
    this.#committing = kept
    this.#whole.resolve(kept.produced)
    return kept.body.rest === undefined ? responseOf(kept, []) : response
  }

  #kept(): Kept | undefined {
    return this.#committing ?? this.#returned
  }

  #deliver(added: readonly HeaderPair[]): Response {
    const kept = this.#kept()!
    // What the handler itself returns, now or later, is another reply.
    if (kept === this.#committing) {
      this.#isVoid = true
      drop(this.#returned)
    }
    return responseOf(kept, added)
  }

  #leave(): void {
    this.#isVoid = true
    drop(this.#committing)
    drop(this.#returned)
  }
}

type Outcome = Response | Sent

/** By its methods: servers replace the global class, and then not every response is one of it. */
function isResponse(outcome: unknown): outcome is Response {
  return typeof (outcome as Partial<Response> | null | undefined)?.arrayBuffer === 'function'
}

/** A response whose body was read: all of it, or up to the cap. */
interface Kept {
  readonly head: Response
  readonly body: Begun
  readonly produced: Produced
  /** The text of a body that was never a stream, and need not become one. */
  readonly text: string | null | undefined
}

function keep(response: Response, bytesMax: number): Kept | Promise<Kept> {
  return keepLight(response, bytesMax) ?? keepRead(response, bytesMax)
}

function keepLight(response: Response, bytesMax: number): Kept | undefined {
  const text = isResponse(response) ? lightBody(response) : undefined
  if (text === undefined || !isFinal(response.status)) return undefined
  const { status } = response
  if (text !== null) {
    const content = response.headers.get('content-type')
    // Its type would be added on the way out, and the record would not know of it.
    if (content === null || isEndless(content) || hasNoBody(status)) return undefined
  }
  const bytes = encoder.encode(text ?? '')
  if (bytes.byteLength > bytesMax) return undefined
  const headers = [...response.headers] as HeaderPair[]
  const chunks = bytes.byteLength === 0 ? [] : [bytes]
  const produced: Produced = { kind: 'reply', reply: { status, headers, body: bytes } }
  return { head: response, body: { chunks, rest: undefined }, produced, text }
}

const encoder = new TextEncoder()

async function keepRead(response: Response, bytesMax: number): Promise<Kept> {
  checkResponse(response)
  const { status } = response
  const headers = [...response.headers] as HeaderPair[]
  const isStream = isEndless(response.headers.get('content-type') ?? '')
  // Of events not even the first is waited for.
  const body = await readUpTo(response.body, isStream ? -1 : bytesMax)
  const produced: Produced =
    body.rest === undefined
      ? { kind: 'reply', reply: { status, headers, body: joined(body.chunks) } }
      : { kind: 'oversized', status, headers }
  return { head: response, body, produced, text: undefined }
}

function responseOf(kept: Kept, added: readonly HeaderPair[]): Response {
  const { head, body, text } = kept
  // Another response, with headers of its own: a handler may give the same one to many requests.
  const response = text === undefined ? remade(head, body) : new Response(text, head)
  for (const [name, value] of added) response.headers.set(name, value)
  // It said how the body would be sent in pieces; it is one piece now, and has a length.
  if (body.rest === undefined) response.headers.delete('transfer-encoding')
  return response
}

function remade(head: Response, { chunks, rest }: Begun): Response {
  const { status, statusText } = head
  const isEmpty = hasNoBody(status) || (rest === undefined && chunks.length === 0)
  const content = isEmpty ? null : rest === undefined ? joined(chunks) : resumed(chunks, rest)
  return new Response(content, { status, statusText, headers: new Headers(head.headers) })
}

/** Nobody will read the rest. */
function drop(kept: Kept | undefined): void {
  kept?.body.rest?.cancel().catch(() => undefined)
}

/** A reply that no handler has produced. */
export function toResponse({ status, headers, body }: HttpReply): Response {
  const all = new Headers()
  for (const [name, value] of headers) all.append(name, value)
  const isEmpty = hasNoBody(status) || body.byteLength === 0
  return new Response(isEmpty ? null : new Uint8Array(body), { status, headers: all })
}

/** Statuses with which a `Response` must not be given a body. */
function hasNoBody(status: number): boolean {
  return status === 204 || status === 205 || status === 304
}

/** The handler has run: without a reply that can be kept, its outcome is open, not undone. */
function checkResponse(response: unknown): asserts response is Response {
  const { status = -1, bodyUsed, body } = (response ?? {}) as Partial<Response>
  if (!isResponse(response) || !isFinal(status)) {
    throw new OutcomeUnknownError(whyNoReply(response, status))
  }
  if (bodyUsed === true || body?.locked === true) {
    throw new OutcomeUnknownError(
      'a protected handler has returned a Response whose body was read already, so there is ' +
        'nothing to send or keep: return a fresh one, or response.clone()',
    )
  }
}

function isFinal(status: number): boolean {
  return status >= 200 && status <= 599
}

function whyNoReply(response: unknown, status: number): string {
  if (status === 101) {
    return (
      'a protected handler has answered with an upgrade (101), which no retry can be given ' +
      'again: leave its route unprotected'
    )
  }
  const got = status === 0 ? 'Response.error()' : response === undefined ? 'nothing' : 'no Response'
  return `a protected handler must return a Response with a status of 200 to 599, got ${got}`
}
