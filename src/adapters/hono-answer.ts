import type { Context } from 'hono'
import { isWithin } from '../http/current.ts'
import type { HandlerContext } from '../http/handler-context.ts'

const WATCH = Symbol('oncekey.watch')

interface Watched extends Context {
  [WATCH]?: AnswerWatch | undefined
}

/**
 * One for all contexts. V8 keeps accessors, and whatever functions of a request's own refer to,
 * until a full collection.
 */
const RES: PropertyDescriptor & ThisType<Watched> = {
  configurable: true,
  get(): unknown {
    return Reflect.get(Object.getPrototypeOf(this) as object, 'res', this)
  },
  set(response: unknown) {
    this[WATCH]?.see()
    Reflect.set(Object.getPrototypeOf(this) as object, 'res', response, this)
  },
}

/**
 * Notes whether a request was answered by somebody else than its handler: by a timeout before the
 * guard, or by the guard. Hono then drops what the handler returns, and `c.res` is not its reply.
 */
export class AnswerWatch {
  readonly #c: Watched
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

  /** From now on there is a handler. */
  enter(context: HandlerContext): void {
    this.#context = context
  }

  /** Somebody sets the response. */
  see(): void {
    const isOfHandler = this.#context !== undefined && isWithin(this.#context)
    if (!isOfHandler) this.#isAnswered = true
  }

  /** The guard answers now. Returns whether somebody was faster. */
  end(): boolean {
    const wasAnswered = this.#isAnswered
    this.#isAnswered = true
    // The property stays, and does nothing more: an object that loses one is slow for ever.
    this.#c[WATCH] = undefined
    return wasAnswered
  }
}
