import type { EncryptionSubject, HookBytes } from '../core/encryption.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import { rejectUnknownOptions, wholeNumber } from '../core/options.ts'
import { systemClock, type Clock } from '../core/time/clock.ts'
import { DAY_MS, HOUR_MS } from '../core/time/durations.ts'
import { checkKeyId, withoutContent } from './key-id.ts'

export interface EnvelopeKeyringOptions {
  /**
   * Encrypts a data key of 32 bytes at the key service, for example with KMS `Encrypt`. The result
   * is stored with each value. `key` is wiped when the returned promise settles.
   */
  wrap: (key: Uint8Array, call: KeyServiceCall) => HookBytes

  /** Decrypts the result of `wrap`. Must fail if the key was wrapped for another tenant. */
  unwrap: (wrapped: Uint8Array, call: KeyServiceCall) => HookBytes

  /**
   * The id of the key at the key service that `wrap` uses, or a function that returns it, for a key
   * for each tenant. `unwrap` gets the id that `wrap` got. Change the id when another key of the
   * service takes over, so that stored values can be counted by key.
   *
   * @default 'envelope'
   */
  id?: string | ((subject: EncryptionSubject) => string)

  /** How long and how often data keys are used. */
  cache?: EnvelopeCacheOptions

  /**
   * How long a call of the key service may take. Keep it below 5 seconds: a guard waits no longer
   * for a reply to be decrypted.
   *
   * @default 3_000
   */
  timeoutMs?: number

  /** The clock of ages and time limits, for tests. @default the system clock */
  clock?: Clock
}

/** The purpose of a call of the key service. */
export interface KeyServiceCall {
  /** `undefined`: a message without a tenant. Bind the wrapped key to it, if the service can. */
  readonly tenant: string | undefined
  /**
   * The id of the key at the service: the option `id` when the data key was wrapped. `unwrap` gets
   * it from the stored value, which is not authenticated yet.
   */
  readonly keyId: string
  /** Aborts when the result is no longer needed. */
  readonly signal: AbortSignal
}

export interface EnvelopeCacheOptions {
  /**
   * After this time, a tenant's next request gets a new data key, and stored keys are unwrapped
   * again. A longer time needs fewer calls of the key service and survives longer outages of it,
   * but a key that was revoked there is used for this much longer.
   *
   * @default 3_600_000 (1 hour)
   */
  ageMs?: number

  /**
   * After this number of encrypted values, a tenant's next request gets a new data key. Limits how
   * many values are readable with one data key that has leaked. Requests that run at the same time
   * may exceed the number.
   *
   * @default 100_000
   */
  uses?: number

  /**
   * The number of tenants whose data key is kept. Beyond it, the least recently used key is wiped,
   * and the next request of its tenant waits for the key service. A key takes about 1 KB.
   *
   * @default 10_000
   */
  tenantsMax?: number

  /**
   * The number of unwrapped keys that are kept to decrypt stored values. Each process makes a key
   * for each tenant and `ageMs`, so replays need several for each tenant. A key takes about 1 KB.
   *
   * @default 10_000
   */
  unwrappedMax?: number
}

export interface ResolvedEnvelopeOptions {
  readonly wrap: EnvelopeKeyringOptions['wrap']
  readonly unwrap: EnvelopeKeyringOptions['unwrap']
  readonly idOf: (subject: EncryptionSubject) => string
  readonly cache: Readonly<Required<EnvelopeCacheOptions>>
  readonly timeoutMs: number
  readonly clock: Clock
}

const NAMES = ['wrap', 'unwrap', 'id', 'cache', 'timeoutMs', 'clock']
const CACHE_NAMES = ['ageMs', 'uses', 'tenantsMax', 'unwrappedMax']

const DEFAULT_ID = 'envelope'
const TIMEOUT_MS = 3_000
const TIMEOUT_MS_MAX = 60_000
const USES = 100_000
const KEYS_MAX = 10_000

export function resolveEnvelopeOptions(options: EnvelopeKeyringOptions): ResolvedEnvelopeOptions {
  rejectUnknownOptions('envelopeKeyring', options, NAMES)
  const { wrap, unwrap, clock = systemClock } = options
  requireFunction('wrap', wrap)
  requireFunction('unwrap', unwrap)
  return {
    wrap,
    unwrap,
    idOf: resolveId(options.id ?? DEFAULT_ID),
    cache: resolveCache(options.cache ?? {}),
    timeoutMs: wholeNumber('envelopeKeyring: timeoutMs', options.timeoutMs, {
      fallback: TIMEOUT_MS,
      min: 1,
      max: TIMEOUT_MS_MAX,
    }),
    clock,
  }
}

function resolveCache(cache: EnvelopeCacheOptions): Readonly<Required<EnvelopeCacheOptions>> {
  rejectUnknownOptions('envelopeKeyring: cache', cache, CACHE_NAMES)
  const bounded = (name: keyof EnvelopeCacheOptions, fallback: number, max: number) =>
    wholeNumber(`envelopeKeyring: cache.${name}`, cache[name], { fallback, min: 1, max })
  return {
    ageMs: bounded('ageMs', HOUR_MS, DAY_MS),
    uses: bounded('uses', USES, Number.MAX_SAFE_INTEGER),
    tenantsMax: bounded('tenantsMax', KEYS_MAX, Number.MAX_SAFE_INTEGER),
    unwrappedMax: bounded('unwrappedMax', KEYS_MAX, Number.MAX_SAFE_INTEGER),
  }
}

function resolveId(
  id: NonNullable<EnvelopeKeyringOptions['id']>,
): (subject: EncryptionSubject) => string {
  if (typeof id === 'function') {
    return (subject) => checkKeyId('envelopeKeyring: the result of id()', id(subject))
  }
  checkKeyId('envelopeKeyring: id', id)
  return () => id
}

function requireFunction(name: string, value: unknown): void {
  if (typeof value === 'function') return
  throw new InvalidOptionsError(
    `envelopeKeyring: ${name} must be a function, got ${withoutContent(value)}`,
  )
}
