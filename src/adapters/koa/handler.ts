/** One protected request in Koa: everything behind the guard, and the reply that Koa makes. */
import type { Context, Next } from 'koa'
import { NotExecutedError } from '../../core/errors.ts'
import type {
  Answer,
  ExchangeBody,
  CapturedHandler,
  HttpReply,
  Produced,
} from '../../http/guard/exchange.ts'
import { isWithin } from '../../http/guard/current.ts'
import { GuardedContext, type HandlerContext } from '../../http/guard/handler-context.ts'
import { statusOf } from '../../http/guard/handler-reply.ts'
import type { HeaderPair } from '../../http/reply/stored-headers.ts'
import { Deferred } from '../node-http/deferred.ts'
import { NodeHandler } from '../node-http/node-handler.ts'
import { BODY_HEADERS } from '../node-http/response-head.ts'
import { parsedBody } from './body.ts'

const WATCH = Symbol('oncekey.watch')

interface WatchedContext extends Context {
  /** The value of `ctx.respond`, and the listener for reads of it. */
  [WATCH]: { readonly isEnding: () => void; respond: boolean | undefined }
}

/** Shared by all contexts: V8 keeps what an accessor refers to until a full collection. */
const RESPOND: PropertyDescriptor & ThisType<WatchedContext> = {
  configurable: true,
  enumerable: true,
  get(): boolean | undefined {
    const watch = this[WATCH]
    watch.isEnding()
    return watch.respond
  },
  set(value: boolean) {
    this[WATCH].respond = value
  },
}

/**
 * Koa replies after every middleware has ended, including those before the guard. The response is
 * captured until then, and what Koa writes is the handler's reply.
 */
export class KoaHandler implements CapturedHandler {
  /** The promise of the middleware: resolves when the middlewares before the guard may go on. */
  readonly passed: Promise<void>
  readonly #pass: Deferred<void>
  readonly #ctx: Context
  readonly #next: Next
  readonly #node: NodeHandler
  /** Resolves when the guard has answered. */
  readonly #answered = new Deferred<void>()
  #context: HandlerContext | undefined
  #isRunning = false
  /** Whether the middlewares before the guard wait for its answer. */
  #isAwaited = false
  /** The handler has ended with a success. */
  #hasSucceeded = false
  /** Koa replies while the handler runs: a middleware before the guard has not awaited it. */
  #isAbandoned = false
  /** The last error that was passed to `ctx.onerror`. */
  #lastError: Error | undefined
  #isOver = false

  constructor(ctx: Context, next: Next) {
    this.#ctx = ctx
    this.#next = next
    this.#pass = new Deferred<void>()
    this.passed = this.#pass.promise
    this.#node = new NodeHandler(ctx.req, ctx.res, {
      enter: (context) => this.#enter(context),
      pass: () => this.#pass.resolve(next()),
      fail: (error) => this.#fail(error),
      parsedBody: () => parsedBody(ctx),
    })
  }

  body(bytesMax: number): ExchangeBody | Promise<ExchangeBody> {
    return this.#node.body(bytesMax)
  }

  enter(context: HandlerContext, replyBytesMax: number): void {
    // A middleware before the guard has stopped waiting, so the handler's reply would be lost.
    if (this.#ctx.res.headersSent) {
      throw new NotExecutedError(
        'the request was answered before its handler could run: every middleware before ' +
          'idempotency() must await next()',
      )
    }
    this.#node.enter(context, replyBytesMax)
  }

  async whole(): Promise<Produced> {
    const produced = await this.#node.whole()
    // After a tick, a handler whose last statement writes the reply itself has ended.
    await tick()
    this.#doubtForeignFailure()
    const status = statusOf(produced)
    // A 4xx from another middleware does not prove that the handler did nothing.
    if (this.#isAbandoned && status >= 400 && status < 500) this.#context?.outcomeUnknown()
    return produced
  }

  produced(): Produced | undefined {
    return this.#node.produced()
  }

  /** Koa makes its reply from the context at the very end; before that, there is none to reset. */
  reset(): void {
    if (this.#ctx.res.headersSent) this.#node.reset()
  }

  failed(error: unknown): void {
    this.#node.failed(error)
  }

  /** An error of the handler reaches the guard before a middleware turns it into a reply. */
  seesErrors(): boolean {
    return true
  }

  act(answer: Answer): void {
    this.#isOver = true
    if (this.#isTooLate(answer)) return this.#drop(answer)
    if (answer.kind === 'reply' && this.#canReplyLast()) return this.#replyLast(answer.reply)
    const isFromHandler = this.#context !== undefined && hasReturned(this.#context)
    const isNotShown = answer.kind === 'reply' && this.#node.produced() === undefined
    this.#node.act(answer)
    // A handler that still runs owns the context, so a reply in its place is not shown there.
    if (isNotShown && (isFromHandler || this.#context === undefined)) show(this.#ctx, answer.reply)
    if (answer.kind === 'reply' || answer.kind === 'deliver') this.#goOn()
  }

  #enter(context: HandlerContext): void {
    const ctx = this.#ctx
    this.#context = context
    this.#isRunning = true
    Object.assign(ctx, { idempotency: context })
    this.#watchErrors(context)
    this.#watchKoa(context)
    this.#pass.resolve(this.#run(context))
  }

  async #run(context: HandlerContext): Promise<void> {
    try {
      await this.#next()
    } catch (error) {
      context.failed(error)
      throw error
    } finally {
      this.#isRunning = false
    }
    this.#noteSuccess()
    // A transaction has returned the reply: Koa gets it when the guard has answered.
    if (!hasReturned(context)) return
    this.#isAwaited = true
    await this.#answered.promise
  }

  #noteSuccess(): void {
    const { body, status } = this.#ctx
    this.#hasSucceeded = status < 400
    if (!isEmitter(body)) return
    // An error of the stream is an error of the handler. This listener runs before Koa's.
    body.prependOnceListener('error', (error) => {
      this.#hasSucceeded = false
      process.nextTick(() => this.#reportStreamError(error, body))
    })
  }

  /** Koa 3 gets no errors of a stream that is piped into another one; the reply would not end. */
  #reportStreamError(error: Error, body: unknown): void {
    const ctx = this.#ctx
    if (ctx.body !== body && this.#lastError !== error) ctx.onerror(error)
  }

  /**
   * A failure outside the handler says nothing about its work, which has ended or still runs and
   * must not run again. Marked as if an effect had begun.
   */
  #doubtForeignFailure(): void {
    if (this.#isRunning || this.#isAbandoned || this.#hasSucceeded) this.#context?.downstreamKey()
  }

  /** Koa reads `ctx.respond` when the middlewares before the guard have ended. */
  #watchKoa(context: HandlerContext): void {
    const ctx = this.#ctx as WatchedContext
    const isEnding = () => {
      if (this.#isRunning && !isWithin(context)) this.#isAbandoned = true
    }
    ctx[WATCH] = { isEnding, respond: ctx.respond }
    Object.defineProperty(ctx, 'respond', RESPOND)
  }

  /** Koa calls `ctx.onerror` with errors of middlewares, of streams and of the socket. */
  #watchErrors(context: HandlerContext): void {
    const ctx = this.#ctx
    const report = ctx.onerror
    const onerror = (error: Error | null | undefined) => {
      if (error === null || error === undefined) return
      this.#lastError = error
      if (!this.#isOver && error === ctx.req.socket.errored) {
        // The client has disconnected. Koa would write an error reply, which would be recorded.
        ctx.app.emit('error', Object.assign(error, { headerSent: true }), ctx)
        return
      }
      if (!this.#isOver) context.failed(error)
      report.call(ctx, error)
      if (ctx.res.writableEnded) return
      // The reply has begun, and no code will end it.
      if (!isWebBody(ctx.body)) this.#doubtForeignFailure()
      ctx.res.destroy(error instanceof Error ? error : undefined)
    }
    Object.assign(ctx, { onerror })
  }

  /** Whether a middleware before the guard has replied without waiting for it. */
  #isTooLate({ kind }: Answer): boolean {
    return this.#context === undefined && kind !== 'pass' && this.#ctx.res.headersSent
  }

  /** Does not reject: without a waiting middleware, a rejection would end the process. */
  #drop(answer: Answer): void {
    if (answer.kind === 'error') this.#ctx.app.emit('error', answer.error, this.#ctx)
    this.#goOn()
  }

  #fail(error: unknown): void {
    if (this.#context === undefined) return this.#pass.reject(error)
    if (this.#isAwaited) return this.#answered.reject(error)
    this.#ctx.onerror(error as Error)
    this.#answered.resolve()
  }

  /** False if `ctx.respond` is false, because then Koa does not reply. */
  #canReplyLast(): boolean {
    return (this.#context === undefined || this.#isAwaited) && this.#ctx.respond !== false
  }

  /**
   * Lets the middlewares before the guard end first, so that they see the status and can set
   * cookies and headers. Their changes to the body are discarded.
   */
  #replyLast(reply: HttpReply): void {
    if (this.#context === undefined) this.#node.capture(0)
    else this.#node.reset()
    // The reply is sent as recorded, so koa-compress must not compress it.
    Object.assign(this.#ctx, { compress: false })
    show(this.#ctx, reply)
    const send = () => {
      this.#node.act({ kind: 'reply', reply: withOtherHeaders(reply, this.#node.produced()) })
    }
    this.#node
      .whole()
      .then(send, send)
      .catch((error: unknown) => this.#ctx.onerror(error as Error))
    this.#goOn()
  }

  #goOn(): void {
    this.#pass.resolve()
    this.#answered.resolve()
  }
}

/** Shows a reply on the context, where middlewares look for it. */
function show(ctx: Context, { status, body }: HttpReply): void {
  ctx.body = body.byteLength === 0 ? null : Buffer.from(body)
  ctx.status = status
}

/** The reply, with the headers of other middlewares that do not describe its body. */
function withOtherHeaders(reply: HttpReply, produced: Produced | undefined): HttpReply {
  if (produced === undefined) return reply
  const { headers } = produced.kind === 'reply' ? produced.reply : produced
  const own = new Set(reply.headers.map(([name]) => name.toLowerCase()))
  const others = headers.filter(([name]: HeaderPair) => !own.has(name) && !BODY_HEADERS.has(name))
  return { ...reply, headers: [...others, ...reply.headers] }
}

function hasReturned(context: HandlerContext): boolean {
  return context instanceof GuardedContext && context.returned !== undefined
}

interface Emitter {
  prependOnceListener(event: 'error', listener: (error: Error) => void): unknown
}

function isEmitter(body: unknown): body is Emitter {
  return typeof (body as Partial<Emitter> | null | undefined)?.prependOnceListener === 'function'
}

function isWebBody(body: unknown): boolean {
  return body instanceof ReadableStream || body instanceof Response
}

/** Lets pending promise callbacks run. */
function tick(): Promise<void> {
  return new Promise((resolve) => {
    process.nextTick(resolve)
  })
}
