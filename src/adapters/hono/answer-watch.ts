import type { Context } from 'hono'
import { isWithin } from '../../http/guard/current.ts'
import type { HandlerContext } from '../../http/guard/handler-context.ts'

const WATCH = Symbol('oncekey.watch')

interface WatchedContext extends Context {
  [WATCH]?: AnswerWatch | undefined
}

/**
 * Shared by all contexts: V8 would keep accessors per request, and the objects they refer to, until
 * a full garbage collection.
 */
const RES: PropertyDescriptor & ThisType<WatchedContext> = {
  configurable: true,
  get(): unknown {
    return Reflect.get(Object.getPrototypeOf(this) as object, 'res', this)
  },
  set(response: unknown) {
    this[WATCH]?.onResponseSet()
    Reflect.set(Object.getPrototypeOf(this) as object, 'res', response, this)
  },
}

/**
 * Notes whether code outside the handler has answered the request: a timeout before the guard, or
 * the guard itself. Hono then drops the response of the handler, and `c.res` is another reply.
 */
export class AnswerWatch {
  readonly #c: WatchedContext
  #context: HandlerContext | undefined
  #isAnswered = false

  constructor(c: Context) {
    this.#c = c
    this.#c[WATCH] = this
    Object.defineProperty(c, 'res', RES)
  }

  get isAnswered(): boolean {
    return this.#isAnswered
  }

  /** The handler starts to run with this context. */
  enter(context: HandlerContext): void {
    this.#context = context
  }

  /** Called when code sets `c.res`. */
  onResponseSet(): void {
    const isByHandler = this.#context !== undefined && isWithin(this.#context)
    if (!isByHandler) this.#isAnswered = true
  }

  /** The guard answers now. Returns whether other code outside the handler has answered before. */
  end(): boolean {
    const wasAnswered = this.#isAnswered
    this.#isAnswered = true
    // The property stays without effect, because an object that loses a property becomes slow.
    this.#c[WATCH] = undefined
    return wasAnswered
  }
}
