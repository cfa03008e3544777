import {
  Inject,
  Injectable,
  Optional,
  UseInterceptors,
  type ExecutionContext,
  type NestInterceptor,
} from '@nestjs/common'
import { Observable } from 'rxjs'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe } from '../../core/options.ts'
import type { HttpReply } from '../../http/guard/exchange.ts'
import { forRoute, type RouteOptions } from '../../http/guard/route-options.ts'
import { STATUS_OPTION_NAMES, type StatusOptions } from '../../http/status/status-options.ts'
import { createStatus, lastSegment, type Status } from '../../http/status/status.ts'
import { CapturedResponse } from '../node-http/captured-response.ts'
import { ROUTES } from './decorators.ts'
import { dropBodyHeaders, NestCall, withHeaders, type NestRequest } from './platform-request.ts'
import type { NestRoutes } from './protected-routes.ts'

/** Each option defaults to the one of `IdempotencyModule`. */
export type IdempotencyStatusOptions<Request extends object = NestRequest> = Partial<
  StatusOptions<Request>
>

/**
 * Makes a GET route report the state of an operation to its client, which has the record id from
 * the `Location` of a 202. The guards, prefix and version of the route apply: authenticate in a
 * guard. The method is never called.
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

  // A class for each route: Nest creates it when the app starts, so wrong options fail the start.
  class StatusInterceptor implements NestInterceptor {
    readonly #status: Status<NestRequest>

    constructor(routes: NestRoutes | undefined) {
      this.#status = createStatus(optionsOf(routes, options), recordIdOf)
    }

    intercept(context: ExecutionContext): Observable<unknown> {
      return replyInstead(new NestCall(context), this.#status)
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
      '@IdempotencyStatus() finds no records without its module: add ' +
        'IdempotencyModule.forRoot({ store, tenant }) to the imports of your root module',
    )
  }
  // A principal that is part of the fingerprint only cannot be compared here.
  const isScoped = routes.options.scopeBy === 'tenant+principal+operation'
  const shared = Object.entries(routes.options).filter(
    ([name]) => STATUS_OPTIONS.has(name) && (isScoped || name !== 'principal'),
  )
  const all = Object.fromEntries(shared) as unknown as NestRoutes['options']
  return forRoute(all, own as RouteOptions<NestRequest>)
}

const STATUS_OPTIONS: ReadonlySet<string> = new Set(STATUS_OPTION_NAMES)

/** Replies in place of the handler. */
function replyInstead(call: NestCall, status: Status<NestRequest>): Observable<unknown> {
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

/** Sends the reply. Nest always replies afterwards, and the captured response discards that. */
function send(call: NestCall, reply: HttpReply): void {
  const before = call.headersBefore()
  dropBodyHeaders(call.res)
  new CapturedResponse(call.res, 0).replace(withHeaders(reply, before))
}

function recordIdOf({ params, originalUrl }: NestRequest): unknown {
  const { id } = (params ?? {}) as { readonly id?: unknown }
  return id ?? lastSegment(originalUrl.split('?')[0]!)
}
