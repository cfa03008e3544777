import type { Encryption } from '../core/encryption.ts'
import type { Engine } from '../core/engine.ts'
import { oneOf, optionalFunction, rejectUnknownOptions } from '../core/options.ts'
import type { Store } from '../core/store.ts'
import { Answers, type Profile } from './answers.ts'
import {
  checkTenantOption,
  resolveEngine,
  resolveReplyVersion,
  resolveUrl,
  type GuardOptions,
} from './guard-options.ts'
import type { ReplayOptions } from './replay.ts'
import { resolveEncryption } from './reply-encryption.ts'

/**
 * Options of the status handler of every adapter. `Request` is the framework's own request. What
 * a guard has too means the same here: give both the same.
 */
export interface StatusOptions<Request> {
  /** Where the records are, as for the guard. Or give an `engine`. */
  store?: Store
  /** The guard's own: `guard.engine`, or the one you made. */
  engine?: Engine

  /**
   * Who asks, by the same rule as for the guard: records of any other tenant are not there. What
   * throws, or is no proper name, fails closed.
   */
  tenant: (request: Request) => string | Promise<string>

  /** Which record is asked for. @default the parameter `id`, or else the last part of the path */
  recordId?: (request: Request) => string | undefined

  /** Whose status codes and error bodies are spoken. @default 'ietf' */
  profile?: Profile
  /** Your page about these rules, for `Link: …; rel="describedby"`. @default the IETF draft */
  docsUrl?: string
  /** Where this handler is found, for `Location` in a 202. @default none: the client is there */
  statusUrl?: (recordId: string) => string

  /** The version of the replies, as the guard has it. @default 1 */
  replyVersion?: number
  /** Makes a reply of today out of one recorded under another version. */
  upgradeReply?: NonNullable<GuardOptions<Request>['upgradeReply']>
  /** The guard's own: decrypts what the guard encrypted. */
  encryption?: Encryption
  /** Refuses replies that are not encrypted, as the guard does. @default false */
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

/** Fills defaults and checks every rule once. `recordId` is where the framework has it. */
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
