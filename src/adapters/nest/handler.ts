import { Logger, StreamableFile, type CallHandler } from '@nestjs/common'
import type { Subscriber, Subscription } from 'rxjs'
import { OutcomeUnknownError } from '../../core/errors.ts'
import type {
  Answer,
  ExchangeBody,
  CapturedHandler,
  HttpReply,
  Produced,
} from '../../http/guard/exchange.ts'
import { GuardedContext, type HandlerContext } from '../../http/guard/handler-context.ts'
import { meaningOf, statusOf } from '../../http/guard/handler-reply.ts'
import type { HeaderPair } from '../../http/reply/stored-headers.ts'
import { CapturedResponse } from '../node-http/captured-response.ts'
import {
  hasCapturedSocket,
  captureRequestSocket,
  type CapturedRequestSocket,
} from '../node-http/captured-socket.ts'
import { dropBodyHeaders, withHeaders, type NestCall } from './platform-request.ts'
import { NodeHandler } from '../node-http/node-handler.ts'

/**
 * Everything behind `IdempotencyInterceptor` (other interceptors, pipes and the handler), as the
 * guard sees it. Nest replies when `outer` has completed, and that reply is captured.
 */
export class NestHandler implements CapturedHandler {
  readonly #call: NestCall
  readonly #next: CallHandler
  /** The subscriber of the interceptors around this one, and of Nest. */
  readonly #outer: Subscriber<unknown>
  readonly #node: NodeHandler
  #context: HandlerContext | undefined
  #socket: CapturedRequestSocket | undefined
  #headersBefore: readonly HeaderPair[] = []
  #inner: Subscription | undefined
  /** `abandoned`: the interceptors around have unsubscribed. */
  #state: 'waiting' | 'running' | 'ended' | 'abandoned' = 'waiting'
  #hasValue = false
  /** The handler has ended without sending a reply: Nest and the interceptors around make it. */
  #isMadeOutside = false
  #isAnswered = false
  /** Whether the method of the controller reports when it is entered. */
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
      isAnswered: () => this.#state === 'abandoned' || call.isAnswered,
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
    if (this.#isWrongRelease(produced)) this.#context!.outcomeUnknown()
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

  /** The guard does not see errors of a serializer or of an interceptor around this one. */
  seesErrors(): boolean {
    return !this.#isMadeOutside
  }

  /** Pipes, and interceptors behind this one, can reply before the method is entered. */
  isEntered(): boolean {
    const context = this.#context
    if (!this.#isWatched || !(context instanceof GuardedContext)) return true
    return context.isHandlerEntered || this.#hasValue
  }

  act(answer: Answer): void {
    this.#isAnswered = true
    this.#socket?.restore()
    if (this.#context !== undefined) return this.#node.act(this.#afterEntry(answer))
    this.#node.act(answer)
    // Other code has answered the request. The interceptors around still wait for an end.
    if (answer.kind !== 'pass' && this.#call.res.writableEnded) this.#outer.complete()
  }

  /** The interceptors around have unsubscribed: they have a value, or have stopped waiting. */
  abandon(): void {
    if (this.#state === 'ended' || this.#state === 'abandoned') return
    const context = this.#state === 'running' && !this.#isAnswered ? this.#context : undefined
    this.#state = 'abandoned'
    if (this.#hasValue || context === undefined) {
      this.#noteReplyMaker()
      return this.#inner?.unsubscribe()
    }
    // The handler keeps its subscription: work that has begun runs to its end.
    context.failed(
      new OutcomeUnknownError(
        'an interceptor stopped waiting for the handler, perhaps after a timeout, but the ' +
          'handler may still be running',
      ),
    )
  }

  /** Whether the reply would let a retry run, although it proves nothing about the work. */
  #isWrongRelease(produced: Produced): boolean {
    // Nest waits for the handler. A reply while it runs comes from other code, such as a timeout in
    // a middleware, which does not know the outcome.
    if (this.#state === 'running' && !this.#call.isRepliedByHandler) {
      return statusOf(produced) >= 400
    }
    // The handler has run, so a refusal by the code around it must not release the key. A refusal
    // from behind this interceptor is the handler's reply.
    const { releaseOn } = this.#context as GuardedContext
    return this.#isMadeOutside && meaningOf(produced, { ...NO_ERROR, releaseOn }) === 'release'
  }

  /**
   * Adds the earlier headers to a reply of the guard. An error becomes a reply if Nest has ended
   * its part of the request, because Nest would then send none.
   */
  #afterEntry(answer: Answer): Answer {
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
    // Nest 11 unsubscribes from the Observable of a handler when the client disconnects. A
    // protected handler must run to its end, so Nest does not see that.
    if (!hasCapturedSocket(req)) this.#socket = captureRequestSocket(req)
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
        this.#noteReplyMaker()
        this.#outer.complete()
      },
    })
  }

  #end(): void {
    if (this.#state === 'running') this.#state = 'ended'
  }

  /** A handler that has sent its reply, or has set an error status, makes its reply itself. */
  #noteReplyMaker(): void {
    const { res } = this.#call
    this.#isMadeOutside = !res.writableEnded && res.statusCode < 400
  }

  /** A file that fails while it is sent must not be recorded as a complete reply. */
  #watch(file: StreamableFile): void {
    file.getStream().once('error', (error: unknown) => {
      this.#context?.failed(error)
      if (this.#call.res.headersSent) this.#call.res.destroy(error as Error)
    })
  }

  #pass(): void {
    if (this.#state === 'abandoned') return
    this.#inner = this.#next.handle().subscribe(this.#outer)
  }

  /** Sends the reply. Nest always replies afterwards, and the captured response discards that. */
  #replyInstead(reply: HttpReply): void {
    const { res } = this.#call
    const before = this.#call.headersBefore()
    dropBodyHeaders(res)
    new CapturedResponse(res, 0).replace(withHeaders(reply, before))
    this.#state = 'ended'
    this.#outer.next(undefined)
    this.#outer.complete()
  }
}

const NO_ERROR = { error: undefined, isNotExecuted: false }

/** The same body as Nest's own reply to an unexpected error. */
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
 * An `HttpException` is a thrown reply: its status decides about the key, and its cause if it has
 * one. With 408, the timeout interceptor of Nest's documentation reports that it has stopped
 * waiting; the work may still run.
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
