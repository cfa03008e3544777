import { InvalidOptionsError } from '../../core/errors.ts'
import {
  describe,
  optionalFunction,
  rejectUnknownOptions,
  wholeNumber,
} from '../../core/options.ts'
import type { Limiter } from './limiter.ts'

/** Limits of one tenant and one caller. A refused request gets 429, and its key is not used. */
export interface LimitOptions<Request> {
  /**
   * The new keys of a tenant. A key costs a point when its work starts for the first time; a tenant
   * without points still gets its replays. Requests that are in flight at that moment may exceed
   * the limit, so set `inFlight`, too.
   *
   * @default no limit
   */
  newKeys?: Limiter

  /**
   * The look-ups of a caller: replays, conflicts, mismatches and other answers from a record, and
   * calls of the status handler. Makes it expensive to guess keys. Without points, such an answer
   * is 429; a new key still runs.
   *
   * @default no limit
   */
  lookUps?: Limiter

  /**
   * The requests of a tenant that may run at the same time in this process, 1 to 1_000_000. At the
   * limit, the tenant still gets its replays. Guards that are given the same `limits` object count
   * together.
   *
   * @default no limit
   */
  inFlight?: number

  /**
   * The caller whose look-ups are counted, within the tenant.
   *
   * @default the `principal`, or else the whole tenant
   */
  caller?: (request: Request) => string | Promise<string>

  /**
   * How long a limiter may take, 1 to 60_000 ms. A limiter that fails or takes longer lets the
   * request pass, with the event `limiter_failed`: it protects the service from load, and must not
   * stop payments itself.
   *
   * @default 500
   */
  timeoutMs?: number
}

export interface ResolvedLimitOptions<Request> {
  readonly newKeys: Limiter | undefined
  readonly lookUps: Limiter | undefined
  readonly inFlight: number | undefined
  readonly caller: LimitOptions<Request>['caller']
  readonly timeoutMs: number
}

const NAMES = ['newKeys', 'lookUps', 'inFlight', 'caller', 'timeoutMs'] as const

export function resolveLimits<Request>(
  options: LimitOptions<Request> | undefined,
): ResolvedLimitOptions<Request> | undefined {
  if (options === undefined) return undefined
  rejectUnknownOptions('limits', options, NAMES)
  optionalFunction('limits.caller', options.caller)
  return Object.freeze({
    newKeys: resolveLimiter('limits.newKeys', options.newKeys),
    lookUps: resolveLimiter('limits.lookUps', options.lookUps),
    inFlight:
      options.inFlight === undefined
        ? undefined
        : wholeNumber('limits.inFlight', options.inFlight, { fallback: 1, min: 1, max: 1_000_000 }),
    caller: options.caller,
    timeoutMs: wholeNumber('limits.timeoutMs', options.timeoutMs, {
      fallback: 500,
      min: 1,
      max: 60_000,
    }),
  })
}

function resolveLimiter(where: string, limiter: unknown): Limiter | undefined {
  if (limiter === undefined) return undefined
  const { consume } = (limiter ?? {}) as Partial<Limiter>
  if (typeof consume === 'function') return limiter as Limiter
  throw new InvalidOptionsError(
    `${where} must be a limiter with consume(key, points), such as a RateLimiterMemory of ` +
      `rate-limiter-flexible, got ${describe(limiter)}`,
  )
}
