import {
  Inject,
  Injectable,
  Optional,
  UseInterceptors,
  type ExecutionContext,
  type NestInterceptor,
} from '@nestjs/common'
import { Observable } from 'rxjs'
import { InvalidOptionsError } from '../core/errors.ts'
import { describe } from '../core/options.ts'
import type { HttpReply } from '../http/exchange.ts'
import { forRoute, type RouteOptions } from '../http/route-options.ts'
import { STATUS_OPTION_NAMES, type StatusOptions } from '../http/status-options.ts'
import { createStatus, lastSegment, type Status } from '../http/status.ts'
import { HeldResponse } from './held-response.ts'
import { ROUTES } from './nest-decorators.ts'
import { dropBodyHeaders, NestCall, withHeaders, type NestRequest } from './nest-request.ts'
import type { NestRoutes } from './nest-routes.ts'

/** What is not said here is as `IdempotencyModule` has it. */
export type IdempotencyStatusOptions<Request extends object = NestRequest> = Partial<
  StatusOptions<Request>
>

/**
 * Makes a GET route of your own tell a client what became of its request, by the id in the
 * `Location` of its 202. Guards, prefix and version are those of the route; its method is never
 * called.
 *
 * @example
 * ```ts
 * @Controller('operations')
 * @UseGuards(AuthGuard)
 * export class OperationsController {
 *   @Get(':id')
 *   @IdempotencyStatus()
 *   status(): void {}
 * }
 * ```
 */
export function IdempotencyStatus<Request extends object = NestRequest>(
  options: IdempotencyStatusOptions<Request> = {},
): MethodDecorator {
  if (typeof options !== 'object' || options === null) {
    throw new InvalidOptionsError(
      `@IdempotencyStatus() takes an options object, got ${describe(options)}`,
    )
  }

  // One for each route: Nest makes it when the app starts, and wrong options end the start.
  class StatusInterceptor implements NestInterceptor {
    readonly #status: Status<NestRequest>

    constructor(routes: NestRoutes | undefined) {
      this.#status = createStatus(optionsOf(routes, options), recordIdOf)
    }

    intercept(context: ExecutionContext): Observable<unknown> {
      return answered(new NestCall(context), this.#status)
    }
  }
  Injectable()(StatusInterceptor)
  Optional()(StatusInterceptor, undefined, 0)
  Inject(ROUTES)(StatusInterceptor, undefined, 0)
  return UseInterceptors(StatusInterceptor)
}

function optionsOf(routes: NestRoutes | undefined, own: object): StatusOptions<NestRequest> {
  if (routes === undefined) {
    throw new InvalidOptionsError(
      '@IdempotencyStatus() knows no records without its module: add ' +
        'IdempotencyModule.forRoot({ store, tenant }) to the imports of your root module',
    )
  }
  const shared = Object.entries(routes.options).filter(([name]) => NAMES.has(name))
  const all = Object.fromEntries(shared) as unknown as NestRoutes['options']
  return forRoute(all, own as RouteOptions<NestRequest>)
}

const NAMES: ReadonlySet<string> = new Set(STATUS_OPTION_NAMES)

/** In place of the handler. */
function answered(call: NestCall, status: Status<NestRequest>): Observable<unknown> {
  const { method } = call.request
  const accepted = call.req.headers['accept-encoding']
  return new Observable((outer) => {
    status
      .reply(call.request, { method, accepted })
      .then((reply) => {
        if (!call.isAnswered) send(call, reply)
        outer.next(undefined)
        outer.complete()
      })
      .catch((error: unknown) => outer.error(error))
  })
}

/** The reply leaves; what Nest replies afterwards, because it always does, goes nowhere. */
function send(call: NestCall, reply: HttpReply): void {
  const before = call.headersBefore()
  dropBodyHeaders(call.res)
  new HeldResponse(call.res, 0).replace(withHeaders(reply, before))
}

function recordIdOf({ params, originalUrl }: NestRequest): unknown {
  const { id } = (params ?? {}) as { readonly id?: unknown }
  return id ?? lastSegment(originalUrl.split('?')[0]!)
}
