import type { Engine } from '../../core/engine/engine-contract.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import type { RunOutcome } from '../../core/attempt/run-outcome.ts'
import {
  describe,
  optionalFunction,
  rejectUnknownOptions,
  wholeNumber,
} from '../../core/options.ts'
import { DAY_MS, HOUR_MS, MINUTE_MS } from '../../core/time/durations.ts'
import { RETENTION_MS_MAX, type Policy } from '../../core/engine/policy.ts'
import { storeTimeMs } from '../durable-engine.ts'
import {
  checkSamplesMax,
  compareLedgers,
  differencesOf,
  type Ledger,
  type LedgerEntry,
  type LedgerReport,
} from './ledger.ts'
import { faultOf } from '../outbox/message-checks.ts'

export interface LedgerJobOptions<Ours extends LedgerEntry, Theirs extends LedgerEntry> {
  /** The engine whose store records which periods were compared. */
  engine: Engine

  /**
   * The name under which compared periods are recorded, 1 to 255 characters. A new name compares
   * all periods again.
   */
  name: string

  /** Returns our entries of a period, sorted by id. */
  ours: (period: LedgerPeriod) => Ledger<Ours>

  /** Returns the provider's entries of the period, sorted by id. */
  theirs: (period: LedgerPeriod) => Ledger<Theirs>

  /** Whether two entries with the same id agree. @default as in `compareLedgers` */
  compare?: (ours: Ours, theirs: Theirs) => boolean

  /** How many entries of each kind of difference a report contains, 0 to 10_000. @default 100 */
  samplesMax?: number

  /**
   * Called with every report. If it throws, or if the process crashes after the call, the period is
   * compared again, so it may get the report of a period twice.
   *
   * @default none: only the event `ledger_compared` is emitted
   */
  onReport?: (report: LedgerReport<Ours, Theirs>, period: LedgerPeriod) => void | Promise<void>

  /**
   * The length of a period, from a minute to 366 days. Periods are counted from 1970 in UTC.
   * Shorter periods find differences sooner and read the ledgers more often.
   *
   * @default 86_400_000 (one day)
   */
  everyMs?: number

  /**
   * The pause between the end of a period and its comparison. It must be long enough for both sides
   * to have all entries; later entries are reported as missing. From 0 to 366 days.
   *
   * @default 3_600_000 (one hour)
   */
  delayMs?: number

  /**
   * How many past periods are checked. Periods that were not compared, because all nodes were down,
   * are compared late, up to this number. From 1 to 366; all together at most about ten years.
   *
   * @default 3
   */
  periodsBack?: number

  /**
   * How long one comparison may take, from a minute to a week. Then its signal aborts, and a later
   * pass starts it again.
   *
   * @default 3_600_000 (one hour)
   */
  runTimeoutMs?: number
}

export interface LedgerPeriod {
  readonly from: Date
  /** Exclusive. */
  readonly to: Date
  /** Aborts after `runTimeoutMs`, and when this node has lost its lease on the comparison. */
  readonly signal: AbortSignal
}

export interface LedgerJob {
  readonly name: string

  /**
   * Compares the past periods that were not compared yet. Any number of nodes may call it. Tries
   * all periods, and then rejects if one of them could not be compared.
   */
  runOnce(): Promise<LedgerRun[]>
}

/** The outcome for one period. Runs are listed oldest period first. */
export interface LedgerRun {
  readonly from: Date
  readonly to: Date
  readonly kind:
    | 'compared'
    /** An earlier run or another node has compared it. */
    | 'already'
    /** Another node compares it now, or the next pass does. */
    | 'elsewhere'
    /** The comparison crashed its process 10 times: the period waits for an operator. */
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
  'runTimeoutMs',
] as const satisfies readonly (keyof LedgerJobOptions<LedgerEntry, LedgerEntry>)[]

/** The tenant of the job's records. No client of a service has this name. */
const TENANT = 'oncekey'
const FINGERPRINT = 'ledger'
/** A comparison after so many crashes of its process would most likely crash the next one, too. */
const LAPSES_MAX = 10
const PERIODS_BACK_MAX = 366

/**
 * Compares two ledgers once for each period, on one of all nodes. Pass it to
 * `createMaintenance({ ledgers })`, or call `runOnce()` from your own scheduler at any interval.
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
    const { engine, name, everyMs, delayMs, periodsBack, runTimeoutMs } = checkOptions(options)
    const number = (what: string, value: unknown, limits: [number, number, number]): number => {
      const [fallback, min, max] = limits
      return wholeNumber(`ledgerJob.${what}`, value, { fallback, min, max })
    }
    this.name = name
    this.#options = options
    this.#everyMs = number('everyMs', everyMs, [DAY_MS, MINUTE_MS, 366 * DAY_MS])
    this.#delayMs = number('delayMs', delayMs, [HOUR_MS, 0, 366 * DAY_MS])
    this.#periodsBack = number('periodsBack', periodsBack, [3, 1, PERIODS_BACK_MAX])
    // A period must stay on record for longer than it is checked, or it would be compared again.
    const retentionMs = (this.#periodsBack + 1) * this.#everyMs + DAY_MS
    if (retentionMs > RETENTION_MS_MAX) {
      throw new InvalidOptionsError(
        `ledgerJob.periodsBack (${this.#periodsBack}) periods of everyMs (${this.#everyMs}) must ` +
          'not exceed the longest retention, which is nearly ten years',
      )
    }
    this.#policy = engine.policy({
      // A comparison has no effects, so one that crashed or failed is run again.
      onLapse: 'rerun',
      onError: 'retry',
      maxLapses: LAPSES_MAX,
      runTimeoutMs: number('runTimeoutMs', runTimeoutMs, [HOUR_MS, MINUTE_MS, 7 * DAY_MS]),
      retentionMs,
      afterExpiry: 'rerun',
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
        // A period that can never be compared must not prevent the comparison of later ones.
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
        // The result has no data of a tenant, and is not encrypted.
        encryption: false,
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
    // The current holder reports the result, or the next pass compares the period.
    case 'in_progress':
    case 'pending':
    case 'released':
    case 'mismatch':
    case 'expired':
    case 'free':
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
      `ledgerJob.${side} must be a function that returns the entries of a period, got ` +
        describe(read),
    )
  }
  optionalFunction('ledgerJob.onReport', options.onReport)
  optionalFunction('ledgerJob.compare', options.compare)
  checkSamplesMax('ledgerJob', options.samplesMax)
  return options
}
