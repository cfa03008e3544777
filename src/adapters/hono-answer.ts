import type { Context } from 'hono'
import { isWithin } from '../http/current.ts'
import type { HandlerContext } from '../http/handler-context.ts'

/**
 * Notes whether a request was answered by somebody else than its handler: by a timeout before the
 * guard, or by the guard. Hono then drops what the handler returns, and `c.res` is not its reply.
 */
export class AnswerWatch {
  readonly #c: Context
  #context: HandlerContext | undefined
  #isAnswered = false

  constructor(c: Context) {
    this.#c = c
    const base = Object.getPrototypeOf(c) as object
    Object.defineProperty(c, 'res', {
      configurable: true,
      get: (): unknown => Reflect.get(base, 'res', c),
      set: (response: unknown) => {
        if (!this.#isWithinHandler()) this.#isAnswered = true
        Reflect.set(base, 'res', response, c)
      },
    })
  }

  get isAnswered(): boolean {
    return this.#isAnswered
  }

  /** From now on there is a handler. */
  enter(context: HandlerContext): void {
    this.#context = context
  }

  /** The guard answers now. Returns whether somebody was faster. */
  end(): boolean {
    const wasAnswered = this.#isAnswered
    this.#isAnswered = true
    Reflect.deleteProperty(this.#c, 'res')
    return wasAnswered
  }

  #isWithinHandler(): boolean {
    return this.#context !== undefined && isWithin(this.#context)
  }
}
