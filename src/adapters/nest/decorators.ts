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
import { InvalidOptionsError, InvalidRequestError } from '../../core/errors.ts'
import { describe } from '../../core/options.ts'
import type { HandlerContext } from '../../http/guard/handler-context.ts'
import type { RouteOptions } from '../../http/guard/route-options.ts'
import type { NestRequest } from './platform-request.ts'

/** The argument of `@Idempotent()`. `false` excludes a method of a protected controller. */
export type IdempotentOptions = RouteOptions<NestRequest> | false

const IDEMPOTENT = Symbol.for('oncekey.nest.idempotent')

/** The injection token of `NestRoutes`. */
export const ROUTES = Symbol.for('oncekey.nest.routes')

/**
 * Fails the start of an app that uses `@Idempotent()` without `IdempotencyModule`: Nest constructs
 * this interceptor for every module that uses the decorator.
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

  /** Nest refuses an interceptor without this method since 11.2.10. */
  intercept(_context: ExecutionContext, next: CallHandler): Observable<unknown> {
    return next.handle()
  }
}
Injectable()(NeedsIdempotencyModule)
Optional()(NeedsIdempotencyModule, undefined, 0)
Inject(ROUTES)(NeedsIdempotencyModule, undefined, 0)

/**
 * Runs each `Idempotency-Key` of a route at most once and replays its reply after that. On a
 * controller, protects all of its POST and PATCH routes (see the option `methods`).
 *
 * Options of a method override those of its controller, and both override the module.
 * `@Idempotent(false)` excludes a method of a protected controller.
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
  // Without the parentheses, TypeScript passes the prototype, a name and a descriptor.
  if (rest.length > 0) throw notCalled()
  if (options !== false && (typeof options !== 'object' || options === null)) {
    throw new InvalidOptionsError(
      `@Idempotent() takes the options of a route or false, got ${describe(options)}`,
    )
  }
  const mark = SetMetadata(IDEMPOTENT, options)
  if (options === false) return mark
  return applyDecorators(mark, UseInterceptors(NeedsIdempotencyModule))
}

function notCalled(): InvalidOptionsError {
  return new InvalidOptionsError(
    '@Idempotent is used on a method without being called, so it would protect nothing: write ' +
      '@Idempotent()',
  )
}

/** The argument of `@Idempotent()` on a class or method; `undefined` if it is not decorated. */
export function idempotentOf(target: object): IdempotentOptions | undefined {
  return Reflect.getMetadata(IDEMPOTENT, target) as IdempotentOptions | undefined
}

/**
 * The idempotency context of a request: its key, and the methods that its handler can call. Throws
 * if the request has none, so that the first request finds a forgotten `@Idempotent()`.
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
  /**
   * Passes `undefined` instead of throwing if the request is not protected. For routes with
   * `keyRequired: false`. A forgotten `@Idempotent()` then stays unnoticed.
   *
   * @default false
   */
  readonly optional?: boolean
}

/**
 * Passes the idempotency context of the request to a parameter of the handler: a `HandlerContext`,
 * with the key and the methods that the handler can call. Throws if the request is not protected.
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
