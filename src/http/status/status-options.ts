import type { Encryption } from '../../core/encryption.ts'
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
import type { ReplayOptions } from '../reply/replay.ts'
import { resolveEncryption } from '../reply/reply-encryption.ts'

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
   * @default none: replies are not encrypted
   */
  encryption?: Encryption
  /** Refuses recorded replies that are not encrypted, with 409. @default false */
  requireEncryption?: boolean
}

export interface ResolvedStatusOptions<Request> extends ReplayOptions {
  readonly engine: Engine
  readonly tenant: StatusOptions<Request>['tenant']
  readonly recordId: (request: Request) => unknown
  readonly statusUrl: StatusOptions<Request>['statusUrl']
}

export const STATUS_OPTION_NAMES = [
  'store',
  'engine',
  'tenant',
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
  for (const name of ['recordId', 'statusUrl', 'upgradeReply'] as const) {
    optionalFunction(name, options[name])
  }
  const profile = oneOf('profile', options.profile, { fallback: 'ietf', words: ['ietf', 'stripe'] })
  return Object.freeze({
    engine: resolveEngine('idempotencyStatus', options),
    answers: new Answers(profile, resolveUrl('docsUrl', options.docsUrl)),
    tenant: options.tenant,
    recordId: options.recordId ?? recordId,
    statusUrl: options.statusUrl,
    replyVersion: resolveReplyVersion(options.replyVersion),
    upgradeReply: options.upgradeReply,
    ...resolveEncryption('idempotencyStatus', options),
  })
}
