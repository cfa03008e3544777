/** The handler of a Koa request: everything behind the guard, and what Koa makes of it. */
import type { Context, Next } from 'koa'
import { InvalidRequestError, NotExecutedError } from '../core/errors.ts'
import type { Answer, ExchangeBody, HeldHandler, HttpReply, Produced } from '../http/exchange.ts'
import { isWithin } from '../http/current.ts'
import { GuardedContext, type HandlerContext } from '../http/handler-context.ts'
import { statusOf } from '../http/handler-reply.ts'
import type { HeaderPair } from '../http/stored-headers.ts'
import { Deferred } from './deferred.ts'
import { NodeHandler } from './node-handler.ts'
import { ABOUT_BODY } from './outgoing.ts'

const WATCH = Symbol('oncekey.watch')

interface WatchedContext extends Context {
  /** What it was set to, and who is to hear that it was asked for. */
  [WATCH]: { readonly isEnding: () => void; respond: boolean | undefined }
}

/** One for all contexts: V8 keeps what accessors refer to until a full collection. */
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
 * Koa replies only when every middleware has ended, those before the guard too. So the response
 * is held while they do, and what Koa writes then is the reply.
 */
export class KoaHandler implements HeldHandler {
  /** What the middleware returns: resolves when those before the guard may go on. */
  readonly passed: Promise<void>
  readonly #pass: Deferred<void>
  readonly #ctx: Context
  readonly #next: Next
  readonly #node: NodeHandler
  /** Resolves when the guard has answered. */
  readonly #answered = new Deferred<void>()
  #context: HandlerContext | undefined
  #isRunning = false
  /** Whether those before the guard wait for its answer. */
  #isAwaited = false
  /** The handler has ended, and meant a success. */
  #endedWell = false
  /** Koa replies although the handler runs: somebody before the guard has not waited for it. */
  #isForsaken = false
  /** The last error that Koa was given. */
  #heard: Error | undefined
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
    // A middleware before us has given up waiting: nobody would hear of what the handler does.
    if (this.#ctx.res.headersSent) {
      throw new NotExecutedError(
        'the request was answered before its handler could run: every middleware before ' +
          'idempotency() has to wait for next()',
      )
    }
    this.#node.enter(context, replyBytesMax)
  }

  async whole(): Promise<Produced> {
    const produced = await this.#node.whole()
    // By then a handler that has replied by itself, as its last act, has ended.
    await tick()
    this.#suspectOthers()
    const status = statusOf(produced)
    // A refusal that is none of the handler's would be taken for its word that it did nothing.
    if (this.#isForsaken && status >= 400 && status < 500) this.#context?.outcomeUnknown()
    return produced
  }

  produced(): Produced | undefined {
    return this.#node.produced()
  }

  /** Koa's reply is made of the context at the very end: unless something was sent, none exists. */
  reset(): void {
    if (this.#ctx.res.headersSent) this.#node.reset()
  }

  failed(error: unknown): void {
    this.#node.failed(error)
  }

  /** What a handler throws passes by us before anybody makes a reply of it. */
  seesErrors(): boolean {
    return true
  }

  act(answer: Answer): void {
    this.#isOver = true
    if (this.#isTooLate(answer)) return this.#drop(answer)
    if (answer.kind === 'reply' && this.#canReplyLast()) return this.#replyLast(answer.reply)
    const isHandlers = this.#context !== undefined && hasReturned(this.#context)
    const isUnseen = answer.kind === 'reply' && this.#node.produced() === undefined
    this.#node.act(answer)
    // Not what we say in place of a handler that still runs: the context is its own.
    if (isUnseen && (isHandlers || this.#context === undefined)) show(this.#ctx, answer.reply)
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
    // The reply was returned to a transaction: Koa knows it as soon as the guard says so.
    if (!hasReturned(context)) return
    this.#isAwaited = true
    await this.#answered.promise
  }

  #noteSuccess(): void {
    const { body, status } = this.#ctx
    this.#endedWell = status < 400
    if (!isEmitter(body)) return
    // A stream is still the handler's: where it fails, the handler has. Koa hears of it after us.
    body.prependOnceListener('error', (error) => {
      this.#endedWell = false
      process.nextTick(() => this.#hearOf(error, body))
    })
  }

  /** Koa 3 hears nothing of a stream that feeds another one, and would leave the reply open. */
  #hearOf(error: Error, body: unknown): void {
    const ctx = this.#ctx
    if (ctx.body !== body && this.#heard !== error) ctx.onerror(error)
  }

  /**
   * A failure that is none of the handler's own says nothing about its work: that is done, or
   * still under way, and must not be repeated. As if an outside effect had begun.
   */
  #suspectOthers(): void {
    if (this.#isRunning || this.#isForsaken || this.#endedWell) this.#context?.downstreamKey()
  }

  /** Koa asks for `ctx.respond` when the middlewares before the guard have ended. */
  #watchKoa(context: HandlerContext): void {
    const ctx = this.#ctx as WatchedContext
    const isEnding = () => {
      if (this.#isRunning && !isWithin(context)) this.#isForsaken = true
    }
    ctx[WATCH] = { isEnding, respond: ctx.respond }
    Object.defineProperty(ctx, 'respond', RESPOND)
  }

  /** Koa gives errors to `ctx.onerror`: those of its chain, of streams, and of the socket. */
  #watchErrors(context: HandlerContext): void {
    const ctx = this.#ctx
    const report = ctx.onerror
    const onerror = (error: Error | null | undefined) => {
      if (error === null || error === undefined) return
      this.#heard = error
      if (!this.#isOver && error === ctx.req.socket.errored) {
        // The client is gone. Koa would reply to it, but this reply is the record's.
        ctx.app.emit('error', Object.assign(error, { headerSent: true }), ctx)
        return
      }
      if (!this.#isOver) context.failed(error)
      report.call(ctx, error)
      if (ctx.res.writableEnded) return
      // A reply that had begun, and that nobody will end any more.
      if (!isWebBody(ctx.body)) this.#suspectOthers()
      ctx.res.destroy(error instanceof Error ? error : undefined)
    }
    Object.assign(ctx, { onerror })
  }

  /** Whether somebody before the guard has replied without waiting for it. */
  #isTooLate({ kind }: Answer): boolean {
    return this.#context === undefined && kind !== 'pass' && this.#ctx.res.headersSent
  }

  /** Nobody may be waiting any more, and then a rejection would end the process. */
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

  /** Not where somebody has told Koa that it is not to reply: nobody else might. */
  #canReplyLast(): boolean {
    return (this.#context === undefined || this.#isAwaited) && this.#ctx.respond !== false
  }

  /**
   * Lets the middlewares before the guard end first, so that they see the status, and may set
   * their cookies and headers. What they make of the reply itself goes nowhere.
   */
  #replyLast(reply: HttpReply): void {
    if (this.#context === undefined) this.#node.hold(0)
    else this.#node.reset()
    // It is sent as it is: koa-compress has nothing to do.
    Object.assign(this.#ctx, { compress: false })
    show(this.#ctx, reply)
    const send = () => {
      this.#node.act({ kind: 'reply', reply: withOthers(reply, this.#node.produced()) })
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

/** Puts a reply where middlewares look for one. */
function show(ctx: Context, { status, body }: HttpReply): void {
  ctx.body = body.byteLength === 0 ? null : Buffer.from(body)
  ctx.status = status
}

/** The reply, with the headers that others have set and that say nothing about its content. */
function withOthers(reply: HttpReply, produced: Produced | undefined): HttpReply {
  if (produced === undefined) return reply
  const { headers } = produced.kind === 'reply' ? produced.reply : produced
  const own = new Set(reply.headers.map(([name]) => name.toLowerCase()))
  const others = headers.filter(([name]: HeaderPair) => !own.has(name) && !ABOUT_BODY.has(name))
  return { ...reply, headers: [...others, ...reply.headers] }
}

function hasReturned(context: HandlerContext): boolean {
  return context instanceof GuardedContext && context.returned !== undefined
}

/**
 * What a parser before us has made of the body. `koa-bodyparser` keeps the text too, in which
 * numbers too big for JavaScript still tell two requests apart.
 */
function parsedBody(ctx: Context): unknown {
  const { body, rawBody } = ctx.request as { readonly body?: unknown; readonly rawBody?: unknown }
  const type = ctx.req.headers['content-type'] ?? ''
  if (!/^multipart\//i.test(type)) {
    if (typeof rawBody === 'string') return Buffer.from(rawBody)
    if (rawBody instanceof Uint8Array) return rawBody
    // Parsers that leave a body alone still leave an empty object in its place.
    if (body !== undefined && (!isEmptyObject(body) || /json|urlencoded/i.test(type))) return body
  }
  throw new InvalidRequestError(
    'the body was read before idempotency() and cannot be compared with a retry: mount ' +
      'idempotency() before the parser, or let it keep ctx.request.rawBody, as koa-bodyparser does',
  )
}

function isEmptyObject(value: unknown): boolean {
  if (typeof value !== 'object' || value === null || value instanceof Uint8Array) return false
  return Object.keys(value).length === 0
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

/** Lets every promise that is ready be heard. */
function tick(): Promise<void> {
  return new Promise((resolve) => {
    process.nextTick(resolve)
  })
}
