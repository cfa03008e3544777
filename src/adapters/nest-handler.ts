import { Logger, StreamableFile, type CallHandler } from '@nestjs/common'
import type { Subscriber, Subscription } from 'rxjs'
import { OutcomeUnknownError } from '../core/errors.ts'
import type { Answer, ExchangeBody, HeldHandler, HttpReply, Produced } from '../http/exchange.ts'
import { GuardedContext, type HandlerContext } from '../http/handler-context.ts'
import { meaningOf, statusOf } from '../http/handler-reply.ts'
import type { HeaderPair } from '../http/stored-headers.ts'
import { HeldResponse } from './held-response.ts'
import { hasQuietSocket, holdRequestSocket, type HeldRequestSocket } from './held-socket.ts'
import { dropBodyHeaders, withHeaders, type NestCall } from './nest-request.ts'
import { NodeHandler } from './node-handler.ts'

/**
 * What stands behind our interceptor (other interceptors, pipes and the handler), as the guard
 * sees it. Nest replies on its own once `outer` has completed; what it writes then is held.
 */
export class NestHandler implements HeldHandler {
  readonly #call: NestCall
  readonly #next: CallHandler
  /** Interceptors around ours, and Nest behind them. */
  readonly #outer: Subscriber<unknown>
  readonly #node: NodeHandler
  #context: HandlerContext | undefined
  #socket: HeldRequestSocket | undefined
  #headersBefore: readonly HeaderPair[] = []
  #inner: Subscription | undefined
  /** `left`: whoever is around us has stopped waiting. */
  #state: 'waiting' | 'running' | 'ended' | 'left' = 'waiting'
  #hasValue = false
  /** The handler has returned without a reply of its own: from then on, others make it. */
  #isMadeOutside = false
  #isAnswered = false
  /** Whether the method of the controller tells when it is entered. */
  readonly #isWatched: boolean

  constructor(
    { call, isWatched }: { readonly call: NestCall; readonly isWatched: boolean },
    next: CallHandler,
    outer: Subscriber<unknown>,
  ) {
    this.#isWatched = isWatched
    this.#call = call
    this.#next = next
    this.#outer = outer
    this.#node = new NodeHandler(call.req, call.res, {
      enter: (context) => this.#enter(context),
      pass: () => this.#pass(),
      fail: (error) => outer.error(error),
      reply: (reply) => this.#replyInstead(reply),
      isAnswered: () => this.#state === 'left' || call.isAnswered,
      parsedBody: () => call.parsedBody(),
    })
  }

  body(bytesMax: number): Promise<ExchangeBody> | ExchangeBody {
    const bytes = this.#call.sentBody
    if (bytes === undefined) return this.#node.body(bytesMax)
    return bytes.byteLength > bytesMax ? { kind: 'too_large' } : { kind: 'bytes', bytes }
  }

  enter(context: HandlerContext, replyBytesMax: number): void {
    this.#node.enter(context, replyBytesMax)
  }

  async whole(): Promise<Produced> {
    const produced = await this.#node.whole()
    if (this.#isForeign(produced)) this.#context!.outcomeUnknown()
    return produced
  }

  produced(): Produced | undefined {
    return this.#node.produced()
  }

  reset(): void {
    this.#node.reset()
  }

  failed(error: unknown): void {
    this.#node.failed(error)
  }

  /** An error of an interceptor around ours, or of a serializer, passes us by. */
  seesErrors(): boolean {
    return !this.#isMadeOutside
  }

  /** Pipes come before the method, and so do interceptors behind ours. */
  isEntered(): boolean {
    const context = this.#context
    if (!this.#isWatched || !(context instanceof GuardedContext)) return true
    return context.isHandlerEntered || this.#hasValue
  }

  act(answer: Answer): void {
    this.#isAnswered = true
    this.#socket?.letGo()
    if (this.#context !== undefined) return this.#node.act(this.#whileEntered(answer))
    this.#node.act(answer)
    // Answered by somebody else: those around us still wait for an end.
    if (answer.kind !== 'pass' && this.#call.res.writableEnded) this.#outer.complete()
  }

  /** Whoever is around us has what it wanted, or has given up. */
  leave(): void {
    if (this.#state === 'ended' || this.#state === 'left') return
    const context = this.#state === 'running' && !this.#isAnswered ? this.#context : undefined
    this.#state = 'left'
    if (this.#hasValue || context === undefined) {
      this.#handOver()
      return this.#inner?.unsubscribe()
    }
    // It is not torn down: what it has begun goes on, whether somebody waits for it or not.
    context.failed(
      new OutcomeUnknownError(
        'an interceptor stopped waiting for the handler (a timeout?), which may still be running',
      ),
    )
  }

  /** Whether a retry could run because of a reply that says nothing about the work. */
  #isForeign(produced: Produced): boolean {
    // Nest waits for the handler. Whoever does not (a timeout in a middleware) knows nothing of it.
    if (this.#state === 'running' && !this.#call.isRepliedByHandler) {
      return statusOf(produced) >= 400
    }
    // The handler was let in, and has run: what was refused behind it is its reply.
    const { releaseOn } = this.#context as GuardedContext
    return this.#isMadeOutside && meaningOf(produced, { ...NOTHING_SAID, releaseOn }) === 'release'
  }

  /** Nest may be through with this request, and then nobody else would answer it. */
  #whileEntered(answer: Answer): Answer {
    if (answer.kind === 'reply') {
      return { kind: 'reply', reply: withHeaders(answer.reply, this.#headersBefore) }
    }
    if (answer.kind !== 'error' || !this.#outer.closed) return answer
    new Logger('IdempotencyModule').error(answer.error)
    return { kind: 'reply', reply: withHeaders(INTERNAL_ERROR, this.#headersBefore) }
  }

  #enter(context: HandlerContext): void {
    const { req, request } = this.#call
    this.#context = context
    this.#state = 'running'
    this.#headersBefore = this.#call.headersBefore()
    request.idempotency = context
    this.#call.watchTimeLimit(context)
    this.#call.refuseCompression()
    // Nest 11 stops a handler's Observable when the client goes away; ours is to run to its end.
    if (!hasQuietSocket(req)) this.#socket = holdRequestSocket(req)
    this.#inner = this.#next.handle().subscribe({
      next: (value: unknown) => {
        this.#hasValue = true
        if (value instanceof StreamableFile) this.#watch(value)
        this.#outer.next(value)
      },
      error: (error: unknown) => {
        this.#end()
        report(error, context)
        this.#outer.error(error)
      },
      complete: () => {
        this.#end()
        this.#handOver()
        this.#outer.complete()
      },
    })
  }

  #end(): void {
    if (this.#state === 'running') this.#state = 'ended'
  }

  #handOver(): void {
    const { res } = this.#call
    this.#isMadeOutside = !res.writableEnded && res.statusCode < 400
  }

  /** A file that fails while it is sent must not be recorded as if it were whole. */
  #watch(file: StreamableFile): void {
    file.getStream().once('error', (error: unknown) => {
      this.#context?.failed(error)
      if (this.#call.res.headersSent) this.#call.res.destroy(error as Error)
    })
  }

  #pass(): void {
    if (this.#state === 'left') return
    this.#inner = this.#next.handle().subscribe(this.#outer)
  }

  /** The reply leaves; what Nest replies afterwards, because it always does, goes nowhere. */
  #replyInstead(reply: HttpReply): void {
    const { res } = this.#call
    const before = this.#call.headersBefore()
    dropBodyHeaders(res)
    new HeldResponse(res, 0).replace(withHeaders(reply, before))
    this.#state = 'ended'
    this.#outer.next(undefined)
    this.#outer.complete()
  }
}

const NOTHING_SAID = { error: undefined, isNotExecuted: false }

/** As Nest words it. */
const INTERNAL_ERROR: HttpReply = {
  status: 500,
  headers: [['content-type', 'application/json; charset=utf-8']],
  body: Buffer.from('{"statusCode":500,"message":"Internal server error"}'),
}

interface HttpError {
  getStatus(): number
  readonly cause?: unknown
}

/**
 * An `HttpException` is a reply that was thrown: what it says about the work is in its status, and
 * in its cause where it has one. But by 408, Nest's timeout interceptors say that they have stopped
 * waiting, not that the work has stopped.
 */
function report(error: unknown, context: HandlerContext): void {
  if (!isHttpError(error)) return context.failed(error)
  if (error.getStatus() === 408) {
    const message = 'the request timed out, but its handler may still be running'
    return context.failed(new OutcomeUnknownError(message, { cause: error }))
  }
  if (error.cause !== undefined) context.failed(error)
}

function isHttpError(error: unknown): error is HttpError {
  return error instanceof Error && typeof (error as Partial<HttpError>).getStatus === 'function'
}
