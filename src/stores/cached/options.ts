import { systemClock, type Clock } from '../../core/clock.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import {
  describe,
  flag,
  optionalFunction,
  rejectUnknownOptions,
  wholeNumber,
} from '../../core/options.ts'
import type { Store } from '../../core/store.ts'
import type { ReplyCache } from './reply-cache.ts'

/** What went wrong beside the answers, which come from the durable store meanwhile. */
export interface CacheTrouble {
  /** `clock`: the durable store did not tell its time, without which no entry can be judged. */
  readonly operation: 'read' | 'fill' | 'forget' | 'clock'
  readonly error: unknown
}

export interface CachedStoreOptions {
  /** The store that has the truth. It stays yours, and `close` of the cached store closes it. */
  durable: Store

  /** `redisCache({ client })`, `memoryCache()`, or one of your own. */
  cache: ReplyCache

  /**
   * How long a claim may wait for the cache; then it asks the durable store. After three failures
   * in a row the cache is left alone for five seconds.
   *
   * @default 50
   */
  timeoutMs?: number

  /**
   * Whether a reply is put into the cache as soon as it is recorded. `false` waits for the first
   * retry that asks for it: one write less for each request, and most are never retried.
   *
   * @default true
   */
  fillOnSettle?: boolean

  /**
   * Longer results are not put into the cache.
   *
   * @default 262_144
   */
  resultBytesMax?: number

  /**
   * How long `forget` keeps a key out of the cache. With your longest retention, not even a fill
   * that was held up all that time can bring a forgotten reply back: it has expired by then.
   *
   * @default 86_400_000
   */
  tombstoneMs?: number

  /** Told of failures, at most a few every five seconds. Without it, the first is a warning. */
  onError?: (trouble: CacheTrouble) => void

  /** For tests: the clock of this process. @default the system's clock */
  clock?: Clock
}

export interface ResolvedCachedStoreOptions {
  readonly durable: Store
  readonly cache: ReplyCache
  readonly timeoutMs: number
  readonly fillOnSettle: boolean
  readonly resultBytesMax: number
  readonly tombstoneMs: number
  readonly onError: ((trouble: CacheTrouble) => void) | undefined
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

/** A cache that is slower than this saves nothing. */
const TIMEOUT_MS = 50
const TIMEOUT_MS_MAX = 10_000

/** Enough for nearly every reply, and small enough that reading it does not hold up others. */
const RESULT_BYTES_MAX = 256 * 1024
const RESULT_BYTES_LIMIT = 16 * 1024 * 1024

const DAY_MS = 24 * 60 * 60 * 1000
const TOMBSTONE_MS_MAX = 3650 * DAY_MS

/** Twice as long as a fill may take on its way out of this process. */
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

/** A client handed in place of a store or of a cache is the likely mistake here. */
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
