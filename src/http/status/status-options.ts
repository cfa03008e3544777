import { resolveEncryption, type Encryption } from '../../core/encryption.ts'
import type { Engine } from '../../core/engine/engine-contract.ts'
import { oneOf, optionalFunction, rejectUnknownOptions } from '../../core/options.ts'
import type { Store } from '../../core/store/store.ts'
import { Answers, type Profile } from '../guard/answers.ts'
import {
  checkTenantOption,
  resolveEngine,
  resolveReplyVersion,
  resolveUrl,
} from '../guard/resolve-guard-options.ts'
import type { GuardOptions } from '../guard/guard-options.ts'
import type { LimitOptions } from '../limits/limit-options.ts'
import { createLimits, type Limits } from '../limits/limits.ts'
import type { ReplayOptions } from '../reply/replay.ts'

/**
 * Options of the status handler of every adapter. `Request` is the request of the framework.
 * Options that the guard has, too, mean the same here: set both to the same values.
 */
export interface StatusOptions<Request> {
  /** Keeps the records, as for the guard. Set either `store` or `engine`. @default none */
  store?: Store
  /** The engine of the guard: `guard.engine`, or your own. @default an engine on `store` */
  engine?: Engine

  /**
   * Required. The tenant of the caller, as for the guard: a record of another tenant gets the same
   * 404 as an unknown id. Fails closed: an error, an empty value, more than 255 characters, or the
   * text `undefined` or `null` is an error of the request.
   */
  tenant: (request: Request) => string | Promise<string>

  /**
   * The user within the tenant, for routes with `scopeBy: 'tenant+principal+operation'`: a record
   * of another user gets the same 404 as an unknown id, and so does a record whose scope has no
   * principal, or whose key is no longer kept. @default none: every user of the tenant may ask
   */
  principal?: NonNullable<GuardOptions<Request>['principal']>

  /** Limits of the look-ups, as for the guard: pass the same object. @default none */
  limits?: LimitOptions<Request>

  /**
   * The id of the requested record.
   *
   * @default the parameter `id` of the route, or else the last part of the path
   */
  recordId?: (request: Request) => string | undefined

  /** Error format: `ietf` (RFC 9457 problems) or `stripe`. @default 'ietf' */
  profile?: Profile
  /** Your page about these rules, for the `Link` of problems. @default the IETF draft */
  docsUrl?: string
  /**
   * Makes the `Location` of a 202: the URL of this handler.
   *
   * @default none: no `Location`, because the client already has the URL
   */
  statusUrl?: (recordId: string) => string

  /** The version of the replies, as for the guard or the operation. @default 1 */
  replyVersion?: number
  /**
   * Turns a reply that was recorded under another version into a new one.
   *
   * @default none: replies of every version are sent unchanged
   */
  upgradeReply?: NonNullable<GuardOptions<Request>['upgradeReply']>
  /**
   * Decrypts the replies of the guard or the operation. A reply that does not decrypt gets 409.
   *
   * @default that of the engine, if it has one
   */
  encryption?: Encryption
  /** Refuses recorded replies that are not encrypted, with 409. @default that of the engine */
  requireEncryption?: boolean
}

export interface ResolvedStatusOptions<Request> extends ReplayOptions {
  readonly engine: Engine
  readonly tenant: StatusOptions<Request>['tenant']
  readonly principal: StatusOptions<Request>['principal']
  readonly limits: Limits<Request> | undefined
  readonly recordId: (request: Request) => unknown
  readonly statusUrl: StatusOptions<Request>['statusUrl']
}

export const STATUS_OPTION_NAMES = [
  'store',
  'engine',
  'tenant',
  'principal',
  'limits',
  'recordId',
  'profile',
  'docsUrl',
  'statusUrl',
  'replyVersion',
  'upgradeReply',
  'encryption',
  'requireEncryption',
] as const satisfies readonly (keyof StatusOptions<never>)[]

/** Fills in defaults and checks every option. `recordId` is the default of the framework. */
export function resolveStatusOptions<Request>(
  options: StatusOptions<Request>,
  recordId: (request: Request) => unknown,
): ResolvedStatusOptions<Request> {
  rejectUnknownOptions('idempotencyStatus', options, STATUS_OPTION_NAMES)
  checkTenantOption(options.tenant)
  for (const name of ['principal', 'recordId', 'statusUrl', 'upgradeReply'] as const) {
    optionalFunction(name, options[name])
  }
  const engine = resolveEngine('idempotencyStatus', options)
  const profile = oneOf('profile', options.profile, { fallback: 'ietf', words: ['ietf', 'stripe'] })
  return Object.freeze({
    engine,
    answers: new Answers(profile, resolveUrl('docsUrl', options.docsUrl)),
    tenant: options.tenant,
    principal: options.principal,
    limits: createLimits(options.limits, engine),
    recordId: options.recordId ?? recordId,
    statusUrl: options.statusUrl,
    replyVersion: resolveReplyVersion(options.replyVersion),
    upgradeReply: options.upgradeReply,
    ...resolveEncryption('idempotencyStatus', options, engine),
  })
}
