import type { GuardOptions, ScopeBy } from './guard-options.ts'
import { resolveEncryption, type EncryptionRule } from '../../core/encryption.ts'
import { createEngine } from '../../core/engine/engine.ts'
import type { Engine } from '../../core/engine/engine-contract.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { checkStore } from '../../core/store/check-store.ts'
import { TENANT_LENGTH_MAX } from '../../core/record/identity.ts'
import {
  describe,
  flag,
  oneOf,
  optionalFunction,
  rejectUnknownOptions,
  wholeNumber,
} from '../../core/options.ts'
import {
  POLICY_OPTION_NAMES,
  resumePolicyOf,
  type Policy,
  type PolicyOptions,
} from '../../core/engine/policy.ts'
import type { Store } from '../../core/store/store.ts'
import type { KeyRules } from '../../protocol/key-syntax.ts'
import {
  KEY_LENGTH_MAX,
  KEY_LENGTH_MIN,
  REPLY_BODY_BYTES_MAX,
  REQUEST_BODY_BYTES_MAX,
} from '../../protocol/limits.ts'
import { Answers, type Profile } from './answers.ts'
import { checkDurable } from './durable-route.ts'
import { createFingerprinter, type Fingerprinter } from '../fingerprint/fingerprint.ts'
import { createLimits, type Limits } from '../limits/limits.ts'
import { refuseRequest } from './misplaced-guard.ts'
import type { ReleaseOn } from './handler-reply.ts'
import { checkRequestAge, resolveRequestAge, type RequestAgeRule } from './request-age.ts'
import { resolveStoredHeaders } from '../reply/stored-headers.ts'

export interface ResolvedGuardOptions<Request> extends EncryptionRule {
  readonly engine: Engine
  /** The engine was created for a store here, and not passed in by the caller. */
  readonly ownsEngine: boolean
  readonly policy: Policy
  readonly answers: Answers
  readonly fingerprinter: Fingerprinter
  readonly keyRules: KeyRules
  readonly methods: ReadonlySet<string>
  readonly storedHeaders: ReadonlySet<string>
  readonly tenant: GuardOptions<Request>['tenant']
  readonly principal: GuardOptions<Request>['principal']
  readonly operation: GuardOptions<Request>['operation']
  readonly scopeBy: ScopeBy
  readonly requestAge: RequestAgeRule<Request> | undefined
  readonly limits: Limits<Request> | undefined
  readonly keyRequired: boolean
  /** In lower case. */
  readonly keyHeader: string
  /** Spelled as in the options, for messages. */
  readonly keyHeaderName: string
  readonly keyField: string | undefined
  readonly keyFrom: GuardOptions<Request>['keyFrom']
  readonly fingerprintFields: readonly string[] | undefined
  readonly requestBytesMax: number
  readonly replyBytesMax: number
  readonly releaseOn: ReleaseOn | undefined
  readonly replyVersion: number
  readonly upgradeReply: GuardOptions<Request>['upgradeReply']
  readonly onStoreFailure: 'closed' | 'open'
  readonly statusUrl: GuardOptions<Request>['statusUrl']
}

const GUARD_OPTION_NAMES = [
  ...POLICY_OPTION_NAMES,
  ...['store', 'engine', 'tenant', 'principal', 'operation', 'scopeBy', 'profile', 'methods'],
  ...['keyRequired', 'keyHeader', 'keyField', 'keyFrom', 'keySyntax'],
  ...['keyLengthMin', 'keyLengthMax', 'keyPattern', 'refusePersonalKeys'],
  ...['maxRequestAgeMs', 'requestTime', 'requestSkewMs', 'limits'],
  ...['fingerprintFields', 'fingerprintSecrets', 'requestBytesMax', 'replyBytesMax', 'releaseOn'],
  ...['storeHeaders', 'replyVersion', 'upgradeReply', 'encryption', 'requireEncryption'],
  ...['onStoreFailure', 'durable', 'statusUrl', 'docsUrl'],
] as const satisfies readonly (keyof GuardOptions<never>)[]

const BYTES_MAX = 512 * 1024 * 1024

/** Fills in defaults and checks every option. Does not change the caller's object. */
export function resolveGuardOptions<Request>(
  options: GuardOptions<Request>,
): ResolvedGuardOptions<Request> {
  refuseRequest(options)
  rejectUnknownOptions('idempotency', options, GUARD_OPTION_NAMES)
  checkFunctions(options)
  const profile = oneOf('profile', options.profile, { fallback: 'ietf', words: ['ietf', 'stripe'] })
  const engine = resolveEngine('idempotency', options)
  checkDurable(options.durable, options, engine)
  const bytes = (name: 'requestBytesMax' | 'replyBytesMax', fallback: number): number =>
    wholeNumber(name, options[name], { fallback, min: 0, max: BYTES_MAX })
  const policy = resolveRoutePolicy(options, engine, profile)
  const requestAge = resolveRequestAge(options)
  checkRequestAge(requestAge, policy)
  return Object.freeze({
    engine,
    ownsEngine: options.engine === undefined,
    policy,
    answers: new Answers(profile, resolveUrl('docsUrl', options.docsUrl)),
    fingerprinter: createFingerprinter({ secrets: options.fingerprintSecrets }),
    keyRules: resolveKeyRules(options),
    methods: resolveMethods(options.methods),
    storedHeaders: resolveStoredHeaders(options.storeHeaders),
    tenant: options.tenant,
    principal: options.principal,
    operation: resolveOperation(options.operation) ?? options.durable?.name,
    scopeBy: resolveScopeBy(options, profile),
    requestAge,
    limits: createLimits(options.limits, engine),
    keyRequired: flag('keyRequired', options.keyRequired, true),
    keyHeader: resolveHeaderName(options.keyHeader).toLowerCase(),
    keyHeaderName: resolveHeaderName(options.keyHeader),
    keyField: resolveKeyField(options.keyField),
    keyFrom: options.keyFrom,
    fingerprintFields: resolveFields(options.fingerprintFields),
    requestBytesMax: bytes('requestBytesMax', REQUEST_BODY_BYTES_MAX),
    replyBytesMax: bytes('replyBytesMax', REPLY_BODY_BYTES_MAX),
    releaseOn: options.releaseOn,
    replyVersion: resolveReplyVersion(options.replyVersion ?? options.durable?.replyVersion),
    upgradeReply: options.upgradeReply,
    ...resolveRouteEncryption(options, engine),
    onStoreFailure: oneOf('onStoreFailure', options.onStoreFailure, {
      fallback: 'closed',
      words: ['closed', 'open'],
    }),
    statusUrl: options.statusUrl,
  })
}

function checkFunctions<Request>(options: GuardOptions<Request>): void {
  checkTenantOption(options.tenant)
  for (const name of ['principal', 'keyFrom', 'releaseOn', 'upgradeReply', 'statusUrl'] as const) {
    optionalFunction(name, options[name])
  }
  checkKeySource(options)
}

export function checkTenantOption(tenant: unknown): void {
  if (typeof tenant === 'function') return
  throw new InvalidOptionsError(
    `tenant must be a function from the request to the caller's tenant (or singleTenant), got ` +
      `${describe(tenant)}; without it all callers would share their keys`,
  )
}

/** There is one source of the key, and `keySyntax` applies to a header only. */
function checkKeySource<Request>(options: GuardOptions<Request>): void {
  const given = (['keyFrom', 'keyField', 'keyHeader', 'keySyntax'] as const).filter(
    (name) => options[name] !== undefined,
  )
  const [first, second] = given
  if (second === undefined || first === 'keyHeader') return
  throw new InvalidOptionsError(`${first} and ${second} contradict each other: set one of them`)
}

function resolveKeyField(field: unknown): string | undefined {
  if (field === undefined || (typeof field === 'string' && field !== '')) return field
  throw new InvalidOptionsError(
    `keyField must name a field of the body, such as 'request_id', got ${describe(field)}`,
  )
}

const engines = new WeakMap<Store, Engine>()

/** Returns one engine for each store, so that its routes share batches, sweeps and reaps. */
export function resolveEngine(
  where: string,
  { engine, store }: { readonly engine?: Engine; readonly store?: Store },
): Engine {
  if ((engine === undefined) === (store === undefined)) {
    throw new InvalidOptionsError(
      engine === undefined
        ? `${where} needs a store, such as sqliteStore({ path }), or an engine`
        : `${where} takes a store or an engine, not both: the engine already has a store`,
    )
  }
  if (engine !== undefined) {
    if (typeof engine.run === 'function' && typeof engine.policy === 'function') return engine
    throw new InvalidOptionsError(`engine must come from createEngine, got ${describe(engine)}`)
  }
  checkStore(`${where}: store`, store)
  const known = engines.get(store)
  if (known?.isClosed === false) return known
  const made = createEngine({ store })
  engines.set(store, made)
  return made
}

function resolveRoutePolicy<Request>(
  options: GuardOptions<Request>,
  engine: Engine,
  profile: Profile,
): Policy {
  const policy: PolicyOptions = profile === 'stripe' ? { onError: 'store' } : {}
  for (const name of POLICY_OPTION_NAMES) {
    if (options[name] !== undefined) Object.assign(policy, { [name]: options[name] })
  }
  const resolved = engine.policy(policy)
  return options.durable === undefined ? resolved : resumePolicyOf(resolved)
}

/** The options of the route, then those of its operation, then those of the engine. */
function resolveRouteEncryption<Request>(
  { encryption, requireEncryption, durable }: GuardOptions<Request>,
  engine: Engine,
): EncryptionRule {
  const where = 'idempotency'
  const given = {
    encryption: encryption ?? durable?.encryption,
    requireEncryption: requireEncryption ?? durable?.requireEncryption,
  }
  return resolveEncryption(where, given, engine)
}

function resolveKeyRules<Request>(options: GuardOptions<Request>): KeyRules {
  const limits = { min: 1, max: 1024 }
  const lengthMin = wholeNumber('keyLengthMin', options.keyLengthMin, {
    fallback: KEY_LENGTH_MIN,
    ...limits,
  })
  const lengthMax = wholeNumber('keyLengthMax', options.keyLengthMax, {
    fallback: KEY_LENGTH_MAX,
    ...limits,
  })
  if (lengthMin > lengthMax) {
    throw new InvalidOptionsError(
      `keyLengthMin (${lengthMin}) must not exceed keyLengthMax (${lengthMax})`,
    )
  }
  const pattern = options.keyPattern
  if (pattern !== undefined && !(pattern instanceof RegExp)) {
    throw new InvalidOptionsError(`keyPattern must be a RegExp, got ${describe(pattern)}`)
  }
  if (pattern?.global === true || pattern?.sticky === true) {
    throw new InvalidOptionsError(
      `keyPattern must not have the flag g or y, which keep a position, got ${String(pattern)}`,
    )
  }
  return {
    syntax: oneOf('keySyntax', options.keySyntax, {
      fallback: 'lenient',
      words: ['lenient', 'strict'],
    }),
    lengthMin,
    lengthMax,
    pattern,
    refusePersonalData: flag('refusePersonalKeys', options.refusePersonalKeys, false),
  }
}

/** Methods that are safe to repeat by the rules of HTTP, or have no reply to record. */
const UNPROTECTABLE: ReadonlySet<string> = new Set(['GET', 'HEAD', 'OPTIONS', 'TRACE', 'CONNECT'])

function resolveMethods(methods: readonly string[] | undefined): ReadonlySet<string> {
  if (methods === undefined) return new Set(['POST', 'PATCH'])
  if (!Array.isArray(methods) || methods.length === 0) {
    throw new InvalidOptionsError(
      `methods must be a list of HTTP methods, got ${describe(methods)}`,
    )
  }
  for (const method of methods as readonly unknown[]) {
    if (typeof method === 'string' && /^[A-Z]+$/.test(method) && !UNPROTECTABLE.has(method))
      continue
    throw new InvalidOptionsError(
      `methods cannot contain ${describe(method)}: give state-changing methods in capitals, ` +
        'such as POST, PATCH, PUT or DELETE',
    )
  }
  return new Set(methods)
}

function resolveOperation<Request>(
  operation: GuardOptions<Request>['operation'],
): GuardOptions<Request>['operation'] {
  if (operation === undefined || typeof operation === 'function') return operation
  if (typeof operation === 'string' && operation !== '') return operation
  throw new InvalidOptionsError(
    `operation must be a name or a function that returns one, got ${describe(operation)}`,
  )
}

function resolveScopeBy<Request>(options: GuardOptions<Request>, profile: Profile): ScopeBy {
  const fallback = profile === 'stripe' ? 'tenant' : 'tenant+operation'
  const scopeBy = oneOf<ScopeBy>('scopeBy', options.scopeBy, {
    fallback,
    words: ['tenant+operation', 'tenant+principal+operation', 'tenant'],
  })
  if (profile === 'stripe' && scopeBy !== 'tenant') {
    throw new InvalidOptionsError(
      `scopeBy '${scopeBy}' contradicts profile 'stripe', which needs 'tenant': remove it`,
    )
  }
  if (scopeBy === 'tenant+principal+operation' && options.principal === undefined) {
    throw new InvalidOptionsError(
      "scopeBy 'tenant+principal+operation' needs principal: a function from the request to the " +
        'user whose key it is',
    )
  }
  if (scopeBy === 'tenant' && options.operation !== undefined) {
    throw new InvalidOptionsError(
      "operation contradicts scopeBy 'tenant', which profile 'stripe' implies: a key then counts " +
        'for all routes. Remove operation',
    )
  }
  return scopeBy
}

function resolveHeaderName(name: unknown): string {
  if (name === undefined) return 'Idempotency-Key'
  if (typeof name === 'string' && /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/.test(name)) return name
  throw new InvalidOptionsError(`keyHeader must be a header name, got ${describe(name)}`)
}

function resolveFields(fields: unknown): readonly string[] | undefined {
  if (fields === undefined) return undefined
  const list: readonly unknown[] = Array.isArray(fields) ? fields : []
  if (list.length > 0 && list.every((field) => typeof field === 'string' && field !== '')) {
    return Object.freeze([...(list as readonly string[])])
  }
  throw new InvalidOptionsError(
    `fingerprintFields must be a list of field names such as ['amount'], got ${describe(fields)}`,
  )
}

export function resolveReplyVersion(version: unknown): number {
  return wholeNumber('replyVersion', version, { fallback: 1, min: 0, max: 65_535 })
}

export function resolveUrl(name: string, value: unknown): string | undefined {
  if (value === undefined) return undefined
  // The value is sent in a header between angle brackets.
  if (typeof value === 'string' && /^[\x21-\x3b\x3d\x3f-\x7e]+$/.test(value)) return value
  throw new InvalidOptionsError(`${name} must be a URL, got ${describe(value)}`)
}

/** Fails closed: a caller without a valid tenant must not share keys with other callers. */
export function checkTenant(tenant: unknown): string {
  if (
    typeof tenant === 'string' &&
    tenant !== '' &&
    tenant !== 'undefined' &&
    tenant !== 'null' &&
    tenant.length <= TENANT_LENGTH_MAX
  ) {
    return tenant
  }
  throw new InvalidOptionsError(
    `tenant(request) returned ${describe(tenant)}; it must return the caller's tenant in 1 to ` +
      `${TENANT_LENGTH_MAX} characters. Nothing was run or recorded`,
  )
}

/** Fails closed: without a principal, all users of the tenant would share the keys of none. */
export function checkScopePrincipal(principal: string | undefined): string {
  if (principal !== undefined && principal !== '') return principal
  throw new InvalidOptionsError(
    "principal(request) returned no principal, which scopeBy 'tenant+principal+operation' needs. " +
      'Nothing was run or recorded',
  )
}

/** Fails closed: without a valid principal, one user could get the reply of another. */
export function checkPrincipal(principal: unknown): string | undefined {
  if (principal === undefined || (typeof principal === 'string' && principal.isWellFormed())) {
    return principal
  }
  throw new InvalidOptionsError(
    `principal(request) returned ${describe(principal)}; it must return a well-formed string, or ` +
      'undefined for no principal. Nothing was run or recorded',
  )
}
