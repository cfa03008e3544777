import type { DurableStore } from '../core/durable-store.ts'
import type { Engine } from '../core/engine-contract.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import { describe, rejectUnknownOptions, wholeNumber } from '../core/options.ts'
import { encodeUnbound, type AbandonedReplyInput } from '../http/http-reply.ts'
import { durableOf } from './durable-engine.ts'
import type { LedgerJob } from './ledger-job.ts'

/** What has a life of its own beside the requests: a worker, a relay, a reconciler. */
export interface MaintenancePart {
  /** One bounded pass. */
  runOnce(): Promise<unknown>

  /** Until `signal` aborts; then it ends what it has begun. */
  run?(signal: AbortSignal): Promise<unknown>
}

export interface MaintenanceOptions {
  engine: Engine

  /** Runs operations that were accepted, or that their clients left behind. */
  worker?: MaintenancePart

  /** From `createReconciler()`. */
  reconciler?: MaintenancePart

  /** Hands on the messages of the outbox, where no process of its own does it. */
  relay?: MaintenancePart

  /** From `ledgerJob()`. @default none */
  ledgers?: readonly LedgerJob[]

  /** How often each task is due. */
  every?: MaintenanceIntervals

  /**
   * The reply for accepted work that no worker has taken by its expiry. `false` leaves such work
   * alone. One reply serves all records, so it is never encrypted: a route with
   * `requireEncryption` knows the default, and refuses another reply with 409.
   *
   * @default a reply of status 408 with a problem as its body
   */
  abandonedReply?: AbandonedReplyInput | false

  /**
   * How long messages are kept after they were relayed or dropped.
   *
   * @default 604_800_000 (seven days)
   */
  keepMessagesMs?: number

  /**
   * How long one pass of a task may take before it is reported. It is not begun a second time
   * while the first still runs.
   *
   * @default 3_600_000 (one hour)
   */
  passMs?: number

  /**
   * How long `run` waits, once its signal has aborted, for what still runs.
   *
   * @default 30_000
   */
  graceMs?: number
}

/** Each is up to a tenth shorter or longer, so that nodes do not stay in step. */
export interface MaintenanceIntervals {
  /** Looks for silent holders. @default 60_000 */
  sweepMs?: number
  /** Removes expired records. @default 3_600_000 (one hour) */
  reapMs?: number
  /** Removes old messages. @default 3_600_000 (one hour) */
  pruneMs?: number
  /** Looks for messages that no relay of this process takes. @default 60_000 */
  unrelayedMs?: number
  /** Passes of a worker that has no `run`. @default 1_000 */
  completeMs?: number
  /** Passes of a reconciler that has no `run`. @default 5_000 */
  reconcileMs?: number
  /** Passes of a relay that has no `run`. @default 1_000 */
  relayMs?: number
  /** Looks whether a period is to be compared. @default 300_000 (five minutes) */
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
  readonly passMs: number
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
  'passMs',
  'graceMs',
] as const satisfies readonly (keyof MaintenanceOptions)[]

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS

const EVERY: Readonly<Required<MaintenanceIntervals>> = {
  sweepMs: 60_000,
  reapMs: HOUR_MS,
  pruneMs: HOUR_MS,
  unrelayedMs: 60_000,
  completeMs: 1_000,
  reconcileMs: 5_000,
  relayMs: 1_000,
  ledgerMs: 300_000,
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
    passMs: wholeNumber(`${where}.passMs`, options.passMs, {
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
  given: MaintenanceIntervals,
): Readonly<Required<MaintenanceIntervals>> {
  const names = Object.keys(EVERY) as (keyof MaintenanceIntervals)[]
  rejectUnknownOptions(where, given, names)
  const entries = names.map((name) => {
    const bounds = { fallback: EVERY[name], min: 10, max: 7 * DAY_MS }
    return [name, wholeNumber(`${where}.${name}`, given[name], bounds)] as const
  })
  return Object.fromEntries(entries) as unknown as Required<MaintenanceIntervals>
}

function checkPart(where: string, part: MaintenancePart | undefined): void {
  if (part === undefined) return
  const { runOnce, run } = Object(part) as { runOnce?: unknown; run?: unknown }
  const isPart = typeof runOnce === 'function' && (run === undefined || typeof run === 'function')
  if (isPart) return
  throw new InvalidOptionsError(`${where} must have runOnce(), got ${describe(part)}`)
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
        `${where}.ledgers has the name ${describe(ledger.name)} twice: one of them would never run`,
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
