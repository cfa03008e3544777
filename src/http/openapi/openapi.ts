/**
 * Adds the behaviour of the guard to an OpenAPI document, for generated clients and for readers.
 *
 * @module
 */
import { isDeepStrictEqual } from 'node:util'
import { InvalidOptionsError } from '../../core/errors.ts'
import { resolvePolicy, type PolicyOptions } from '../../core/engine/policy.ts'
import { describe, flag, oneOf, rejectUnknownOptions, wholeNumber } from '../../core/options.ts'
import { KEY_LENGTH_MAX, KEY_LENGTH_MIN } from '../../protocol/limits.ts'
import type { Profile } from '../guard/answers.ts'
import { resolveRequestAge } from '../guard/request-age.ts'
import {
  guardResponses,
  keyParameter,
  replyHeaders,
  statusResponses,
  type Add,
  type DescribedResponse,
  type Json,
  type PartsOptions,
  type Section,
} from './openapi-parts.ts'
import { auditedMethods } from '../guard/route-audit.ts'

/** An operation of the document, for filters. */
export interface OpenApiOperation {
  /** In capitals. */
  readonly method: string
  readonly path: string
  readonly operationId: string | undefined
  readonly tags: readonly string[]
}

/** Selects operations: by id, tag or path, of which one match is enough, or by a function. */
export type OperationFilter =
  | {
      readonly operationIds?: readonly string[]
      readonly tags?: readonly string[]
      readonly paths?: readonly (string | RegExp)[]
    }
  | ((operation: OpenApiOperation) => boolean)

export interface OpenApiOptions {
  /** The methods of protected operations, in capitals. @default ['POST', 'PATCH'] */
  methods?: readonly string[]
  /** The protected operations among those with these methods. @default all of them */
  operations?: OperationFilter
  /** Operations whose key may be left out (`keyRequired: false`). @default none */
  optional?: OperationFilter
  /** The header of the key; `false` if the key is in the body. @default 'Idempotency-Key' */
  keyHeader?: string | false
  /** The fewest characters of a key, as for the guard. @default 1 */
  keyLengthMin?: number
  /** The most characters of a key, as for the guard. @default 255 */
  keyLengthMax?: number
  /**
   * The pattern of keys, as for the guard. A pattern with the flag `i`, `m` or `s` is left out,
   * because OpenAPI has no flags.
   *
   * @default none
   */
  keyPattern?: RegExp
  /**
   * With `strict`, keys are described with their quotes, which the guard then requires.
   *
   * @default 'lenient'
   */
  keySyntax?: 'lenient' | 'strict'
  /** The statuses and bodies of problems, as for the guard. @default 'ietf' */
  profile?: Profile
  /** With `refuse` or `{ refuseForMs }`, 410 is described. @default 'rerun' */
  afterExpiry?: NonNullable<PolicyOptions['afterExpiry']>
  /** As for the guard: 412 is described, and 400 for a request without a time. @default none */
  maxRequestAgeMs?: number
  /** Whether the guard has `limits`: 429 is described. @default false */
  limited?: boolean
  /** With `accepted`, 202 is described. @default 'conflict' */
  whileInProgress?: 'conflict' | 'accepted'
  /** The GET operations that `idempotencyStatus` serves. @default none */
  status?: OperationFilter
}

const OPTION_NAMES = [
  'methods',
  'operations',
  'optional',
  'keyHeader',
  'keyLengthMin',
  'keyLengthMax',
  'keyPattern',
  'keySyntax',
  'profile',
  'afterExpiry',
  'maxRequestAgeMs',
  'limited',
  'whileInProgress',
  'status',
] as const satisfies readonly (keyof OpenApiOptions)[]

/**
 * Returns a copy of the document in which every selected operation has the parameter of the key,
 * the problems of the guard and the headers of recorded replies. Existing descriptions stay
 * unchanged, and so does `document`. A second call on the result adds nothing.
 *
 * @example
 * ```ts
 * const described = describeIdempotency(document, { optional: { tags: ['beta'] } })
 * ```
 */
export function describeIdempotency<Document extends object>(
  document: Document,
  options: OpenApiOptions = {},
): Document {
  rejectUnknownOptions('describeIdempotency', options, OPTION_NAMES)
  const version: unknown = asObject(document)['openapi']
  if (typeof version !== 'string' || !/^3\.[0-2]\./.test(version)) {
    throw new InvalidOptionsError(
      'describeIdempotency takes an OpenAPI document of version 3.0, 3.1 or 3.2, got ' +
        describe(version),
    )
  }
  const copy = structuredClone(document)
  new Description(copy as Json, options).write()
  return copy
}

class Description {
  readonly #document: Json
  readonly #options: OpenApiOptions
  readonly #parts: PartsOptions

  constructor(document: Json, options: OpenApiOptions) {
    this.#document = document
    this.#options = options
    this.#parts = resolveParts(options)
  }

  write(): void {
    const { operations, optional, status } = this.#options
    const methods = auditedMethods(this.#options)
    const found = this.#operations([...new Set([...methods, 'GET'])])
    const all = found.filter(({ known }) => methods.has(known.method))
    const gets = found.filter(({ known }) => known.method === 'GET')
    const guarded = pick('operations', all, operations, true)
    const keyOptional = new Set(pick('optional', guarded, optional, false))
    const statusReads = pick('status', gets, status, false)
    for (const one of guarded) this.#describe(one, !keyOptional.has(one))
    for (const one of statusReads) this.#describeStatus(one)
  }

  /** Paths that refer to the same item have one entry each: a filter may select only one. */
  #operations(methods: readonly string[]): FoundOperation[] {
    const paths = asObject(this.#document['paths'])
    // Names without a leading slash are extensions, not paths.
    const names = Object.keys(paths).filter((name) => name.startsWith('/'))
    // A YAML alias is one object in two places, of which a filter may select only one.
    for (const name of names) if (isObject(paths[name])) paths[name] = { ...paths[name] }
    return names.flatMap((path) => {
      const item = paths[path]
      // An item may have operations beside its `$ref`.
      const items = [item, this.#resolve(item)].filter((one) => isObject(one))
      return methods.flatMap((method): FoundOperation[] => {
        const pathItem = items.find((one) => isObject(one[method.toLowerCase()]))
        if (pathItem === undefined) return []
        const { operationId, tags } = asObject(pathItem[method.toLowerCase()])
        const known = {
          method,
          path,
          operationId: typeof operationId === 'string' ? operationId : undefined,
          tags: Array.isArray(tags) ? tags.map(String) : [],
        }
        const parameters = items.flatMap((one) => asArray(one['parameters']))
        return [{ known, pathItem, parameters }]
      })
    })
  }

  /** Changes copies, because YAML aliases may share parts with other operations. */
  #describe(found: FoundOperation, required: boolean): void {
    const { operation, responses } = this.#openOperation(found)
    if (this.#options.keyHeader !== false) {
      this.#addParameter(operation, found.parameters, required)
    }
    const described = guardResponses(this.#parts, required, this.#add)
    this.#addResponses(responses, described, (status) => {
      return `Idempotency${status}${required || status !== '400' ? '' : 'Optional'}`
    })
  }

  #describeStatus(found: FoundOperation): void {
    const { responses } = this.#openOperation(found)
    const described = statusResponses(this.#parts, this.#add)
    this.#addResponses(responses, described, (status) => `IdempotencyStatus${status}`)
  }

  /** Replaces the operation by a copy whose 2xx responses have the headers of recorded replies. */
  #openOperation({ known, pathItem }: FoundOperation): { operation: Json; responses: Json } {
    const method = known.method.toLowerCase()
    const operation = { ...asObject(pathItem[method]) }
    const responses = { ...asObject(operation['responses']) }
    Object.assign(pathItem, { [method]: Object.assign(operation, { responses }) })
    for (const status of Object.keys(responses)) {
      if (/^2(?:\d\d|XX)$/.test(status)) this.#addHeaders(responses, status)
    }
    return { operation, responses }
  }

  #addParameter(operation: Json, ofPath: readonly unknown[], required: boolean): void {
    const name = this.#parts.keyHeader.toLowerCase()
    const own = asArray(operation['parameters'])
    const isThere = [...own, ...ofPath]
      .map((one) => this.#resolve(one))
      .some((one) => one?.['in'] === 'header' && String(one['name']).toLowerCase() === name)
    if (isThere) return
    const component = required ? 'IdempotencyKey' : 'OptionalIdempotencyKey'
    const parameter = this.#add('parameters', component, keyParameter(this.#parts, required))
    operation['parameters'] = [...own, parameter]
  }

  /** Copies a shared response first, because other operations that refer to it have no keys. */
  #addHeaders(responses: Json, status: string): void {
    const response = this.#resolve(responses[status])
    if (response === undefined) return
    const known = asObject(response['headers'])
    const names = new Set(Object.keys(known).map((name) => name.toLowerCase()))
    const missing = Object.entries(replyHeaders(this.#add)).filter(
      ([name]) => !names.has(name.toLowerCase()),
    )
    if (missing.length === 0) return
    const headers = { ...known, ...Object.fromEntries(missing) }
    // In OpenAPI 3.1, a reference may have its own description.
    const { $ref: _reference, ...own } = asObject(responses[status])
    responses[status] = structuredClone({ ...response, ...own, headers })
  }

  #addResponses(
    responses: Json,
    described: readonly DescribedResponse[],
    nameOf: (status: string) => string,
  ): void {
    for (const { status, mediaType, response } of described) {
      const own = responses[status]
      if (own === undefined) {
        const range = this.#rangeOf(responses, status)
        responses[status] =
          range === undefined
            ? this.#add('responses', nameOf(status), response)
            : structuredClone(withRange(response, range, mediaType))
      } else if (isObject(own) && own['$ref'] === undefined) {
        const ours = asObject(response['content'])[mediaType]
        const content = asObject(own['content'])
        if (Object.hasOwn(content, mediaType)) continue
        responses[status] = { ...own, content: { ...content, [mediaType]: ours } }
      }
    }
  }

  /** A response for a status hides its range (`4XX`) and `default`, although both may occur. */
  #rangeOf(responses: Json, status: string): Json | undefined {
    // In practice, `default` describes errors.
    const fallback = status.startsWith('2') ? undefined : responses['default']
    const range = this.#resolve(responses[`${status[0]}XX`] ?? fallback)
    return Object.keys(asObject(range?.['content'])).length === 0 ? undefined : range
  }

  /** Adds a number to the name if the document has another component of this name. */
  readonly #add: Add = (section: Section, name: string, component: Json) => {
    const components = asObject((this.#document['components'] ??= {}))
    const all = asObject((components[section] ??= {}))
    let free = name
    for (let count = 2; Object.hasOwn(all, free); count++) {
      if (isDeepStrictEqual(all[free], component)) break
      free = `${name}${count}`
    }
    // A copy, so that changes of this document do not affect the next one.
    all[free] ??= structuredClone(component)
    return { $ref: `#/components/${section}/${free}` }
  }

  /** Follows references within the document. `undefined` for references to other files. */
  #resolve(value: unknown): Json | undefined {
    let current = value
    for (let depth = 0; depth < REFERENCES_MAX && isObject(current); depth++) {
      const reference = current['$ref']
      if (typeof reference !== 'string') return current
      current = this.#at(reference)
    }
    return undefined
  }

  #at(reference: string): unknown {
    if (!reference.startsWith('#/')) return undefined
    return reference
      .slice(2)
      .split('/')
      .map((name) => decodeName(name))
      .reduce<unknown>((at, name) => (isObject(at) ? at[name] : undefined), this.#document)
  }
}

/** More than any valid chain of references has. Ends a chain that is circular. */
const REFERENCES_MAX = 20

interface FoundOperation {
  readonly known: OpenApiOperation
  /** The path item that contains the operation. */
  readonly pathItem: Json
  /** The parameters of all operations of the path. */
  readonly parameters: readonly unknown[]
}

/** Merges the added response with the range of the document that it would hide. */
function withRange(response: Json, range: Json, mediaType: string): Json {
  const ours = asObject(asObject(response['content'])[mediaType])
  const content = asObject(range['content'])
  const theirs = asObject(content[mediaType])
  const schemas = [theirs['schema'], ours['schema']]
  const either = Object.hasOwn(content, mediaType) ? { ...ours, schema: { anyOf: schemas } } : ours
  const isAnything = Object.hasOwn(content, mediaType) && theirs['schema'] === undefined
  const headers = { ...asObject(range['headers']), ...asObject(response['headers']) }
  return {
    ...response,
    ...(Object.keys(headers).length === 0 ? {} : { headers }),
    content: { ...content, [mediaType]: isAnything ? theirs : either },
  }
}

function pick(
  option: string,
  found: readonly FoundOperation[],
  filter: OperationFilter | undefined,
  fallback: boolean,
): FoundOperation[] {
  if (filter === undefined) return fallback ? [...found] : []
  if (typeof filter === 'function') return found.filter(({ known }) => filter(known))
  const names = ['operationIds', 'tags', 'paths'] as const
  rejectUnknownOptions(`describeIdempotency.${option}`, filter, names)
  const lists = names.map((name) => filter[name]).filter((list) => list !== undefined)
  if (!lists.every((list) => Array.isArray(list)) || lists.flat().length === 0) {
    throw new InvalidOptionsError(
      `describeIdempotency.${option} must be a function or have a list of operationIds, tags or ` +
        `paths, got ${describe(filter)}`,
    )
  }
  const tests = [
    ...(filter.operationIds ?? []).map((id) => test(id, (one) => one.operationId === id)),
    ...(filter.tags ?? []).map((tag) => test(tag, (one) => one.tags.includes(tag))),
    ...(filter.paths ?? []).map((path) =>
      test(path, (one) =>
        typeof path === 'string' ? one.path === path : one.path.search(path) >= 0,
      ),
    ),
  ]
  for (const { name, matches } of tests) {
    if (found.some(({ known }) => matches(known))) continue
    throw new InvalidOptionsError(
      `describeIdempotency.${option}: ${String(name)} names no operation of the document`,
    )
  }
  return found.filter(({ known }) => tests.some(({ matches }) => matches(known)))
}

function test(name: string | RegExp, matches: (operation: OpenApiOperation) => boolean) {
  return { name, matches }
}

function resolveParts(options: OpenApiOptions): PartsOptions {
  const { keyHeader = 'Idempotency-Key', keyLengthMin, keyLengthMax, keyPattern } = options
  if (keyHeader !== false && (typeof keyHeader !== 'string' || !HEADER_NAME.test(keyHeader))) {
    throw new InvalidOptionsError(
      `keyHeader must be a header name or false, got ${describe(keyHeader)}`,
    )
  }
  if (keyPattern !== undefined && !(keyPattern instanceof RegExp)) {
    throw new InvalidOptionsError(`keyPattern must be a RegExp, got ${describe(keyPattern)}`)
  }
  if ((keyLengthMin ?? KEY_LENGTH_MIN) > (keyLengthMax ?? KEY_LENGTH_MAX)) {
    throw new InvalidOptionsError(
      `keyLengthMin (${keyLengthMin}) must not exceed keyLengthMax (${keyLengthMax})`,
    )
  }
  const limits = { min: 1, max: 1024 }
  const min = { fallback: KEY_LENGTH_MIN, ...limits }
  const max = { fallback: KEY_LENGTH_MAX, ...limits }
  const syntax = { fallback: 'lenient', words: ['lenient', 'strict'] } as const
  const profile = { fallback: 'ietf', words: ['ietf', 'stripe'] } as const
  const progress = { fallback: 'conflict', words: ['conflict', 'accepted'] } as const
  return {
    profile: oneOf('profile', options.profile, profile),
    keyHeader: keyHeader === false ? '' : keyHeader,
    keyLengthMin: wholeNumber('keyLengthMin', keyLengthMin, min),
    keyLengthMax: wholeNumber('keyLengthMax', keyLengthMax, max),
    keyPattern,
    isQuoted: oneOf('keySyntax', options.keySyntax, syntax) === 'strict',
    refusesExpired: refusesExpired(options),
    refusesOld: resolveRequestAge(ageOf(options)) !== undefined,
    isLimited: flag('limited', options.limited, false),
    accepts: oneOf('whileInProgress', options.whileInProgress, progress) === 'accepted',
  }
}

function refusesExpired({ afterExpiry }: OpenApiOptions): boolean {
  if (afterExpiry === undefined) return false
  return resolvePolicy({ afterExpiry }, undefined, 'describeIdempotency').afterExpiry === 'refuse'
}

function ageOf({ maxRequestAgeMs }: OpenApiOptions): Pick<OpenApiOptions, 'maxRequestAgeMs'> {
  return maxRequestAgeMs === undefined ? {} : { maxRequestAgeMs }
}

const HEADER_NAME = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/

/** Decodes a name of a JSON Pointer, with or without the encoding of URI fragments. */
function decodeName(name: string): string {
  let decoded = name
  try {
    decoded = decodeURIComponent(name)
  } catch {
    // A bare `%` means itself.
  }
  return decoded.replaceAll('~1', '/').replaceAll('~0', '~')
}

function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function asObject(value: unknown): Json {
  return isObject(value) ? value : {}
}

function asArray(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : []
}
