import {
  Inject,
  Module,
  type BeforeApplicationShutdown,
  type DynamicModule,
  type InjectionToken,
  type ModuleMetadata,
  type OnModuleInit,
  type OptionalFactoryDependency,
  type Provider,
  type Type,
} from '@nestjs/common'
import { APP_INTERCEPTOR, ModuleRef, ModulesContainer, type ApplicationConfig } from '@nestjs/core'
import { InvalidOptionsError } from '../../core/errors.ts'
import type { GuardOptions } from '../../http/guard/guard-options.ts'
import { ROUTES } from './decorators.ts'
import { IdempotencyInterceptor } from './guard.ts'
import type { NestRequest } from './platform-request.ts'
import { NestRoutes } from './protected-routes.ts'

/**
 * Options of the module, which are the defaults of all routes. `Request` is the request type of the
 * platform, such as `Request` of Express.
 */
export type IdempotencyOptions<Request extends object = NestRequest> = GuardOptions<Request>

/** A provider that creates the options of the module, for `useClass` and `useExisting`. */
export interface IdempotencyOptionsFactory<Request extends object = NestRequest> {
  createIdempotencyOptions(): IdempotencyOptions<Request> | Promise<IdempotencyOptions<Request>>
}

/** Options of `forRootAsync`. Needs exactly one of `useFactory`, `useClass` and `useExisting`. */
export interface IdempotencyModuleAsyncOptions<Request extends object = NestRequest> extends Pick<
  ModuleMetadata,
  'imports'
> {
  /** Providers that are passed to `useFactory`. None may be request-scoped. @default [] */
  inject?: (InjectionToken | OptionalFactoryDependency)[]
  /** Creates the options from the providers in `inject`. @default none */
  useFactory?: (
    ...args: never[]
  ) => IdempotencyOptions<Request> | Promise<IdempotencyOptions<Request>>
  /** A class that the module instantiates to create the options. @default none */
  useClass?: Type<IdempotencyOptionsFactory<Request>>
  /** A provider of a module in `imports` that creates the options. @default none */
  useExisting?: InjectionToken<IdempotencyOptionsFactory<Request>>
}

/** The injection token of the module's engine: `@Inject(IDEMPOTENCY_ENGINE) engine: Engine`. */
export const IDEMPOTENCY_ENGINE: unique symbol = Symbol.for('oncekey.nest.engine')

const OPTIONS = Symbol.for('oncekey.nest.options')

/**
 * Protects the routes with `@Idempotent()`, in all modules of the app. Import it once, in the root
 * module. `app.close()` waits for running handlers, and leaves the store open.
 *
 * @example
 * ```ts
 * @Module({
 *   imports: [
 *     IdempotencyModule.forRoot({
 *       store: sqliteStore({ path: 'data/keys.db' }),
 *       tenant: (request: AuthenticatedRequest) => request.user.account,
 *     }),
 *   ],
 * })
 * export class AppModule {}
 * ```
 */
export class IdempotencyModule implements OnModuleInit, BeforeApplicationShutdown {
  readonly #moduleRef: ModuleRef
  #routes: NestRoutes | undefined

  /** Creates the module with these options. */
  static forRoot<Request extends object = NestRequest>(
    options: IdempotencyOptions<Request>,
  ): DynamicModule {
    // A factory, because Nest 10 would serialize a whole value to distinguish modules.
    return toModule([{ provide: OPTIONS, useFactory: () => options }])
  }

  /** Creates the module with options that come from providers of the app, such as a store. */
  static forRootAsync<Request extends object = NestRequest>(
    options: IdempotencyModuleAsyncOptions<Request>,
  ): DynamicModule {
    return { ...toModule(asyncProviders(options)), imports: options.imports ?? [] }
  }

  constructor(moduleRef: ModuleRef) {
    this.#moduleRef = moduleRef
  }

  onModuleInit(): void {
    checkOnce(this.#moduleRef.get(ModulesContainer, { strict: false }))
    this.#routes = routesIn(this.#moduleRef)
    this.#routes.check()
  }

  /** Runs before the server and the store are closed, so that running handlers are recorded. */
  async beforeApplicationShutdown(): Promise<void> {
    await this.#routes?.close()
  }
}
Module({})(IdempotencyModule)
Inject(ModuleRef)(IdempotencyModule, undefined, 0)

let moduleCount = 0

function toModule(providers: readonly Provider[]): DynamicModule {
  return {
    module: IdempotencyModule,
    global: true,
    providers: [
      ...providers,
      // Nest 10 drops a second module with the same metadata, and `checkOnce` would not see it.
      { provide: `oncekey.nest.module.${++moduleCount}`, useValue: true },
      {
        provide: ROUTES,
        useFactory: (options: GuardOptions<NestRequest>, modules: ModulesContainer, ref: object) =>
          new NestRoutes(options, modules, configOf(ref)),
        inject: [OPTIONS, ModulesContainer, ModuleRef],
      },
      {
        provide: IDEMPOTENCY_ENGINE,
        useFactory: (routes: NestRoutes) => routes.engine,
        inject: [ROUTES],
      },
      {
        provide: APP_INTERCEPTOR,
        useFactory: (routes: NestRoutes) => new IdempotencyInterceptor(routes),
        inject: [ROUTES],
      },
    ],
    exports: [ROUTES, IDEMPOTENCY_ENGINE],
  }
}

function asyncProviders<Request extends object>(
  options: IdempotencyModuleAsyncOptions<Request>,
): Provider[] {
  const { useFactory, useClass, useExisting, inject = [] } = options
  const ways = [useFactory, useClass, useExisting].filter((one) => one !== undefined)
  if (ways.length !== 1) {
    throw new InvalidOptionsError(
      'IdempotencyModule.forRootAsync takes exactly one of useFactory, useClass and useExisting, ' +
        `got ${ways.length === 0 ? 'none' : ways.length}`,
    )
  }
  if (useFactory !== undefined) return [{ provide: OPTIONS, useFactory, inject }]
  const optionsProvider: Provider = {
    provide: OPTIONS,
    useFactory: (factory: IdempotencyOptionsFactory<Request>) => factory.createIdempotencyOptions(),
    inject: [useExisting ?? useClass!],
  }
  return useClass === undefined
    ? [optionsProvider]
    : [{ provide: useClass, useClass }, optionsProvider]
}

/** The prefix and the versioning of the app. Nest has no public way to read them. */
function configOf(moduleRef: object): ApplicationConfig {
  const { container } = moduleRef as { readonly container: { applicationConfig: unknown } }
  return container.applicationConfig as ApplicationConfig
}

function checkOnce(modules: ModulesContainer): void {
  const ours = [...modules.values()].filter(({ metatype }) => metatype === IdempotencyModule)
  if (ours.length < 2) return
  throw new InvalidOptionsError(
    'IdempotencyModule is imported twice: call forRoot() once, in the root module, and override ' +
      'its options for single routes in @Idempotent({ … })',
  )
}

function routesIn(moduleRef: ModuleRef): NestRoutes {
  let cause: unknown
  try {
    // For a request-scoped provider, Nest 10 returns null and Nest 11 throws.
    const routes = moduleRef.get<NestRoutes | null>(ROUTES)
    if (routes !== null) return routes
  } catch (error) {
    cause = error
  }
  throw new InvalidOptionsError(
    'the options of IdempotencyModule must not depend on a request-scoped provider, because they ' +
      'apply to all requests: read the request in tenant() instead',
    { cause },
  )
}
