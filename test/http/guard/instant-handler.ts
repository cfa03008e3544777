import type {
  ExchangeBody,
  CapturedHandler,
  HttpExchange,
  HttpReply,
  Produced,
} from '../../../src/http/guard/exchange.ts'
import type { HandlerContext } from '../../../src/http/guard/handler-context.ts'

/** A handler that replies at once with the given reply. */
export class InstantHandler implements CapturedHandler {
  entered = 0
  context: HandlerContext | undefined
  readonly #reply: HttpReply | Error

  constructor(reply: HttpReply | Error) {
    this.#reply = reply
  }

  enter(context: HandlerContext): void {
    this.entered++
    this.context = context
  }

  async whole(): Promise<Produced> {
    if (this.#reply instanceof Error) throw this.#reply
    return { kind: 'reply', reply: this.#reply }
  }

  produced(): Produced | undefined {
    return this.#reply instanceof Error ? undefined : { kind: 'reply', reply: this.#reply }
  }

  reset(): void {}
  failed(): void {}
  seesErrors(): boolean {
    return true
  }
}

export const ok = (body: string, headers: HttpReply['headers'] = []): HttpReply => ({
  status: 200,
  headers,
  body: Buffer.from(body),
})

export function exchangeOf(
  headers: Readonly<Record<string, string>>,
  body: ExchangeBody = { kind: 'none' },
): HttpExchange {
  return {
    method: 'POST',
    path: '/payments',
    query: '',
    route: '/payments',
    header: (name) => headers[name],
    body: () => body,
  }
}
