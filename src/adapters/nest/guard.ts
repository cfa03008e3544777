import type { CallHandler, ExecutionContext, NestInterceptor } from '@nestjs/common'
import { Observable } from 'rxjs'
import { InvalidOptionsError } from '../../core/errors.ts'
import type { ExchangeBody, HttpExchange } from '../../http/guard/exchange.ts'
import { http2Refusal } from '../node-http/http-version.ts'
import { isWatchedMethod } from './method-entry.ts'
import { NestHandler } from './handler.ts'
import { NestCall, type NestRequest } from './platform-request.ts'
import type { NestRoutes } from './protected-routes.ts'
import { splitUrl } from '../node-http/node-handler.ts'

/**
 * Requests that have entered the guard. A request leaves the set when its handler was not entered
 * and the guard did not reply, so that an interceptor can try again.
 */
const guarded = new WeakSet<NestRequest>()

/** Runs before every handler, behind the guards of Nest, and protects the decorated routes. */
export class IdempotencyInterceptor implements NestInterceptor {
  readonly #routes: NestRoutes

  constructor(routes: NestRoutes) {
    this.#routes = routes
  }

  intercept(context: ExecutionContext, next: CallHandler): Observable<unknown> {
    const guard = this.#routes.guardOf(context.getClass(), context.getHandler())
    if (guard === undefined) return next.handle()
    if (context.getType() !== 'http') throw notHttp(context)
    const call = new NestCall(context)
    if (!guard.protects(call.request.method)) return next.handle()
    const { request } = call
    const refusal = http2Refusal(call.req)
    if (refusal !== undefined) throw refusal
    const suffix = this.#routes.versionSuffix(context.getClass(), context.getHandler())

    return new Observable((outer) => {
      if (request.idempotency !== undefined || guarded.has(request)) {
        return outer.error(mountedTwice())
      }
      guarded.add(request)
      const isWatched = isWatchedMethod(context.getHandler())
      const handler = new NestHandler({ call, isWatched }, next, outer)
      guard
        .handle(request, new NestExchange(call, handler, suffix), handler)
        .then((answer) => {
          const isUsed = request.idempotency !== undefined || answer.kind === 'reply'
          if (!isUsed) guarded.delete(request)
          handler.act(answer)
        })
        .catch((error: unknown) => outer.error(error))
      return () => handler.abandon()
    })
  }
}

/** A class, because an accessor per request would keep the request until a full collection. */
class NestExchange implements HttpExchange {
  readonly method: string
  readonly path: string
  readonly query: string
  readonly #call: NestCall
  readonly #handler: NestHandler
  readonly #suffix: string

  constructor(call: NestCall, handler: NestHandler, suffix: string) {
    const [path, query] = splitUrl(call.request.originalUrl)
    this.method = call.request.method
    this.path = path
    this.query = query
    this.#call = call
    this.#handler = handler
    this.#suffix = suffix
  }

  get route(): string {
    return this.#call.template + this.#suffix
  }

  header(name: string): string | readonly string[] | undefined {
    return this.#call.req.headers[name]
  }

  body(bytesMax: number): Promise<ExchangeBody> | ExchangeBody {
    return this.#handler.body(bytesMax)
  }
}

function notHttp(context: ExecutionContext): InvalidOptionsError {
  return new InvalidOptionsError(
    `${context.getClass().name}.${context.getHandler().name} was called by ` +
      `${context.getType<string>()}, but @Idempotent() protects only HTTP routes of controllers: ` +
      'use engine.run() for other work',
  )
}

/** The second guard would find that the first one holds the key, and refuse every request. */
function mountedTwice(): InvalidOptionsError {
  return new InvalidOptionsError(
    'this request reached an idempotency guard twice: a middleware and @Idempotent() protect it ' +
      '(keep one of them), or an interceptor has called the handler again (retry inside the ' +
      'handler instead)',
  )
}
