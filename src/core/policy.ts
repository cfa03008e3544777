import { InvalidOptionsError } from './errors.ts'
import type { OnError } from './failure.ts'
import { describe, oneOf, rejectUnknownOptions, wholeNumber } from './options.ts'
import type { AfterExpiry, OnLapse } from './record.ts'
import { warnOnce } from './warn.ts'

/** How one kind of work is guarded. Given to an engine, a route, or a single run. */
export interface PolicyOptions {
  /**
   * How long a holder may stay silent before its key counts as abandoned. It is renewed while
   * the work runs, so it need not exceed the slowest handler: shorter finds a crash sooner,
   * longer survives longer stalls of the process or the store.
   *
   * @default 60_000
   */
  leaseMs?: number

  /**
   * How long a finished result is replayed, counted from its completion. It must cover the
   * longest time after which a client may still retry: a retry that comes later runs again.
   *
   * @default 86_400_000 (24 hours)
   */
  retentionMs?: number

  /**
   * How long the work may run. Past it the lease is renewed no more, `signal` aborts, and the
   * caller learns that the outcome is unknown.
   *
   * @default 900_000 (15 minutes)
   */
  maxRunMs?: number

  /**
   * How many attempts of one record may fall silent before a `rerun` or `resume` gives up
   * and the record becomes `unknown`: a request that kills its process must stop somewhere.
   *
   * @default 5
   */
  maxAttempts?: number

  /**
   * What becomes of a key whose holder fell silent. `unknown`: nobody runs it again until a
   * verdict. `rerun`: the next caller runs it; right only where an attempt without a commit had
   * no effect, or where a second effect does no harm. (Operations are resumed by themselves.)
   *
   * @default 'unknown'
   */
  onLapse?: Exclude<OnLapse, 'resume'>

  /**
   * What becomes of a key whose work failed. `auto`: it may be retried, unless an outside effect
   * had begun or the failure looks like a lost network call: then `unknown`. `retry`: always.
   * `store`: the failure is the result. `unknown`: always. A function decides case by case.
   *
   * @default 'auto'
   */
  onError?: OnError

  /**
   * Whether a key may be used again after its record has expired. `refuse` keeps a small row for
   * every key it has ever seen.
   *
   * @default 'new'
   */
  afterExpiry?: AfterExpiry

  /**
   * What a duplicate gets while the first request runs: `conflict` (409), `accepted` (202), or
   * `{ waitMs }`: it waits that long for the result.
   *
   * @default 'conflict'
   */
  whileInProgress?: WhileInProgress

  /**
   * How long the caller waits for its result to be recorded when the store falters after the
   * work ran. Recording goes on in the background after that.
   *
   * @default 5_000
   */
  settleTimeoutMs?: number
}

export type WhileInProgress = 'conflict' | 'accepted' | { readonly waitMs: number }

export type Policy = Readonly<Required<Omit<PolicyOptions, 'onLapse'>>> & {
  readonly onLapse: OnLapse
}

export const POLICY_OPTION_NAMES = [
  'leaseMs',
  'retentionMs',
  'maxRunMs',
  'maxAttempts',
  'onLapse',
  'onError',
  'afterExpiry',
  'whileInProgress',
  'settleTimeoutMs',
] as const satisfies readonly (keyof PolicyOptions)[]

const HOUR_MS = 60 * 60 * 1000
const DAY_MS = 24 * HOUR_MS

export const DEFAULT_POLICY: Policy = Object.freeze({
  leaseMs: 60_000,
  retentionMs: DAY_MS,
  maxRunMs: 15 * 60_000,
  maxAttempts: 5,
  onLapse: 'unknown',
  onError: 'auto',
  afterExpiry: 'new',
  whileInProgress: 'conflict',
  settleTimeoutMs: 5_000,
})

/** A lease shorter than this cannot be renewed in time on a busy machine. */
const LEASE_MS_MIN = 100
/** Ten years: beyond it a retention is a mistake in units. */
export const RETENTION_MS_MAX = 3650 * DAY_MS
/** Proxies and load balancers close a silent request about here. */
const WAIT_MS_MAX = 120_000

/** Fills what is missing from `base` and checks every rule once. */
export function resolvePolicy(
  options: PolicyOptions,
  base: Policy = DEFAULT_POLICY,
  where = 'policy',
): Policy {
  rejectUnknownOptions(where, options, POLICY_OPTION_NAMES)
  const whole = (name: keyof Policy, min: number, max: number): number =>
    wholeNumber(`${where}.${name}`, options[name], { fallback: base[name] as number, min, max })

  const policy: Policy = Object.freeze({
    leaseMs: whole('leaseMs', LEASE_MS_MIN, DAY_MS),
    retentionMs: whole('retentionMs', 1, RETENTION_MS_MAX),
    maxRunMs: whole('maxRunMs', 1, 7 * DAY_MS),
    maxAttempts: whole('maxAttempts', 1, 1_000_000),
    onLapse: oneOf<OnLapse>(`${where}.onLapse`, options.onLapse, {
      fallback: base.onLapse,
      words: ['unknown', 'rerun'],
    }),
    onError: resolveOnError(where, options.onError, base.onError),
    afterExpiry: oneOf(`${where}.afterExpiry`, options.afterExpiry, {
      fallback: base.afterExpiry,
      words: ['new', 'refuse'],
    }),
    whileInProgress: resolveWhileInProgress(where, options.whileInProgress, base.whileInProgress),
    settleTimeoutMs: whole('settleTimeoutMs', 1, HOUR_MS),
  })
  checkTogether(policy)
  return policy
}

/** The policy under which an operation runs: a silent holder's work is gone on with. */
export function resumable(policy: Policy): Policy {
  return Object.freeze({ ...policy, onLapse: 'resume' as const })
}

function checkTogether({ leaseMs, retentionMs }: Policy): void {
  if (retentionMs <= leaseMs) {
    throw new InvalidOptionsError(
      `retentionMs (${retentionMs}) must exceed leaseMs (${leaseMs}), or a record could expire ` +
        'while a retry of its request is still to be expected',
    )
  }
  if (retentionMs < HOUR_MS) {
    warnOnce(
      `retentionMs is ${retentionMs}: clients on bad networks retry after more than an hour, and ` +
        'a retry past the retention runs the work again',
    )
  }
}

function resolveOnError(where: string, value: unknown, fallback: OnError): OnError {
  if (typeof value === 'function') return value as OnError
  if (value === undefined) return fallback
  return oneOf<Extract<OnError, string>>(`${where}.onError`, value, {
    fallback: 'auto',
    words: ['auto', 'retry', 'store', 'unknown'],
  })
}

function resolveWhileInProgress(
  where: string,
  value: unknown,
  fallback: WhileInProgress,
): WhileInProgress {
  if (value === undefined) return fallback
  if (value === 'conflict' || value === 'accepted') return value
  if (typeof value === 'object' && value !== null) {
    rejectUnknownOptions(`${where}.whileInProgress`, value, ['waitMs'])
    const { waitMs } = value as { waitMs?: unknown }
    const limits = { fallback: Number.NaN, min: 1, max: WAIT_MS_MAX }
    const ms = wholeNumber(`${where}.whileInProgress.waitMs`, waitMs, limits)
    if (!Number.isNaN(ms)) return Object.freeze({ waitMs: ms })
  }
  throw new InvalidOptionsError(
    `${where}.whileInProgress must be 'conflict', 'accepted' or { waitMs }, got ${describe(value)}`,
  )
}
