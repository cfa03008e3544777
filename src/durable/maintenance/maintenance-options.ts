import type { DurableStore } from '../../core/store/durable-store.ts'
import type { Engine } from '../../core/engine/engine-contract.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, rejectUnknownOptions, wholeNumber } from '../../core/options.ts'
import { encodeUnbound, type AbandonedReplyInput } from '../../http/reply/http-reply.ts'
import { DAY_MS, HOUR_MS, MINUTE_MS } from '../../core/time/durations.ts'
import { durableOf } from '../durable-engine.ts'
import type { LedgerJob } from '../reconciliation/ledger-job.ts'

/** A worker, a relay or a reconciler. */
export interface MaintenancePart {
  /** Runs one bounded pass. */
  runOnce(): Promise<unknown>

  /** Runs until `signal` aborts, and resolves when the work in progress has ended. */
  run?(signal: AbortSignal): Promise<unknown>
}

export interface MaintenanceOptions {
  /** The engine to maintain. Its store must keep operations: SQLite, PostgreSQL or MySQL. */
  engine: Engine

  /**
   * From `createWorker()`. Runs operations that were accepted, and operations whose process crashed
   * or whose client did not retry. Without one here or in another process, they stay open.
   *
   * @default none
   */
  worker?: MaintenancePart

  /**
   * From `createReconciler()`. Finds out the outcome of `unknown` records. Without one here or in
   * another process, each of them waits for an operator.
   *
   * @default none
   */
  reconciler?: MaintenancePart

  /**
   * From `createRelay()`. Relays the messages of the outbox. Leave it out if another process
   * relays them.
   *
   * @default none
   */
  relay?: MaintenancePart

  /** From `ledgerJob()`, each with another name: comparisons with a provider. @default none */
  ledgers?: readonly LedgerJob[]

  /**
   * How often each task runs. Shorter intervals find work sooner and cost more queries.
   *
   * @default see each field
   */
  every?: MaintenanceIntervals

  /**
   * The reply for accepted work that no worker has started before it expires. `false` keeps such
   * work open. The reply is the same for all records and is not encrypted, so a route with
   * `requireEncryption` replays the default, but answers 409 in place of a reply of yours.
   *
   * @default a reply with status 408 and a problem document as its body
   */
  abandonedReply?: AbandonedReplyInput | false

  /**
   * How long messages are kept after they were relayed or dropped, so that an operator
   * can look them up. Longer costs space in the table. From 0 to ten years.
   *
   * @default 604_800_000 (seven days)
   */
  keepMessagesMs?: number

  /**
   * How long one pass of a task may take before `maintenance_failed` is emitted for it. The pass is
   * not aborted, and no second pass of the task starts while it runs. From 1_000 to a week.
   *
   * @default 3_600_000 (one hour)
   */
  passTimeoutMs?: number

  /**
   * How long `run` waits for running tasks after its signal has aborted. Longer lets more work end
   * before a shutdown; the deadline of the platform must be longer still. From 0 to 3_600_000 (one
   * hour).
   *
   * @default 30_000
   */
  graceMs?: number
}

/**
 * Each interval is from 10 ms to a week, and varies by up to a tenth, so that nodes do not run
 * their passes at the same time.
 */
export interface MaintenanceIntervals {
  /** Finds holders whose lease has lapsed. @default 60_000 */
  sweepMs?: number
  /** Removes expired records. @default 3_600_000 (one hour) */
  reapMs?: number
  /** Removes old messages. @default 3_600_000 (one hour) */
  pruneMs?: number
  /** Finds due messages whose topic no relay of this process handles. @default 60_000 */
  unrelayedMs?: number
  /** Passes of a worker without `run`. @default 1_000 */
  completeMs?: number
  /** Passes of a reconciler without `run`. @default 5_000 */
  reconcileMs?: number
  /** Passes of a relay without `run`. @default 1_000 */
  relayMs?: number
  /** Finds ledger periods to compare. @default 300_000 (five minutes) */
  ledgerMs?: number
}

export interface ResolvedMaintenanceOptions {
  readonly engine: Engine
  readonly durable: DurableStore
  readonly worker: MaintenancePart | undefined
  readonly reconciler: MaintenancePart | undefined
  readonly relay: MaintenancePart | undefined
  readonly ledgers: readonly LedgerJob[]
  readonly every: Readonly<Required<MaintenanceIntervals>>
  readonly abandonedReply: Uint8Array | false | undefined
  readonly keepMessagesMs: number
  readonly passTimeoutMs: number
  readonly graceMs: number
}

const KNOWN = [
  'engine',
  'worker',
  'reconciler',
  'relay',
  'ledgers',
  'every',
  'abandonedReply',
  'keepMessagesMs',
  'passTimeoutMs',
  'graceMs',
] as const satisfies readonly (keyof MaintenanceOptions)[]

const EVERY: Readonly<Required<MaintenanceIntervals>> = {
  sweepMs: MINUTE_MS,
  reapMs: HOUR_MS,
  pruneMs: HOUR_MS,
  unrelayedMs: MINUTE_MS,
  completeMs: 1_000,
  reconcileMs: 5_000,
  relayMs: 1_000,
  ledgerMs: 5 * MINUTE_MS,
}

export function resolveMaintenanceOptions(options: MaintenanceOptions): ResolvedMaintenanceOptions {
  const where = 'createMaintenance'
  rejectUnknownOptions(where, options, KNOWN)
  const { engine, worker, reconciler, relay, ledgers = [], abandonedReply } = options
  const durable = durableOf(where, engine)
  for (const [name, part] of Object.entries({ worker, reconciler, relay })) {
    checkPart(`${where}.${name}`, part)
  }
  return Object.freeze({
    engine,
    durable,
    worker,
    reconciler,
    relay,
    ledgers: checkLedgers(where, ledgers),
    every: resolveEvery(`${where}.every`, options.every ?? {}),
    abandonedReply: encodeReplyOption(where, abandonedReply),
    keepMessagesMs: wholeNumber(`${where}.keepMessagesMs`, options.keepMessagesMs, {
      fallback: 7 * DAY_MS,
      min: 0,
      max: 3650 * DAY_MS,
    }),
    passTimeoutMs: wholeNumber(`${where}.passTimeoutMs`, options.passTimeoutMs, {
      fallback: HOUR_MS,
      min: 1_000,
      max: 7 * DAY_MS,
    }),
    graceMs: wholeNumber(`${where}.graceMs`, options.graceMs, {
      fallback: 30_000,
      min: 0,
      max: HOUR_MS,
    }),
  })
}

function resolveEvery(
  where: string,
  intervals: MaintenanceIntervals,
): Readonly<Required<MaintenanceIntervals>> {
  const names = Object.keys(EVERY) as (keyof MaintenanceIntervals)[]
  rejectUnknownOptions(where, intervals, names)
  const entries = names.map((name) => {
    const bounds = { fallback: EVERY[name], min: 10, max: 7 * DAY_MS }
    return [name, wholeNumber(`${where}.${name}`, intervals[name], bounds)] as const
  })
  return Object.fromEntries(entries) as unknown as Required<MaintenanceIntervals>
}

function checkPart(where: string, part: MaintenancePart | undefined): void {
  if (part === undefined) return
  const { runOnce, run } = Object(part) as { runOnce?: unknown; run?: unknown }
  const isPart = typeof runOnce === 'function' && (run === undefined || typeof run === 'function')
  if (isPart) return
  throw new InvalidOptionsError(
    `${where} must have runOnce(), and run() only as a function, got ${describe(part)}`,
  )
}

function checkLedgers(where: string, ledgers: readonly LedgerJob[]): readonly LedgerJob[] {
  const isList: boolean = Array.isArray(ledgers)
  if (!isList) {
    throw new InvalidOptionsError(`${where}.ledgers must be an array, got ${describe(ledgers)}`)
  }
  const names = new Set<string>()
  for (const ledger of ledgers) {
    checkPart(`${where}.ledgers: each`, ledger)
    if (names.has(ledger.name)) {
      throw new InvalidOptionsError(
        `${where}.ledgers has the name ${describe(ledger.name)} twice; each needs its own name`,
      )
    }
    names.add(ledger.name)
  }
  return ledgers
}

function encodeReplyOption(where: string, reply: unknown): Uint8Array | false | undefined {
  if (reply === undefined || reply === false) return reply
  if (typeof reply === 'object' && reply !== null && !ArrayBuffer.isView(reply)) {
    return encodeUnbound(`${where}.abandonedReply`, reply as AbandonedReplyInput)
  }
  throw new InvalidOptionsError(
    `${where}.abandonedReply must be false, or a reply as { status, headers, body }, got ` +
      describe(reply),
  )
}
