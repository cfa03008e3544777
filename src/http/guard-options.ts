import type { Encryption } from '../core/encryption.ts'
import { createEngine, type Engine } from '../core/engine.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import { checkStore } from '../core/given-store.ts'
import { TENANT_LENGTH_MAX } from '../core/identity.ts'
import {
  describe,
  oneOf,
  optionalFunction,
  rejectUnknownOptions,
  wholeNumber,
} from '../core/options.ts'
import { POLICY_OPTION_NAMES, resumable, type Policy, type PolicyOptions } from '../core/policy.ts'
import type { Store } from '../core/store.ts'
import type { KeyRules } from '../protocol/key-syntax.ts'
import {
  KEY_LENGTH_MAX,
  KEY_LENGTH_MIN,
  REPLY_BODY_BYTES_MAX,
  REQUEST_BODY_BYTES_MAX,
} from '../protocol/limits.ts'
import { Answers, type Profile } from './answers.ts'
import { checkDurable, type DurableRoute } from './durable-route.ts'
import { createFingerprinter, type Fingerprinter, type FingerprintSecret } from './fingerprint.ts'
import type { HttpReply } from './exchange.ts'
import { refuseRequest } from './given-request.ts'
import type { ReleaseOn } from './handler-reply.ts'
import { resolveEncryption, type ReplyReading } from './reply-encryption.ts'
import { resolveStoredHeaders } from './stored-headers.ts'

/** Options of every adapter. `Request` is the framework's own request. */
export interface GuardOptions<Request> extends PolicyOptions {
  /** Where the records are. All routes on one store share one engine. Or give an `engine`. */
  store?: Store
  /** From `createEngine`, where you want its events or call `close()` yourself. */
  engine?: Engine

  /**
   * Whose keys these are, from what the server knows of the caller (never from the body). An API
   * without tenants says `tenant: singleTenant`. What throws, or is no proper name, fails closed.
   */
  tenant: (request: Request) => string | Promise<string>

  /**
   * Who asks, within the tenant. It joins the fingerprint, so that one user of a tenant cannot
   * fetch the reply of another by guessing a key.
   */
  principal?: (request: Request) => string | undefined | Promise<string | undefined>

  /** The stable name of what the route does. @default method and route template */
  operation?: string | ((request: Request) => string)

  /**
   * Whether one key may be used on two routes. `tenant` makes it one key for everything the
   * tenant does, so that the second route is refused as misuse.
   *
   * @default 'tenant+operation' ('tenant' in the `stripe` profile)
   */
  scopeBy?: 'tenant+operation' | 'tenant'

  /** Whose status codes and error bodies are spoken. @default 'ietf' */
  profile?: Profile

  /** Methods that are protected. Others pass untouched. @default ['POST', 'PATCH'] */
  methods?: readonly string[]

  /** Whether a request without a key is refused, or runs unprotected. @default true */
  keyRequired?: boolean
  /** @default 'idempotency-key' */
  keyHeader?: string
  /** Takes the key from this field of a JSON or form body: `request_id`, or `meta.requestId`. */
  keyField?: string
  /** Takes the key from anywhere else. */
  keyFrom?: (request: Request) => string | undefined | Promise<string | undefined>
  /** `strict` takes only the quoted string of the IETF draft. @default 'lenient' */
  keySyntax?: 'lenient' | 'strict'
  /** @default 1 */
  keyLengthMin?: number
  /** @default 255 */
  keyLengthMax?: number
  /** What a key must match. Anchor it with `^` and `$`. */
  keyPattern?: RegExp
  /**
   * Refuses keys that look like an e-mail address, a phone or social security number.
   *
   * @default false
   */
  refusePersonalKeys?: boolean

  /** Only these fields of a JSON body make two requests different. @default the whole body */
  fingerprintFields?: readonly string[]
  /**
   * Makes fingerprints HMACs. The first secret that is not `acceptOnly` is used for new records;
   * requests are compared with records of all of them. `docs/reference/options.md` has the order in
   * which to change them, so that no node refuses a correct retry.
   *
   * @default none: plain SHA-256
   */
  fingerprintSecrets?: readonly FingerprintSecret[]

  /** Larger request bodies are refused with 413. @default 1 MiB */
  requestBytesMax?: number
  /** Larger replies are sent but not kept; their replay says so. @default 1 MiB */
  replyBytesMax?: number
  /**
   * Says of a reply with 4xx or 5xx that it releases the key instead of being recorded, so that
   * the same request may run again under its key. Never asked about a success. After an outside
   * effect has begun, the outcome is unknown all the same. It may be asked twice about one reply.
   *
   * @default 401, 403, 408, 425, 429, and replies made before the handler is entered
   */
  releaseOn?: ReleaseOn
  /** Headers to replay besides the usual ones. Cookies and the like are refused. */
  storeHeaders?: readonly string[]

  /** The version of this route's replies, kept with each. @default 1 */
  replyVersion?: number
  /** Makes a reply of today out of one recorded under another version. */
  upgradeReply?: (reply: HttpReply, fromVersion: number) => HttpReply
  /** Encrypts replies before they are stored, each for its own record, and decrypts them. */
  encryption?: Encryption
  /**
   * Refuses recorded replies that are not encrypted (409), so that only the holder of the key can
   * make a reply. Switch it on one retention after `encryption`: until then plain replies are
   * still on record.
   *
   * @default false
   */
  requireEncryption?: boolean

  /**
   * What happens when the store cannot answer. `closed`: 503, nothing runs. `open`: the handler
   * runs unprotected, and a retry may run it again.
   *
   * @default 'closed'
   */
  storeFailure?: 'closed' | 'open'

  /** From `operation(…).route`: the handler runs that operation. */
  durable?: DurableRoute

  /** Where a client can ask what became of an accepted request (`Location` of a 202). */
  statusUrl?: (recordId: string) => string
  /** Your page about these rules, for `Link: …; rel="describedby"`. @default the IETF draft */
  docsUrl?: string
}

export interface ResolvedGuardOptions<Request> extends ReplyReading {
  readonly engine: Engine
  readonly policy: Policy
  readonly answers: Answers
  readonly fingerprinter: Fingerprinter
  readonly keyRules: KeyRules
  readonly methods: ReadonlySet<string>
  readonly storedHeaders: ReadonlySet<string>
  readonly tenant: GuardOptions<Request>['tenant']
  readonly principal: GuardOptions<Request>['principal']
  readonly operation: GuardOptions<Request>['operation']
  readonly scopeBy: 'tenant+operation' | 'tenant'
  readonly keyRequired: boolean
  /** In lower case. */
  readonly keyHeader: string
  /** As the options write it, for messages. */
  readonly keyHeaderName: string
  readonly keyField: string | undefined
  readonly keyFrom: GuardOptions<Request>['keyFrom']
  readonly fingerprintFields: readonly string[] | undefined
  readonly requestBytesMax: number
  readonly replyBytesMax: number
  readonly releaseOn: ReleaseOn | undefined
  readonly replyVersion: number
  readonly upgradeReply: GuardOptions<Request>['upgradeReply']
  readonly storeFailure: 'closed' | 'open'
  readonly statusUrl: GuardOptions<Request>['statusUrl']
}

/** For an API whose callers all share one set of keys. */
export function singleTenant(): string {
  return 'single'
}

const GUARD_OPTION_NAMES = [
  ...POLICY_OPTION_NAMES,
  'store',
  'engine',
  'tenant',
  'principal',
  'operation',
  'scopeBy',
  'profile',
  'methods',
  'keyRequired',
  'keyHeader',
  'keyField',
  'keyFrom',
  'keySyntax',
  'keyLengthMin',
  'keyLengthMax',
  'keyPattern',
  'refusePersonalKeys',
  'fingerprintFields',
  'fingerprintSecrets',
  'requestBytesMax',
  'replyBytesMax',
  'releaseOn',
  'storeHeaders',
  'replyVersion',
  'upgradeReply',
  'encryption',
  'requireEncryption',
  'storeFailure',
  'durable',
  'statusUrl',
  'docsUrl',
] as const satisfies readonly (keyof GuardOptions<never>)[]

const BYTES_MAX = 512 * 1024 * 1024

/** Fills defaults and checks every rule once. The caller's object is not touched. */
export function resolveGuardOptions<Request>(
  options: GuardOptions<Request>,
): ResolvedGuardOptions<Request> {
  refuseRequest(options)
  rejectUnknownOptions('idempotency', options, GUARD_OPTION_NAMES)
  checkFunctions(options)
  const profile = oneOf('profile', options.profile, { fallback: 'ietf', words: ['ietf', 'stripe'] })
  const engine = resolveEngine('idempotency', options)
  const bytes = (name: 'requestBytesMax' | 'replyBytesMax', fallback: number): number =>
    wholeNumber(name, options[name], { fallback, min: 0, max: BYTES_MAX })
  return Object.freeze({
    engine,
    policy: resolveRoutePolicy(options, engine, profile),
    answers: new Answers(profile, resolveUrl('docsUrl', options.docsUrl)),
    fingerprinter: createFingerprinter({ secrets: options.fingerprintSecrets }),
    keyRules: resolveKeyRules(options),
    methods: resolveMethods(options.methods),
    storedHeaders: resolveStoredHeaders(options.storeHeaders),
    tenant: options.tenant,
    principal: options.principal,
    operation: resolveOperation(options.operation) ?? options.durable?.name,
    scopeBy: resolveScopeBy(options, profile),
    keyRequired: resolveBoolean('keyRequired', options.keyRequired, true),
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
    ...resolveEncryption('idempotency', {
      encryption: options.encryption ?? options.durable?.encryption,
      requireEncryption: options.requireEncryption,
    }),
    storeFailure: oneOf('storeFailure', options.storeFailure, {
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
  checkDurable(options.durable, options)
}

export function checkTenantOption(tenant: unknown): void {
  if (typeof tenant === 'function') return
  throw new InvalidOptionsError(
    `tenant must be a function from the request to the caller's tenant (or singleTenant), got ` +
      `${describe(tenant)}; without it all callers would share their keys`,
  )
}

/** Where the key is, is said once; the syntax is that of a header. */
function checkKeySource<Request>(options: GuardOptions<Request>): void {
  const given = (['keyFrom', 'keyField', 'keyHeader', 'keySyntax'] as const).filter(
    (name) => options[name] !== undefined,
  )
  const [first, second] = given
  if (second === undefined || first === 'keyHeader') return
  throw new InvalidOptionsError(`${first} and ${second} contradict each other: give one of them`)
}

function resolveKeyField(field: unknown): string | undefined {
  if (field === undefined || (typeof field === 'string' && field !== '')) return field
  throw new InvalidOptionsError(
    `keyField must name a field of the body, such as 'request_id', got ${describe(field)}`,
  )
}

const engines = new WeakMap<Store, Engine>()

/** One engine a store, so that all its routes share batches and upkeep. */
export function resolveEngine(
  where: string,
  { engine, store }: { readonly engine?: Engine; readonly store?: Store },
): Engine {
  if ((engine === undefined) === (store === undefined)) {
    throw new InvalidOptionsError(
      engine === undefined
        ? `${where} needs a store, such as sqliteStore({ path }), or an engine`
        : `${where} takes a store or an engine, not both: the engine has its store already`,
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
  return options.durable === undefined ? resolved : resumable(resolved)
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
    throw new InvalidOptionsError('keyPattern must not have the flags g or y: they keep a position')
  }
  return {
    syntax: oneOf('keySyntax', options.keySyntax, {
      fallback: 'lenient',
      words: ['lenient', 'strict'],
    }),
    lengthMin,
    lengthMax,
    pattern,
    refusePersonalData: resolveBoolean('refusePersonalKeys', options.refusePersonalKeys, false),
  }
}

/** Methods that HTTP itself makes safe to repeat, or that have no reply of their own to keep. */
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
    `operation must be a name or a function that gives one, got ${describe(operation)}`,
  )
}

function resolveScopeBy<Request>(
  options: GuardOptions<Request>,
  profile: Profile,
): 'tenant+operation' | 'tenant' {
  const fallback = profile === 'stripe' ? 'tenant' : 'tenant+operation'
  const scopeBy = oneOf('scopeBy', options.scopeBy, {
    fallback,
    words: ['tenant+operation', 'tenant'],
  })
  if (profile === 'stripe' && scopeBy !== 'tenant') {
    throw new InvalidOptionsError(
      "scopeBy 'tenant+operation' contradicts profile 'stripe', whose keys are the tenant's",
    )
  }
  if (scopeBy === 'tenant' && options.operation !== undefined) {
    throw new InvalidOptionsError(
      "operation has no meaning where keys are the tenant's (scopeBy 'tenant', profile 'stripe')",
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

function resolveBoolean(name: string, value: unknown, fallback: boolean): boolean {
  if (value === undefined) return fallback
  if (typeof value === 'boolean') return value
  throw new InvalidOptionsError(`${name} must be true or false, got ${describe(value)}`)
}

export function resolveReplyVersion(version: unknown): number {
  return wholeNumber('replyVersion', version, { fallback: 1, min: 0, max: 65_535 })
}

export function resolveUrl(name: string, value: unknown): string | undefined {
  if (value === undefined) return undefined
  // It goes into a header between angle brackets.
  if (typeof value === 'string' && /^[\x21-\x3b\x3d\x3f-\x7e]+$/.test(value)) return value
  throw new InvalidOptionsError(`${name} must be a URL, got ${describe(value)}`)
}

/** Fails closed: a caller without a proper tenant must not share keys with the others. */
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
    `tenant(request) gave ${describe(tenant)}; it must name the caller's tenant in 1 to ` +
      `${TENANT_LENGTH_MAX} characters. Nothing was run or recorded`,
  )
}

/** Fails closed too: without its principal, one user's reply could be shown to another. */
export function checkPrincipal(principal: unknown): string | undefined {
  if (principal === undefined || (typeof principal === 'string' && principal.isWellFormed())) {
    return principal
  }
  throw new InvalidOptionsError(
    `principal(request) gave ${describe(principal)}; it must be a string, or undefined where ` +
      'there is none. Nothing was run or recorded',
  )
}
