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
import { InvalidOptionsError } from '../core/errors.ts'
import type { GuardOptions } from '../http/guard-options.ts'
import { ROUTES } from './nest-decorators.ts'
import { IdempotencyInterceptor } from './nest-interceptor.ts'
import type { NestRequest } from './nest-request.ts'
import { NestRoutes } from './nest-routes.ts'

/** `Request` is the platform's: `import type { Request } from 'express'`, for example. */
export type IdempotencyModuleOptions<Request extends object = NestRequest> = GuardOptions<Request>

/** Makes the options of the module, for `useClass` and `useExisting`. */
export interface IdempotencyOptionsFactory<Request extends object = NestRequest> {
  createIdempotencyOptions():
    | IdempotencyModuleOptions<Request>
    | Promise<IdempotencyModuleOptions<Request>>
}

/** Exactly one of `useFactory`, `useClass` and `useExisting`. */
export interface IdempotencyModuleAsyncOptions<Request extends object = NestRequest> extends Pick<
  ModuleMetadata,
  'imports'
> {
  /** What `useFactory` is given. */
  inject?: (InjectionToken | OptionalFactoryDependency)[]
  useFactory?: (
    ...args: never[]
  ) => IdempotencyModuleOptions<Request> | Promise<IdempotencyModuleOptions<Request>>
  useClass?: Type<IdempotencyOptionsFactory<Request>>
  useExisting?: InjectionToken<IdempotencyOptionsFactory<Request>>
}

/** The engine behind the module, to be injected: `@Inject(IDEMPOTENCY_ENGINE) engine: Engine`. */
export const IDEMPOTENCY_ENGINE: unique symbol = Symbol.for('oncekey.nest.engine')

const OPTIONS = Symbol.for('oncekey.nest.options')

/**
 * Protects the routes that `@Idempotent()` names, in all modules of the app. Import it once, in
 * the root module. With `app.close()` it waits for what is under way; the store stays open.
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

  static forRoot<Request extends object = NestRequest>(
    options: IdempotencyModuleOptions<Request>,
  ): DynamicModule {
    // A factory, because Nest 10 would read all through a value to tell modules apart.
    return toModule([{ provide: OPTIONS, useFactory: () => options }])
  }

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

  /** Before the server and the stores are closed: what runs now can still be recorded. */
  async beforeApplicationShutdown(): Promise<void> {
    await this.#routes?.close()
  }
}
Module({})(IdempotencyModule)
Inject(ModuleRef)(IdempotencyModule, undefined, 0)

let modulesMade = 0

function toModule(providers: readonly Provider[]): DynamicModule {
  return {
    module: IdempotencyModule,
    global: true,
    providers: [
      ...providers,
      // Nest 10 takes two modules with the same metadata for one, and would drop the second.
      { provide: `oncekey.nest.module.${++modulesMade}`, useValue: true },
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
  const given = [useFactory, useClass, useExisting].filter((one) => one !== undefined)
  if (given.length !== 1) {
    throw new InvalidOptionsError(
      'IdempotencyModule.forRootAsync takes one of useFactory, useClass and useExisting, got ' +
        (given.length === 0 ? 'none' : `${given.length} of them`),
    )
  }
  if (useFactory !== undefined) return [{ provide: OPTIONS, useFactory, inject }]
  const made: Provider = {
    provide: OPTIONS,
    useFactory: (factory: IdempotencyOptionsFactory<Request>) => factory.createIdempotencyOptions(),
    inject: [useExisting ?? useClass!],
  }
  return useClass === undefined ? [made] : [{ provide: useClass, useClass }, made]
}

/** The prefix and the versioning of the app. Nest gives them to nobody, but keeps them there. */
function configOf(moduleRef: object): ApplicationConfig {
  const { container } = moduleRef as { readonly container: { applicationConfig: unknown } }
  return container.applicationConfig as ApplicationConfig
}

function checkOnce(modules: ModulesContainer): void {
  const ours = [...modules.values()].filter(({ metatype }) => metatype === IdempotencyModule)
  if (ours.length < 2) return
  throw new InvalidOptionsError(
    'IdempotencyModule is imported twice: call forRoot() once, in the root module, and say in ' +
      '@Idempotent({ … }) what single routes want otherwise',
  )
}

function routesIn(moduleRef: ModuleRef): NestRoutes {
  let cause: unknown
  try {
    // Nest 10 has nothing to give where there is one for each request; Nest 11 throws.
    const routes = moduleRef.get<NestRoutes | null>(ROUTES)
    if (routes !== null) return routes
  } catch (error) {
    cause = error
  }
  throw new InvalidOptionsError(
    'the options of IdempotencyModule must not depend on a request-scoped provider: they hold ' +
      'for all requests. Ask the request in tenant() instead',
    { cause },
  )
}
