import { sleep } from '../../core/time/clock.ts'
import type { ActOutcome, DueUnknown } from '../../core/store/operator-store.ts'
import type { ResolveVerdict } from '../../core/engine/engine-contract.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { rejectUnknownOptions } from '../../core/options.ts'
import { markReconciled } from '../../core/engine/engine-registry.ts'
import type { RecordView } from '../../core/store/store.ts'
import {
  checkActor,
  checkEffectTarget,
  checkEffectVerdict,
  checkRecordTarget,
  checkRecordVerdict,
  isRecordVerdict,
} from '../operator/act-checks.ts'
import {
  OperatorActs,
  subjectOf,
  type EffectTarget,
  type EffectVerdict,
} from '../operator/operator-acts.ts'
import { askStore, STORE_TIMEOUT_MS } from '../durable-engine.ts'
import type { PlacesStats } from '../places/places.ts'
import { Inquiry, PROVIDER_ASKED, type InquiryAnswer } from './inquiry.ts'
import { ReconcilePlaces, type RecordQuery } from './reconcile-places.ts'
import { nextTryInMs } from './reconcile-schedule.ts'
import {
  resolveReconcilerOptions,
  type ReconcilerOptions,
  type ResolvedReconcilerOptions,
} from './reconciler-options.ts'

export interface Reconciler {
  /**
   * Runs one bounded pass: asks the provider of each record that is due. Any number of nodes may
   * run it at once; the store gives a record to one of them.
   */
  runOnce(): Promise<ReconcileReport>

  /** Runs passes until `signal` aborts, and resolves when the records in progress have ended. */
  run(signal: AbortSignal): Promise<void>

  /** Records in progress, provider calls past their time limit, and paused operations. */
  stats(): PlacesStats

  /**
   * Records the outcome of an outside effect. For webhooks and your own code. The call may come
   * twice, early or late. While a process holds the record, the result is stored and that process
   * continues with it; otherwise the operation is resumed with it.
   */
  resolve(target: EffectTarget, verdict: EffectVerdict, by?: Attribution): Promise<ActOutcome>

  /** Records a verdict on a whole `unknown` record. */
  resolve(
    target: { readonly recordId: string; readonly attempt?: number },
    verdict: ResolveVerdict,
    by?: Attribution,
  ): Promise<ActOutcome>
}

/** The author and the reason of a verdict, for the audit. */
export interface Attribution {
  /** @default 'webhook' */
  readonly who?: string
  /** @default 'said by the provider' */
  readonly why?: string
}

export interface ReconcileReport {
  /** Records whose provider or handler was to be asked. Each is counted below, once. */
  readonly looked: number
  /** The outcome was found out and recorded. */
  readonly resolved: number
  /** The outcome is not known yet; the record is due again later. */
  readonly postponed: number
  /** The last try found out nothing; the record waits for an operator. */
  readonly givenUp: number
  /** Another process changed the record during the try. */
  readonly moved: number
  /** The store failed; the record is due again later. */
  readonly failed: number
}

/**
 * Finds out the outcome of `unknown` records by asking providers, with pauses that grow. Any number
 * of reconcilers may run against one store.
 */
export function createReconciler(options: ReconcilerOptions): Reconciler {
  const resolved = resolveReconcilerOptions(options)
  markReconciled(resolved.engine)
  return new PollingReconciler(resolved)
}

const BY = { who: 'reconciler' } as const
/** While all ordinary places are taken: how often to query records that may use the reserve. */
const RESERVE_EVERY_MS = 250

type Tally = { -readonly [Name in keyof ReconcileReport]: number }

interface Batch {
  readonly started: readonly Promise<void>[]
  readonly isMore: boolean
}

class PollingReconciler implements Reconciler {
  readonly #options: ResolvedReconcilerOptions
  readonly #acts: OperatorActs
  /** Records that are being reconciled here. */
  readonly #running = new Set<Promise<void>>()
  readonly #places: ReconcilePlaces

  constructor(options: ResolvedReconcilerOptions) {
    this.#options = options
    const { operations, handlers } = options
    const known = [
      ...operations.map(({ name, version }) => ({ name, version })),
      ...[...handlers.keys()].map((name) => ({ name, version: undefined })),
    ]
    this.#places = new ReconcilePlaces({ ...options, known })
    this.#acts = new OperatorActs(options.engine, options.durable, options.operations)
  }

  async runOnce(): Promise<ReconcileReport> {
    const tally = emptyTally()
    const own = new Set<Promise<void>>()
    const endUse = this.#places.use()
    let left = this.#options.recordsMax
    try {
      while (left > 0) {
        const { started, isMore } = await this.#startDue(left, tally)
        for (const one of started) own.add(one)
        left -= started.length
        if (!isMore) break
        await this.#untilRoom()
      }
    } finally {
      await Promise.all(own)
      endUse()
    }
    return tally
  }

  async run(signal: AbortSignal): Promise<void> {
    const { engine, pollMs } = this.#options
    const tally = emptyTally()
    const endUse = this.#places.use()
    while (!signal.aborted && !engine.isClosed) {
      await engine.untilStoreAnswers(signal)
      if (signal.aborted) break
      let isMore = false
      try {
        isMore = (await this.#startDue(Number.POSITIVE_INFINITY, tally)).isMore
      } catch {
        // `askStore` has emitted `store_error`; the next poll tries again.
      }
      if (isMore) await this.#untilRoom(signal)
      else await sleep(engine.clock, pollMs, signal)
    }
    await Promise.all(this.#running)
    endUse()
  }

  stats(): PlacesStats {
    return this.#places.stats()
  }

  async resolve(
    target: EffectTarget,
    verdict: EffectVerdict | ResolveVerdict,
    attribution: Attribution = {},
  ): Promise<ActOutcome> {
    const where = 'reconciler.resolve'
    rejectUnknownOptions(`${where}: by`, attribution, ['who', 'why'])
    const { who = 'webhook', why = 'said by the provider' } = attribution
    const by = checkActor(where, { who, why })
    if (isRecordVerdict(verdict)) {
      if (!('recordId' in target)) {
        throw new InvalidOptionsError(
          `${where}: the verdict '${verdict.kind}' is for a whole record and needs { recordId }; ` +
            "for an effect, use 'done' or 'not_executed'",
        )
      }
      const record = checkRecordTarget(where, target)
      return this.#acts.resolveRecord(record, checkRecordVerdict(where, verdict), by)
    }
    const effect = checkEffectTarget(where, target)
    return this.#acts.resolveEffect(effect, checkEffectVerdict(where, verdict), by)
  }

  /** Waits until a record has ended, or for a moment, because the reserve may have room. */
  async #untilRoom(signal?: AbortSignal): Promise<void> {
    if (this.#places.free > 0) return
    const { clock } = this.#options.engine
    const waiting = new AbortController()
    const end = () => waiting.abort()
    signal?.addEventListener('abort', end)
    await Promise.race([...this.#running, sleep(clock, RESERVE_EVERY_MS, waiting.signal)])
    signal?.removeEventListener('abort', end)
    end()
  }

  /** Starts due records. `isMore`: more may be due, and can start when there is room. */
  async #startDue(limit: number, tally: Tally): Promise<Batch> {
    const started: Promise<void>[] = []
    const takeEach = async (queries: readonly RecordQuery[]) => {
      for (const query of queries.slice(0, limit)) started.push(...(await this.#take(query, tally)))
    }
    await takeEach(this.#places.trialQueries())
    const query = this.#places.query(Math.max(0, limit - started.length))
    if (query === undefined) {
      await takeEach(this.#places.reserveQueries())
      return { started, isMore: true }
    }
    const taken = await this.#take(query, tally)
    started.push(...taken)
    return { started, isMore: taken.length === query.limit }
  }

  async #take(query: RecordQuery, tally: Tally): Promise<Promise<void>[]> {
    if (query.limit === 0) return []
    const { engine, durable, timeoutMs } = this.#options
    // Longer than one try with its store calls can take: no other node takes the record during it.
    // If this process crashes, the record is due again after this time.
    const againMs = timeoutMs + 3 * STORE_TIMEOUT_MS
    const due = await askStore(engine, 'takeUnknown', (signal) =>
      durable.operator.takeUnknown({ ...query, againMs }, signal),
    )
    return due.map((one) => {
      const running = this.#reconcile(one, tally).finally(() => this.#running.delete(running))
      this.#running.add(running)
      return running
    })
  }

  /** Never rejects: a failure with one record does not stop the others. */
  async #reconcile(due: DueUnknown, tally: Tally): Promise<void> {
    const place = this.#places.begin(due)
    const inquiry = new Inquiry(this.#options, this.#acts, place)
    tally.looked++
    try {
      tally[await this.#tryOnce(due, inquiry)]++
    } catch {
      // The store failed, and `store_error` was emitted. The record is due again after `againMs`.
      tally.failed++
    } finally {
      place.end(inquiry.outcome)
    }
  }

  async #tryOnce(due: DueUnknown, inquiry: Inquiry): Promise<keyof Tally> {
    const { record } = due
    // The try was counted when the record was taken. More tries than allowed means that earlier
    // ones never ended: this record may crash the process that reconciles it.
    if (record.tries > this.#options.schedule.maxAttempts) return this.#giveUp(record)
    const answer = await inquiry.ask(due)
    switch (answer.kind) {
      case 'effect':
        return this.#recordEffect(due, answer)
      case 'record': {
        const { recordId, attempt } = record
        const by = { ...BY, why: answer.why }
        return resultOf(await this.#acts.resolveRecord({ recordId, attempt }, answer.verdict, by))
      }
      case 'open':
        return this.#postpone(record, answer.provenInMs)
      case 'operator':
        return this.#giveUp(record)
    }
  }

  async #recordEffect(
    { record, operation }: DueUnknown,
    { phase, found }: Extract<InquiryAnswer, { kind: 'effect' }>,
  ): Promise<keyof Tally> {
    const { recordId } = record
    const by = { ...BY, why: `${PROVIDER_ASKED} about "${phase.name}"` }
    let finding: typeof found
    try {
      finding = await this.#acts.sealFinding({ record, operation: operation!, phase }, found)
    } catch (error) {
      // The result cannot be encrypted now. The provider is asked again later.
      this.#options.engine.emit({ kind: 'maintenance_failed', task: 'reconcile', error })
      return this.#postpone(record, undefined)
    }
    return resultOf(await this.#acts.recordFinding({ recordId, phase }, finding, by))
  }

  async #postpone(record: RecordView, provenInMs: number | undefined): Promise<keyof Tally> {
    const { schedule } = this.#options
    const random = Math.random()
    const inMs = nextTryInMs(schedule, { tries: record.tries, provenInMs, random })
    if (inMs === undefined) return this.#giveUp(record)
    return (await this.#scheduleNext(record, inMs)) ? 'postponed' : 'moved'
  }

  async #giveUp(record: RecordView): Promise<keyof Tally> {
    if (!(await this.#scheduleNext(record, undefined))) return 'moved'
    const { engine } = this.#options
    const { tries } = record
    engine.emit({ kind: 'reconcile_given_up', ...subjectOf(record), tries })
    return 'givenUp'
  }

  /** `false`: the record has changed, or an operator has made it due again since it was taken. */
  #scheduleNext(
    { recordId, attempt, tries }: RecordView,
    inMs: number | undefined,
  ): Promise<boolean> {
    const { engine, durable } = this.#options
    const target = { recordId, attempt, tries, inMs }
    return askStore(engine, 'postpone', (signal) => durable.operator.postpone(target, signal))
  }
}

function resultOf(outcome: ActOutcome): keyof Tally {
  return outcome.kind === 'done' ? 'resolved' : 'moved'
}

function emptyTally(): Tally {
  return { looked: 0, resolved: 0, postponed: 0, givenUp: 0, moved: 0, failed: 0 }
}
