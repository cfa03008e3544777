import { DAY_MS, HOUR_MS, MINUTE_MS } from '../time/durations.ts'
import { InvalidOptionsError } from '../errors.ts'
import type { OnError } from '../attempt/failure.ts'
import { describe, oneOf, rejectUnknownOptions, wholeNumber } from '../options.ts'
import type { OnLapse, AfterExpiry } from '../record/record.ts'
import { warnOnce } from '../warn.ts'

/** How one kind of work is guarded. Accepted by an engine, a route and a single run. */
export interface PolicyOptions {
  /**
   * How long a holder may go without a renewal before its key counts as abandoned, in milliseconds:
   * from 100 to a day. The lease is renewed while the work runs, so it need not cover the slowest
   * handler. A shorter lease finds a crash sooner; a longer one survives longer stalls of the
   * process or the store.
   *
   * @default 60_000
   */
  leaseMs?: number

  /**
   * How long a result is replayed, counted from its completion: more than `leaseMs`, at most ten
   * years. It must cover the longest time after which a client may still retry, because a later
   * retry runs the work again. A longer retention needs more space in the store. A value below an
   * hour causes a warning.
   *
   * @default 86_400_000 (24 hours)
   */
  retentionMs?: number

  /**
   * How long the work may run, at most a week. After that its lease is not renewed, `signal`
   * aborts, and the caller gets an unknown outcome (in progress, if `onLapse` is `rerun`). Work
   * that ends later is still recorded. A longer time lets slow work finish; a shorter one answers
   * the caller of hanging work sooner.
   *
   * @default 900_000 (15 minutes)
   */
  runTimeoutMs?: number

  /**
   * How many leases of one record may lapse before `rerun` (or a durable operation) gives up and
   * the record becomes `unknown`. The limit stops a request that crashes its process every time.
   * More lapses survive more crashes and deploys. Retries after ordinary failures do not count.
   * From 1 to 1_000_000.
   *
   * @default 5
   */
  maxLapses?: number

  /**
   * Decides about a key whose lease lapsed. `unknown`: it does not run again until a verdict.
   * `rerun`: the next caller runs it. That is right only if an attempt without a commit has no
   * effect, or if a second effect does no harm. Durable operations always resume from their
   * recovery point.
   *
   * @default 'unknown'
   */
  onLapse?: Exclude<OnLapse, 'resume'>

  /**
   * Decides about a key whose work failed.
   *
   * - `auto`: the key may be retried, unless an outside effect had begun or the error looks like a
   *   lost network call; then it becomes `unknown`.
   * - `retry`: the key may always be retried. Wrong for handlers with outside effects.
   * - `store`: the failure is the result. A client needs a new key for another attempt.
   * - `unknown`: the key always becomes `unknown`.
   * - A function gets the failure and returns `'retry'`, `'store'` or `'unknown'`.
   *
   * `NotExecutedError` and `OutcomeUnknownError` take precedence.
   *
   * @default 'auto' ('store' in the `stripe` profile)
   */
  onError?: OnError

  /**
   * Whether a key may be used again after its record has expired. `rerun`: the work runs again, as
   * for a new key. `refuse`: the request gets 410, for ever; the store then keeps a small row for
   * every key ever used. `{ refuseForMs }`: the request gets 410 for that time after the expiry, at
   * most ten years; the store keeps the small row until then.
   *
   * @default 'rerun'
   */
  afterExpiry?: 'rerun' | 'refuse' | { readonly refuseForMs: number }

  /**
   * Source of downstream keys and deterministic ids. `identity`: they derive from tenant, operation
   * and key, so a retry after the expiry has the ids of the first request, and a provider that
   * still knows the downstream key does not charge again. `record`: from the random id of the
   * record, for APIs whose clients reuse a key for new work after its expiry. A record keeps its
   * ids when this option changes.
   *
   * @default 'identity'
   */
  idsFrom?: 'identity' | 'record'

  /**
   * The answer to a duplicate while the first request runs. `conflict`: 409 at once. `accepted`:
   * 202. `{ waitMs }`: the duplicate waits that long for the result, at most 120_000 ms, and then
   * gets 409. Waiting suits clients that treat 409 as final, but keeps a connection open.
   *
   * @default 'conflict'
   */
  whileInProgress?: WhileInProgress

  /**
   * How long the caller waits for its result to be recorded if the store fails after the work ran,
   * at most an hour. After that the caller gets `OutcomeNotRecordedError` (503), and recording
   * continues in the background for up to an hour. A longer time gives more callers their result; a
   * shorter one frees callers sooner.
   *
   * @default 5_000
   */
  settleTimeoutMs?: number
}

/** The answer to a duplicate while the first request runs. */
export type WhileInProgress = 'conflict' | 'accepted' | { readonly waitMs: number }

/** Checked policy options without gaps, from `engine.policy()`. */
export type Policy = Readonly<Required<Omit<PolicyOptions, 'onLapse' | 'afterExpiry'>>> & {
  readonly onLapse: OnLapse
  /** The value that records have: `new` is the option `rerun`. */
  readonly afterExpiry: AfterExpiry
  /** From `afterExpiry: { refuseForMs }`; `undefined`: for ever. */
  readonly refuseForMs: number | undefined
}

export const POLICY_OPTION_NAMES = [
  'leaseMs',
  'retentionMs',
  'runTimeoutMs',
  'maxLapses',
  'onLapse',
  'onError',
  'afterExpiry',
  'idsFrom',
  'whileInProgress',
  'settleTimeoutMs',
] as const satisfies readonly (keyof PolicyOptions)[]

export const DEFAULT_POLICY: Policy = Object.freeze({
  leaseMs: MINUTE_MS,
  retentionMs: DAY_MS,
  runTimeoutMs: 15 * MINUTE_MS,
  maxLapses: 5,
  onLapse: 'unknown',
  onError: 'auto',
  afterExpiry: 'new',
  refuseForMs: undefined,
  idsFrom: 'identity',
  whileInProgress: 'conflict',
  settleTimeoutMs: 5_000,
})

/** A lease shorter than this cannot be renewed in time on a busy machine. */
const LEASE_MS_MIN = 100
/** Ten years: a longer retention is a mistake in units. */
export const RETENTION_MS_MAX = 3650 * DAY_MS
/** Proxies and load balancers close a request without an answer after about this time. */
const WAIT_MS_MAX = 120_000

/** Checks all options, and takes missing ones from `base`. */
export function resolvePolicy(
  options: PolicyOptions,
  base: Policy = DEFAULT_POLICY,
  where = 'policy',
): Policy {
  rejectUnknownOptions(where, options, POLICY_OPTION_NAMES)
  const whole = (name: keyof Policy & keyof PolicyOptions, min: number, max: number): number =>
    wholeNumber(`${where}.${name}`, options[name], { fallback: base[name] as number, min, max })

  const policy: Policy = Object.freeze({
    leaseMs: whole('leaseMs', LEASE_MS_MIN, DAY_MS),
    retentionMs: whole('retentionMs', 1, RETENTION_MS_MAX),
    runTimeoutMs: whole('runTimeoutMs', 1, 7 * DAY_MS),
    maxLapses: whole('maxLapses', 1, 1_000_000),
    onLapse: oneOf<OnLapse>(`${where}.onLapse`, options.onLapse, {
      fallback: base.onLapse,
      words: ['unknown', 'rerun'],
    }),
    onError: resolveOnError(where, options.onError, base.onError),
    ...resolveAfterExpiry(where, options.afterExpiry, base),
    idsFrom: oneOf(`${where}.idsFrom`, options.idsFrom, {
      fallback: base.idsFrom,
      words: ['identity', 'record'],
    }),
    whileInProgress: resolveWhileInProgress(where, options.whileInProgress, base.whileInProgress),
    settleTimeoutMs: whole('settleTimeoutMs', 1, HOUR_MS),
  })
  checkRetention(policy)
  return policy
}

/** Returns the policy of an operation: after a lapse, a new attempt resumes the work. */
export function resumePolicyOf(policy: Policy): Policy {
  return Object.freeze({ ...policy, onLapse: 'resume' as const })
}

function checkRetention({ leaseMs, retentionMs }: Policy): void {
  if (retentionMs <= leaseMs) {
    throw new InvalidOptionsError(
      `retentionMs (${retentionMs}) must exceed leaseMs (${leaseMs}), or a record could expire ` +
        'while clients still retry its request; raise retentionMs',
    )
  }
  if (retentionMs < HOUR_MS) {
    warnOnce(
      `retentionMs is ${retentionMs}, less than an hour: clients on bad networks may retry later ` +
        'than that, and a retry after the retention runs the work again; use a longer retention',
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

function resolveAfterExpiry(
  where: string,
  value: unknown,
  { afterExpiry, refuseForMs }: Policy,
): Pick<Policy, 'afterExpiry' | 'refuseForMs'> {
  if (value === undefined) return { afterExpiry, refuseForMs }
  if (value === 'rerun') return { afterExpiry: 'new', refuseForMs: undefined }
  if (value === 'refuse') return { afterExpiry: 'refuse', refuseForMs: undefined }
  if (typeof value === 'object' && value !== null) {
    rejectUnknownOptions(`${where}.afterExpiry`, value, ['refuseForMs'])
    const { refuseForMs: given } = value as { refuseForMs?: unknown }
    const limits = { fallback: Number.NaN, min: 1, max: RETENTION_MS_MAX }
    const ms = wholeNumber(`${where}.afterExpiry.refuseForMs`, given, limits)
    if (!Number.isNaN(ms)) return { afterExpiry: 'refuse', refuseForMs: ms }
  }
  throw new InvalidOptionsError(
    `${where}.afterExpiry must be 'rerun', 'refuse' or { refuseForMs }, got ${describe(value)}`,
  )
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
