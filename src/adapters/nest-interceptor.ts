import type { CallHandler, ExecutionContext, NestInterceptor } from '@nestjs/common'
import { Observable } from 'rxjs'
import { InvalidOptionsError } from '../core/errors.ts'
import type { ExchangeBody, HttpExchange } from '../http/exchange.ts'
import { http2Refusal } from './http-version.ts'
import { isWatchedMethod } from './nest-entry.ts'
import { NestHandler } from './nest-handler.ts'
import { NestCall, type NestRequest } from './nest-request.ts'
import type { NestRoutes } from './nest-routes.ts'
import { splitUrl } from './node-handler.ts'

/** Requests on their way through the guard. What has not used it may try once more. */
const guarded = new WeakSet<NestRequest>()

/** Stands in the way of every handler, behind the guards, and acts where a decorator says so. */
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
          const isTried = request.idempotency !== undefined || answer.kind === 'reply'
          if (!isTried) guarded.delete(request)
          handler.act(answer)
        })
        .catch((error: unknown) => outer.error(error))
      return () => handler.leave()
    })
  }
}

/** A class, as `ExecutionRequest`, and because an accessor of each request's own would keep it. */
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
      `${context.getType<string>()}, where @Idempotent() cannot protect it: it protects the ` +
      'routes of controllers. For anything else there is engine.run()',
  )
}

/** The second guard would find the key held by the first, and refuse every request for ever. */
function mountedTwice(): InvalidOptionsError {
  return new InvalidOptionsError(
    'idempotency is in the way of this handler twice: by a middleware and by @Idempotent() (keep ' +
      'one of them), or because an interceptor has called it again (retry inside of it instead)',
  )
}
