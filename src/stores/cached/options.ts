import { systemClock, type Clock } from '../../core/time/clock.ts'
import { DAY_MS } from '../../core/time/durations.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import {
  describe,
  flag,
  optionalFunction,
  rejectUnknownOptions,
  wholeNumber,
} from '../../core/options.ts'
import type { Store } from '../../core/store/store.ts'
import type { ReplyCache } from './reply-cache.ts'

/** A failure of the cache. It changes no answer: the durable store answers instead. */
export interface CacheFailure {
  /** `clock`: the time of the durable store is unknown, so no entry can be checked for expiry. */
  readonly operation: 'read' | 'fill' | 'forget' | 'clock'
  readonly error: unknown
}

export interface CachedStoreOptions {
  /** The store that decides every answer. `close` of the cached store closes it. */
  durable: Store

  /** `redisCache({ client })`, `memoryCache()`, or your implementation of `ReplyCache`. */
  cache: ReplyCache

  /**
   * How long a claim waits for the cache before it asks the durable store. A higher value tolerates
   * a slower cache, but delays claims while the cache fails. After three failures in a row the
   * cache is not used for five seconds. From 1 to 10_000.
   *
   * @default 50
   */
  timeoutMs?: number

  /**
   * Whether a reply is put into the cache as soon as it is recorded. `false` waits for the first
   * retry: this saves one cache write for each request, and most requests are never retried, but
   * the first retry then asks the durable store.
   *
   * @default true
   */
  fillOnSettle?: boolean

  /**
   * Results with more bytes are not put into the cache; the durable store replays them. A higher
   * limit needs more memory in the cache, and makes its reads slower. From 0 to 16_777_216 bytes.
   *
   * @default 262_144 (256 KiB)
   */
  resultBytesMax?: number

  /**
   * How long `forget` blocks fills of a key. Set it to your longest retention if even a fill that
   * is delayed for that time must not restore a forgotten reply: the reply has then expired. A
   * longer time keeps more tombstones in the cache. From 60_000 (a minute) to ten years.
   *
   * @default 86_400_000 (24 hours)
   */
  tombstoneMs?: number

  /**
   * Called with failures of the cache. After three failures of reads or fills in a row, further
   * ones are not reported until one succeeds. An error that it throws is ignored, with a warning.
   *
   * @default none: the first failure of each `operation` in this process is printed as a warning
   */
  onError?: (failure: CacheFailure) => void

  /** The clock of this process, for tests. @default the system clock */
  clock?: Clock
}

export interface ResolvedCachedStoreOptions {
  readonly durable: Store
  readonly cache: ReplyCache
  readonly timeoutMs: number
  readonly fillOnSettle: boolean
  readonly resultBytesMax: number
  readonly tombstoneMs: number
  readonly onError: ((failure: CacheFailure) => void) | undefined
  readonly clock: Clock
}

const KNOWN = [
  'durable',
  'cache',
  'timeoutMs',
  'fillOnSettle',
  'resultBytesMax',
  'tombstoneMs',
  'onError',
  'clock',
] as const

/** A slower cache saves no time compared with the durable store. */
const TIMEOUT_MS = 50
const TIMEOUT_MS_MAX = 10_000

/** Enough for nearly every reply, and small enough that reading it does not delay others. */
const RESULT_BYTES_MAX = 256 * 1024
const RESULT_BYTES_LIMIT = 16 * 1024 * 1024

const TOMBSTONE_MS_MAX = 3650 * DAY_MS

/** Twice the time after which a fill is no longer sent. */
export const TOMBSTONE_MS_MIN = 60_000

/** Fills defaults and checks every rule once. The caller's object is not touched. */
export function resolveCachedStoreOptions(options: CachedStoreOptions): ResolvedCachedStoreOptions {
  rejectUnknownOptions('cachedStore', options, KNOWN)
  optionalFunction('cachedStore: onError', options.onError)
  return Object.freeze({
    durable: having(options.durable, 'durable', ['claim', 'settle', 'reap', 'read']) as Store,
    cache: having(options.cache, 'cache', ['get', 'fill', 'forget']) as ReplyCache,
    timeoutMs: wholeNumber('cachedStore: timeoutMs', options.timeoutMs, {
      fallback: TIMEOUT_MS,
      min: 1,
      max: TIMEOUT_MS_MAX,
    }),
    fillOnSettle: flag('cachedStore: fillOnSettle', options.fillOnSettle, true),
    resultBytesMax: wholeNumber('cachedStore: resultBytesMax', options.resultBytesMax, {
      fallback: RESULT_BYTES_MAX,
      min: 0,
      max: RESULT_BYTES_LIMIT,
    }),
    tombstoneMs: wholeNumber('cachedStore: tombstoneMs', options.tombstoneMs, {
      fallback: DAY_MS,
      min: TOMBSTONE_MS_MIN,
      max: TOMBSTONE_MS_MAX,
    }),
    onError: options.onError,
    clock: options.clock ?? systemClock,
  })
}

/** Catches the likely mistake of passing a client instead of a store or a cache. */
function having(value: unknown, name: string, methods: readonly string[]): unknown {
  const isFit =
    typeof value === 'object' &&
    value !== null &&
    methods.every((method) => typeof Reflect.get(value, method) === 'function')
  if (isFit) return value
  throw new InvalidOptionsError(
    `cachedStore: ${name} must have the methods ${methods.join(', ')}, got ${describe(value)}`,
  )
}
