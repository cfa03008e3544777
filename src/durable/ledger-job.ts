import type { Engine } from '../core/engine-contract.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import type { RunOutcome } from '../core/execution.ts'
import { describe, optionalFunction, rejectUnknownOptions, wholeNumber } from '../core/options.ts'
import { RETENTION_MS_MAX, type Policy } from '../core/policy.ts'
import { storeTimeMs } from './durable-engine.ts'
import {
  checkSamplesMax,
  compareLedgers,
  differencesOf,
  type Ledger,
  type LedgerEntry,
  type LedgerReport,
} from './ledger.ts'
import { faultOf } from './message-checks.ts'

export interface LedgerJobOptions<Ours extends LedgerEntry, Theirs extends LedgerEntry> {
  engine: Engine

  /** Of this comparison: its periods are recorded under it. A new name starts anew. */
  name: string

  /** What we have of a period, sorted by id. */
  ours: (period: LedgerPeriod) => Ledger<Ours>

  /** What the provider has of it, sorted by id. */
  theirs: (period: LedgerPeriod) => Ledger<Theirs>

  /** As in `compareLedgers`. */
  compare?: (ours: Ours, theirs: Theirs) => boolean

  /** As in `compareLedgers`. @default 100 */
  samplesMax?: number

  /**
   * Gets every report. If it throws, the period is compared again; if the process dies after it,
   * too, so it may get a report twice.
   */
  onReport?: (report: LedgerReport<Ours, Theirs>, period: LedgerPeriod) => void | Promise<void>

  /**
   * How long a period is. Periods follow one another from 1970 on, in UTC.
   *
   * @default 86_400_000 (one day)
   */
  everyMs?: number

  /**
   * How long after its end a period is compared: until both sides have all of it.
   *
   * @default 3_600_000 (one hour)
   */
  delayMs?: number

  /**
   * How many of the last periods are looked at: those that nobody has compared, because all nodes
   * were down, are compared late.
   *
   * @default 3
   */
  periodsBack?: number

  /**
   * How long one comparison may take; then it is ended, and begun anew.
   *
   * @default 3_600_000 (one hour)
   */
  maxRunMs?: number
}

export interface LedgerPeriod {
  readonly from: Date
  /** Not part of it any more. */
  readonly to: Date
  /** Aborts when the comparison is no longer this node's. */
  readonly signal: AbortSignal
}

export interface LedgerJob {
  readonly name: string

  /**
   * Compares the periods that are over and that nobody has compared. Safe on every node. Rejects
   * where one of them could not be compared, once it has been through all of them.
   */
  runOnce(): Promise<LedgerRun[]>
}

/** What became of one period, oldest first. */
export interface LedgerRun {
  readonly from: Date
  readonly to: Date
  readonly kind:
    | 'compared'
    /** By an earlier run, or by another node. */
    | 'already'
    /** Another node is at it. */
    | 'elsewhere'
    /** It has ended its process again and again: it is for an operator. */
    | 'unknown'
}

const KNOWN = [
  'engine',
  'name',
  'ours',
  'theirs',
  'compare',
  'samplesMax',
  'onReport',
  'everyMs',
  'delayMs',
  'periodsBack',
  'maxRunMs',
] as const satisfies readonly (keyof LedgerJobOptions<LedgerEntry, LedgerEntry>)[]

/** Whose records these are: no client of a service is called so. */
const TENANT = 'oncekey'
const FINGERPRINT = 'ledger'
const DAY_MS = 24 * 60 * 60 * 1000
const HOUR_MS = 60 * 60 * 1000
const MINUTE_MS = 60_000
/** A comparison that has taken its process down so often does it every time. */
const SILENT_MAX = 10
const PERIODS_BACK_MAX = 366

/**
 * Compares two ledgers once for each period, over all nodes: for `createMaintenance({ ledgers })`,
 * or for a scheduler of your own, which may call `runOnce()` as often as it likes.
 */
export function ledgerJob<Ours extends LedgerEntry, Theirs extends LedgerEntry>(
  options: LedgerJobOptions<Ours, Theirs>,
): LedgerJob {
  return new PeriodicComparison(options)
}

class PeriodicComparison<
  Ours extends LedgerEntry,
  Theirs extends LedgerEntry,
> implements LedgerJob {
  readonly name: string
  readonly #options: LedgerJobOptions<Ours, Theirs>
  readonly #everyMs: number
  readonly #delayMs: number
  readonly #periodsBack: number
  readonly #policy: Policy

  constructor(options: LedgerJobOptions<Ours, Theirs>) {
    const { engine, name, everyMs, delayMs, periodsBack, maxRunMs } = checkOptions(options)
    const number = (what: string, value: unknown, limits: [number, number, number]): number => {
      const [fallback, min, max] = limits
      return wholeNumber(`ledgerJob.${what}`, value, { fallback, min, max })
    }
    this.name = name
    this.#options = options
    this.#everyMs = number('everyMs', everyMs, [DAY_MS, MINUTE_MS, 366 * DAY_MS])
    this.#delayMs = number('delayMs', delayMs, [HOUR_MS, 0, 366 * DAY_MS])
    this.#periodsBack = number('periodsBack', periodsBack, [3, 1, PERIODS_BACK_MAX])
    // Known for longer than it is asked for.
    const retentionMs = (this.#periodsBack + 1) * this.#everyMs + DAY_MS
    if (retentionMs > RETENTION_MS_MAX) {
      throw new InvalidOptionsError(
        `ledgerJob.periodsBack (${this.#periodsBack}) periods of everyMs (${this.#everyMs}) are ` +
          'more than can be kept apart: nearly ten years at the most',
      )
    }
    this.#policy = engine.policy({
      // To compare changes nothing: what was cut short, or has failed, is simply done again.
      onLapse: 'rerun',
      onError: 'retry',
      maxAttempts: SILENT_MAX,
      maxRunMs: number('maxRunMs', maxRunMs, [HOUR_MS, MINUTE_MS, 7 * DAY_MS]),
      retentionMs,
      afterExpiry: 'new',
      whileInProgress: 'conflict',
    })
  }

  async runOnce(): Promise<LedgerRun[]> {
    const nowMs = await storeTimeMs(this.#options.engine)
    const endMs = Math.floor((nowMs - this.#delayMs) / this.#everyMs) * this.#everyMs
    const runs: LedgerRun[] = []
    const errors: unknown[] = []
    for (let back = this.#periodsBack; back > 0; back--) {
      const to = new Date(endMs - (back - 1) * this.#everyMs)
      try {
        runs.push(await this.#compareOnce(new Date(to.getTime() - this.#everyMs), to))
      } catch (error) {
        // A period that cannot be compared, today or ever, must not hide what came after it.
        errors.push(error)
      }
    }
    if (errors.length === 0) return runs
    if (errors.length === 1) throw errors[0]
    const about = `${errors.length} periods of the ledger "${this.name}" could not be compared`
    throw new AggregateError(errors, about)
  }

  async #compareOnce(from: Date, to: Date): Promise<LedgerRun> {
    const outcome = await this.#options.engine.run(
      {
        scope: { tenant: TENANT, operation: `ledger ${this.name}` },
        key: `${from.toISOString()}/${to.toISOString()}`,
        fingerprint: FINGERPRINT,
        policy: this.#policy,
      },
      async ({ signal }) => this.#compare({ from, to, signal }),
    )
    return { from, to, kind: kindOf(outcome) }
  }

  async #compare(period: LedgerPeriod): Promise<Uint8Array> {
    const { engine, name, ours, theirs, compare, samplesMax, onReport } = this.#options
    const report = await compareLedgers({
      ours: ours(period),
      theirs: theirs(period),
      signal: period.signal,
      ...(compare && { compare }),
      ...(samplesMax !== undefined && { samplesMax }),
    })
    await onReport?.(report, period)
    const { matched } = report
    const different = differencesOf(report)
    engine.emit({ kind: 'ledger_compared', ledger: name, matched, different })
    return new TextEncoder().encode(JSON.stringify({ matched, different }))
  }
}

function kindOf(outcome: RunOutcome): LedgerRun['kind'] {
  switch (outcome.kind) {
    case 'ran':
      return 'compared'
    case 'replayed':
      return 'already'
    case 'unknown':
    case 'doubted':
      return 'unknown'
    // Whoever has it now will tell, or the next pass will find it free.
    case 'in_progress':
    case 'pending':
    case 'released':
    case 'mismatch':
    case 'expired':
    case 'lease_lost':
      return 'elsewhere'
  }
}

function checkOptions<Ours extends LedgerEntry, Theirs extends LedgerEntry>(
  options: LedgerJobOptions<Ours, Theirs>,
): LedgerJobOptions<Ours, Theirs> {
  rejectUnknownOptions('ledgerJob', options, KNOWN)
  const { engine, name, ours, theirs } = options
  if (typeof (engine as Engine | undefined)?.run !== 'function') {
    throw new InvalidOptionsError(
      `ledgerJob.engine must be what createEngine() returns, got ${describe(engine)}`,
    )
  }
  const fault = faultOf(name)
  if (fault !== undefined) throw new InvalidOptionsError(`ledgerJob.name ${fault}`)
  for (const [side, read] of Object.entries({ ours, theirs })) {
    if (typeof read === 'function') continue
    throw new InvalidOptionsError(
      `ledgerJob.${side} must be a function that gives the entries of a period, got ` +
        describe(read),
    )
  }
  optionalFunction('ledgerJob.onReport', options.onReport)
  optionalFunction('ledgerJob.compare', options.compare)
  checkSamplesMax('ledgerJob', options.samplesMax)
  return options
}
