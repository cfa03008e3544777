import type { Type } from '@nestjs/common'
import type { ApplicationConfig, ModulesContainer } from '@nestjs/core'
import type { Engine } from '../../core/engine/engine-contract.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import type { GuardOptions } from '../../http/guard/guard-options.ts'
import { createGuard, type Guard } from '../../http/guard/guard.ts'
import { forRoute } from '../../http/guard/route-options.ts'
import { idempotentOf } from './decorators.ts'
import { watchMethod } from './method-entry.ts'
import {
  handlesMessages,
  isRoute,
  methodsOf,
  verbOf,
  versionOutsidePath,
  type NestMethod,
} from './route.ts'
import type { NestRequest } from './platform-request.ts'

type Options = GuardOptions<NestRequest>
type NestGuard = Guard<NestRequest>

/** The protected methods of all controllers, each with its guard. */
export class NestRoutes {
  readonly #options: Options
  readonly #modules: ModulesContainer
  readonly #config: ApplicationConfig
  readonly #guard: NestGuard
  /** By class, because two controllers may inherit one method. */
  readonly #guards = new WeakMap<object, WeakMap<object, NestGuard | undefined>>()
  readonly #allGuards = new Set<NestGuard>()

  constructor(options: Options, modules: ModulesContainer, config: ApplicationConfig) {
    this.#options = options
    this.#modules = modules
    this.#config = config
    this.#guard = this.#createGuard(options)
    this.#watchEntries()
  }

  get engine(): Engine {
    return this.#guard.engine
  }

  /** The options of the module. */
  get options(): Options {
    return this.#options
  }

  /** The guard of a method; `undefined` if the method is not protected. */
  guardOf(owner: object, handler: object): NestGuard | undefined {
    const guards = this.#guards.get(owner) ?? new WeakMap<object, NestGuard | undefined>()
    this.#guards.set(owner, guards)
    if (!guards.has(handler)) guards.set(handler, this.#makeGuard(owner, handler))
    return guards.get(handler)
  }

  /** Distinguishes versions of a route whose path does not contain the version; else empty. */
  versionSuffix(owner: Type, handler: object): string {
    const version = versionOutsidePath(owner, handler, this.#config)
    return version === '' ? '' : `@${version}`
  }

  /** Throws if a decorator has wrong options, or is where it has no effect. */
  check(): void {
    for (const { controllers, providers } of this.#modules.values()) {
      for (const { metatype } of controllers.values()) {
        for (const method of methodsOf(metatype as Type)) this.#checkMethod(method)
      }
      for (const { metatype } of providers.values()) checkProvider(metatype)
    }
  }

  /** Waits for running handlers. An engine that was passed in stays open. */
  async close(): Promise<void> {
    await Promise.all([...this.#allGuards].map((guard) => guard.close()))
  }

  /** Must run before Nest creates the routes, because Nest keeps the methods that it finds then. */
  #watchEntries(): void {
    for (const { controllers } of this.#modules.values()) {
      const methods = [...controllers.values()].flatMap(({ metatype }) => {
        return methodsOf(metatype as Type)
      })
      for (const { owner, handler, key } of methods) {
        const options = idempotentOf(handler) ?? idempotentOf(owner)
        const isProtected = options !== undefined && options !== false && isRoute(handler)
        if (isProtected) watchMethod(owner, key)
      }
    }
  }

  #checkMethod({ owner, handler, name }: NestMethod): void {
    const own = idempotentOf(handler)
    const options = own ?? idempotentOf(owner)
    if (options === undefined || options === false) return
    if (!isRoute(handler)) {
      if (own === undefined && !handlesMessages(handler)) return
      throw new InvalidOptionsError(
        `${name} handles no HTTP requests, so @Idempotent() cannot protect it: it protects only ` +
          'routes of controllers, such as those with @Post(). Use engine.run() for messages and ' +
          'jobs, and write @Idempotent(false) on this method if its controller is protected',
      )
    }
    const guard = this.#withName(name, () => this.guardOf(owner, handler))
    const verb = verbOf(handler)
    // A protected controller may have routes that only read. On a method, it is a mistake.
    if (own === undefined || verb === 'ALL' || guard?.protects(verb) !== false) return
    throw new InvalidOptionsError(
      `${name} serves ${verb}, which @Idempotent() does not protect: name it in ` +
        `{ methods: ['${verb}'] } if it is not safe to repeat, or remove the decorator`,
    )
  }

  #makeGuard(owner: object, handler: object): NestGuard | undefined {
    const [ofOwner, ofHandler] = [idempotentOf(owner), idempotentOf(handler)]
    const own = ofHandler ?? ofOwner
    if (own === undefined || own === false) return undefined
    const layers = [ofOwner, ofHandler].filter((one) => one !== undefined && one !== false)
    if (layers.every((one) => Object.keys(one).length === 0)) return this.#guard
    return this.#createGuard(
      layers.reduce<Options>((all, one) => forRoute(all, one), this.#options),
    )
  }

  #createGuard(options: Options): NestGuard {
    const guard = createGuard(options)
    this.#allGuards.add(guard)
    return guard
  }

  /** Adds the name of the method to an error of its options. */
  #withName<Value>(name: string, make: () => Value): Value {
    try {
      return make()
    } catch (error) {
      if (!(error instanceof InvalidOptionsError)) throw error
      throw new InvalidOptionsError(`@Idempotent() of ${name}: ${error.message}`, { cause: error })
    }
  }
}

/** Gateways and resolvers are providers. They have no HTTP reply that could be recorded. */
function checkProvider(metatype: unknown): void {
  if (typeof metatype !== 'function') return
  const prototype: unknown = metatype.prototype
  if (typeof prototype !== 'object' || prototype === null) return
  const methods = methodsOf(metatype as Type).map(({ handler, name }) => ({
    target: handler,
    name,
  }))
  const found = [{ target: metatype, name: metatype.name }, ...methods].find(({ target }) => {
    const options = idempotentOf(target)
    return options !== undefined && options !== false
  })
  if (found === undefined) return
  throw new InvalidOptionsError(
    `${found.name} is not part of a controller, so @Idempotent() cannot protect it: put it on ` +
      'the route of a controller, and use engine.run() for gateways, resolvers, messages and jobs',
  )
}
