import {
  applyDecorators,
  createParamDecorator,
  Inject,
  Injectable,
  Optional,
  SetMetadata,
  UseInterceptors,
  type CallHandler,
  type ExecutionContext,
  type NestInterceptor,
} from '@nestjs/common'
import type { Observable } from 'rxjs'
import { InvalidOptionsError, InvalidRequestError } from '../core/errors.ts'
import { describe } from '../core/options.ts'
import type { HandlerContext } from '../http/handler-context.ts'
import type { RouteOptions } from '../http/route-options.ts'
import type { NestRequest } from './nest-request.ts'

/** What `@Idempotent()` was given: options, or `false` where it is to leave a method alone. */
export type IdempotentOptions = RouteOptions<NestRequest> | false

const IDEMPOTENT = Symbol.for('oncekey.nest.idempotent')

/** Under this token the module provides what it knows of its routes. */
export const ROUTES = Symbol.for('oncekey.nest.routes')

/**
 * Nest constructs an interceptor for every module that uses the decorator, so this constructor
 * fails the start of an app that does not import the module.
 */
class NeedsIdempotencyModule implements NestInterceptor {
  readonly isMet: boolean

  constructor(routes: unknown) {
    this.isMet = routes !== undefined
    if (this.isMet) return
    throw new InvalidOptionsError(
      '@Idempotent() protects nothing without its module: add IdempotencyModule.forRoot({ store, ' +
        'tenant }) to the imports of your root module',
    )
  }

  /** Nest refuses interceptors without it since 11.2.10. `IdempotencyInterceptor` does the work. */
  intercept(_context: ExecutionContext, next: CallHandler): Observable<unknown> {
    return next.handle()
  }
}
Injectable()(NeedsIdempotencyModule)
Optional()(NeedsIdempotencyModule, undefined, 0)
Inject(ROUTES)(NeedsIdempotencyModule, undefined, 0)

/**
 * Runs each `Idempotency-Key` of a route at most once and replays its reply after that; on a
 * controller, of all its routes that change something. What a method says goes before what its
 * controller says, and both before the module; `@Idempotent(false)` leaves a method alone.
 *
 * @example
 * ```ts
 * @Controller('payments')
 * export class PaymentsController {
 *   @Post()
 *   @Idempotent({ operation: 'create-payment' })
 *   create(@Body() payment: PaymentDto) {
 *     return this.payments.create(payment)
 *   }
 * }
 * ```
 */
export function Idempotent<Request extends object = NestRequest>(
  options: RouteOptions<Request> | false = {},
  ...rest: readonly never[]
): ClassDecorator & MethodDecorator {
  // What TypeScript hands to a decorator: the prototype, a name, and a descriptor.
  if (rest.length > 0) throw notCalled()
  if (options !== false && (typeof options !== 'object' || options === null)) {
    throw new InvalidOptionsError(
      `@Idempotent() takes the options of a route, or false, got ${describe(options)}`,
    )
  }
  const mark = SetMetadata(IDEMPOTENT, options)
  if (options === false) return mark
  return applyDecorators(mark, UseInterceptors(NeedsIdempotencyModule))
}

function notCalled(): InvalidOptionsError {
  return new InvalidOptionsError(
    '@Idempotent was put on a method without being called, which would protect nothing: write ' +
      '@Idempotent()',
  )
}

/** What a class or a method was decorated with; `undefined` where it was not. */
export function idempotentOf(target: object): IdempotentOptions | undefined {
  return Reflect.getMetadata(IDEMPOTENT, target) as IdempotentOptions | undefined
}

/**
 * The key of this request and what its handler may do about it. Throws where there is none, so
 * that a forgotten `@Idempotent()` is found by the first request.
 */
export function idempotencyOf(request: object): HandlerContext {
  const { idempotency, method, url } = request as NestRequest
  if (idempotency !== undefined) return idempotency
  throw new InvalidRequestError(
    `${method} ${url.split('?')[0]} is not protected: put @Idempotent() on its method or ` +
      'controller, and send a key with the request',
  )
}

export interface IdempotencyContextOptions {
  /** Gives `undefined` instead of throwing, for routes with `keyRequired: false`. @default false */
  readonly optional?: boolean
}

/**
 * Gives a handler the key of its request and what it may do about it: a `HandlerContext`.
 *
 * @example
 * ```ts
 * @Post()
 * @Idempotent()
 * create(@Body() order: OrderDto, @IdempotencyContext() idempotency: HandlerContext) {
 *   return this.orders.create(idempotency.deterministicId('order'), order)
 * }
 * ```
 */
export const IdempotencyContext: (options?: IdempotencyContextOptions) => ParameterDecorator =
  createParamDecorator(
    (options: IdempotencyContextOptions | undefined, context: ExecutionContext) => {
      const request = context.switchToHttp().getRequest<NestRequest>()
      return options?.optional === true ? request.idempotency : idempotencyOf(request)
    },
  )
