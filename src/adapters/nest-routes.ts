import type { Type } from '@nestjs/common'
import type { ApplicationConfig, ModulesContainer } from '@nestjs/core'
import type { Engine } from '../core/engine.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import type { GuardOptions } from '../http/guard-options.ts'
import { createGuard, type Guard } from '../http/guard.ts'
import { forRoute } from '../http/route-options.ts'
import { idempotentOf } from './nest-decorators.ts'
import { watchMethod } from './nest-entry.ts'
import {
  handlesMessages,
  isRoute,
  methodsOf,
  verbOf,
  versionBesidePath,
  type NestMethod,
} from './nest-paths.ts'
import type { NestRequest } from './nest-request.ts'

type Options = GuardOptions<NestRequest>
type NestGuard = Guard<NestRequest>

/** Which methods of which classes are protected, and how. */
export class NestRoutes {
  readonly #options: Options
  readonly #modules: ModulesContainer
  readonly #config: ApplicationConfig
  readonly #guard: NestGuard
  /** By class, because two controllers may inherit one method. */
  readonly #guards = new WeakMap<object, WeakMap<object, NestGuard | undefined>>()
  /** Made from a store, so nobody else is there to close them. */
  readonly #ownEngines = new Set<Engine>()

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

  /** What was said for all routes. */
  get options(): Options {
    return this.#options
  }

  /** What protects this method; `undefined` where nothing was said about it. */
  guardOf(owner: object, handler: object): NestGuard | undefined {
    const guards = this.#guards.get(owner) ?? new WeakMap<object, NestGuard | undefined>()
    this.#guards.set(owner, guards)
    if (!guards.has(handler)) guards.set(handler, this.#makeGuard(owner, handler))
    return guards.get(handler)
  }

  /** What the version adds to the name of a route where its path does not tell it. */
  versionSuffix(owner: Type, handler: object): string {
    const version = versionBesidePath(owner, handler, this.#config)
    return version === '' ? '' : `@${version}`
  }

  /** Throws where a decorator would do nothing, or something else than it says. */
  check(): void {
    for (const { controllers, providers } of this.#modules.values()) {
      for (const { metatype } of controllers.values()) {
        for (const method of methodsOf(metatype as Type)) this.#checkMethod(method)
      }
      for (const { metatype } of providers.values()) checkProvider(metatype)
    }
  }

  /** Settles what is under way. Engines that were given to us are their maker's to close. */
  async close(): Promise<void> {
    await Promise.all([...this.#ownEngines].map((engine) => engine.close()))
  }

  /** Before routes are made: Nest keeps the methods that it finds then. */
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
        `${name} handles no HTTP requests, so @Idempotent() cannot protect it. Only routes of ` +
          'controllers (@Post() and the like) can be; for messages and jobs there is ' +
          'engine.run(). Say @Idempotent(false) on a method that is to be left alone',
      )
    }
    const guard = this.#named(name, () => this.guardOf(owner, handler))
    const verb = verbOf(handler)
    // A controller may well have routes that only read. On a method, it is a mistake.
    if (own === undefined || verb === 'ALL' || guard?.protects(verb) !== false) return
    throw new InvalidOptionsError(
      `${name} serves ${verb}, which @Idempotent() does not protect: name it in ` +
        `{ methods: ['${verb}'] } where it is not safe to repeat, or leave the decorator out`,
    )
  }

  #makeGuard(owner: object, handler: object): NestGuard | undefined {
    const [ofOwner, ofHandler] = [idempotentOf(owner), idempotentOf(handler)]
    const last = ofHandler ?? ofOwner
    if (last === undefined || last === false) return undefined
    const said = [ofOwner, ofHandler].filter((one) => one !== undefined && one !== false)
    if (said.every((one) => Object.keys(one).length === 0)) return this.#guard
    return this.#createGuard(said.reduce<Options>((all, one) => forRoute(all, one), this.#options))
  }

  #createGuard(options: Options): NestGuard {
    const guard = createGuard(options)
    if (options.engine === undefined) this.#ownEngines.add(guard.engine)
    return guard
  }

  #named<Value>(name: string, make: () => Value): Value {
    try {
      return make()
    } catch (error) {
      if (!(error instanceof InvalidOptionsError)) throw error
      throw new InvalidOptionsError(`@Idempotent() of ${name}: ${error.message}`, { cause: error })
    }
  }
}

/** Gateways and resolvers are providers: they serve no requests that could be held. */
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
    `${found.name} is no controller, so @Idempotent() cannot protect it: put it on the route of ` +
      'a controller. For gateways, resolvers, messages and jobs there is engine.run()',
  )
}
