/** Finds the routes of a Nest app in the metadata that the router of Nest reads. */
import { RequestMethod, VersioningType, VERSION_NEUTRAL, type Type } from '@nestjs/common'
import { MetadataScanner, type ApplicationConfig, type ModulesContainer } from '@nestjs/core'

/** A method of a controller that handles HTTP requests. */
export interface NestRoute {
  readonly controller: Type
  readonly handler: object
  /** `PaymentsController.create`. */
  readonly name: string
  /** Upper case; `ALL` for `@All()`. */
  readonly method: string
  /** With prefix and version. A list, because controller, method and version may have several. */
  readonly paths: readonly string[]
}

/** A controller or provider, and one of its methods. */
export interface NestMethod {
  readonly owner: Type
  readonly handler: object
  /** `create`. */
  readonly key: string
  /** `PaymentsController.create`. */
  readonly name: string
}

/** One part of a path: of a module, a controller or a method, which may each have several. */
type Part = string | readonly string[] | undefined

type Version = string | symbol | readonly (string | symbol)[] | undefined

// The metadata keys of Nest's decorators. Nest defines them in a file that it does not export.
const PATH = 'path'
const METHOD = 'method'
const VERSION = '__version__'
const MODULE_PATH = '__module_path__'
const MESSAGE_PATTERN = 'microservices:pattern'
const ARGUMENTS = '__routeArguments__'
/** The kinds of argument of `@Res()` and `@Next()`, before the index of the argument. */
const RESPONSE_ARGUMENT = /^[12]:/

const scanner = new MetadataScanner()

export function methodsOf(owner: Type): NestMethod[] {
  const prototype = owner.prototype as Record<string, object>
  return scanner
    .getAllMethodNames(prototype)
    .map((key) => ({ owner, handler: prototype[key]!, key, name: `${owner.name}.${key}` }))
}

export function isRoute(handler: object): boolean {
  return read(PATH, handler) !== undefined
}

/** Whether a method of a controller handles messages, for example of a microservice. */
export function handlesMessages(handler: object): boolean {
  return read(MESSAGE_PATTERN, handler) !== undefined
}

/** Whether a method takes the response, or the next function, as an argument. */
export function takesResponse(owner: Type, handler: object): boolean {
  const prototype = owner.prototype as Record<string, object>
  const name = scanner.getAllMethodNames(prototype).find((one) => prototype[one] === handler)
  const args: unknown = Reflect.getMetadata(ARGUMENTS, owner, name ?? '')
  return Object.keys(args ?? {}).some((key) => RESPONSE_ARGUMENT.test(key))
}

/** Upper case; `ALL` for `@All()`. */
export function verbOf(handler: object): string {
  return RequestMethod[Number(read(METHOD, handler) ?? RequestMethod.GET)] ?? 'GET'
}

/** The routes of all modules. */
export function routesOf(modules: ModulesContainer, config: ApplicationConfig): NestRoute[] {
  return [...modules.values()].flatMap(({ controllers, metatype }) => {
    const modulePath =
      read(`${MODULE_PATH}${modules.applicationId}`, metatype) ?? read(MODULE_PATH, metatype)
    return [...controllers.values()].flatMap((wrapper): NestRoute[] => {
      const controller = wrapper.metatype as Type
      return methodsOf(controller)
        .filter(({ handler }) => isRoute(handler))
        .map(({ handler, name }) => {
          const method = verbOf(handler)
          const parts = [modulePath, read(PATH, controller), read(PATH, handler)] as Part[]
          const version = versionOf(controller, handler, config)
          const paths = toPaths(parts, { method, version, config })
          return { controller, handler, name, method, paths }
        })
    })
  })
}

/** The version by which Nest distinguishes handlers of one path; `''` if the path contains it. */
export function versionOutsidePath(
  controller: Type,
  handler: object,
  config: ApplicationConfig,
): string {
  if (config.getVersioning()?.type === VersioningType.URI) return ''
  return versionsOf(versionOf(controller, handler, config)).join(',')
}

function versionOf(controller: Type, handler: object, config: ApplicationConfig): Version {
  const versioning = config.getVersioning()
  if (versioning === undefined) return undefined
  const own = read(VERSION, handler) ?? read(VERSION, controller)
  return (own ?? versioning.defaultVersion) as Version
}

interface PathOptions {
  readonly method: string
  readonly version: Version
  readonly config: ApplicationConfig
}

function toPaths(parts: readonly Part[], { method, version, config }: PathOptions): string[] {
  const paths = parts.reduce<string[]>(
    (heads, part) => heads.flatMap((head) => listOf(part).map((tail) => head + slashed(tail))),
    [''],
  )
  const prefix = slashed(config.getGlobalPrefix())
  return paths.flatMap((path) => {
    const start = isOutsidePrefix(path, method, config) ? '' : prefix
    return versionParts(version, config).map((part) => start + slashed(part) + path || '/')
  })
}

/** One part for each version in the path; `''` for a path without a version. */
function versionParts(version: Version, config: ApplicationConfig): string[] {
  const versioning = config.getVersioning()
  if (versioning?.type !== VersioningType.URI || version === undefined) return ['']
  const { prefix = 'v' } = versioning
  const named = versionsOf(version).map((one) => `${prefix === false ? '' : prefix}${one}`)
  return listOf(version).includes(VERSION_NEUTRAL) ? ['', ...named] : named
}

function versionsOf(version: Version): string[] {
  return listOf(version).filter((one): one is string => typeof one === 'string' && one !== '')
}

function isOutsidePrefix(path: string, method: string, config: ApplicationConfig): boolean {
  return (config.getGlobalPrefixOptions().exclude ?? []).some(({ requestMethod, pathRegex }) => {
    const name = RequestMethod[requestMethod]
    // Nest writes -1 for "any method" in some places, and `RequestMethod.ALL` in others.
    if (name !== undefined && name !== 'ALL' && name !== method) return false
    return pathRegex.test(path || '/')
  })
}

function listOf<Value>(value: Value | readonly Value[] | undefined): (Value | '')[] {
  if (Array.isArray(value)) return [...(value as readonly Value[])]
  return [(value as Value | undefined) ?? '']
}

/** `payments/` and `/payments` become `/payments`; an empty part stays empty. */
function slashed(part: string): string {
  const text = part.replaceAll(/^\/+|\/+$/g, '')
  return text === '' ? '' : `/${text}`
}

function read(key: string, target: object): unknown {
  return Reflect.getMetadata(key, target)
}
