import { sleep } from '../core/clock.ts'
import type { ActOutcome, DueUnknown, StoredOperation, StoredPhase } from '../core/durable-store.ts'
import type { ResolveVerdict } from '../core/engine-contract.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import { describe, rejectUnknownOptions } from '../core/options.ts'
import { markReconciled } from '../core/reconciled.ts'
import type { RecordView } from '../core/store.ts'
import { checkActedBy } from './acted-by.ts'
import { askWithin } from './ask-within.ts'
import {
  checkEffectTarget,
  checkEffectVerdict,
  checkRecordTarget,
  checkRecordVerdict,
} from './desk-checks.ts'
import { Desk, subjectOf, type EffectTarget, type EffectVerdict } from './desk.ts'
import { askStore, STORE_TIMEOUT_MS, storeTimeMs } from './durable-engine.ts'
import { ATTEMPTS_EXHAUSTED, EFFECT_UNKNOWN, RESULT_NOT_RECORDED } from './doubts.ts'
import { findOut, type FoundOut } from './find-out.ts'
import type { Effect } from './operation-contract.ts'
import { LookPlaces, type Look, type LookAsk, type LookOutcome } from './look-places.ts'
import type { PlacesStats } from './places.ts'
import { nextLookInMs } from './reconcile-schedule.ts'
import {
  resolveReconcilerOptions,
  type ReconcileHandler,
  type ReconcilerOptions,
  type ResolvedReconcilerOptions,
} from './reconciler-options.ts'

export interface Reconciler {
  /**
   * One bounded pass: looks into the records that are due, each by asking its provider. Safe on
   * every node at once: a record that is looked into here is not due elsewhere.
   */
  runOnce(): Promise<ReconcileReport>

  /** Passes on, until `signal` aborts; then ends what it has begun, and no more. */
  run(signal: AbortSignal): Promise<void>

  /** Looks under way, calls of providers past their time limit, and operations that are paused. */
  stats(): PlacesStats

  /**
   * For webhooks and your own code: what is known of an outside effect. May come twice, early or
   * late. While somebody still holds the record, a result is kept for them; otherwise the
   * operation goes on with it.
   */
  resolve(target: EffectTarget, verdict: EffectVerdict, by?: Said): Promise<ActOutcome>

  /** A verdict on a whole `unknown` record. */
  resolve(
    target: { readonly recordId: string; readonly attempt?: number },
    verdict: ResolveVerdict,
    by?: Said,
  ): Promise<ActOutcome>
}

/** For the audit. */
export interface Said {
  /** @default 'webhook' */
  readonly who?: string
  /** @default 'said by the provider' */
  readonly why?: string
}

export interface ReconcileReport {
  /** Records that were looked into. */
  readonly looked: number
  /** Of these: it is known now what became of them. */
  readonly resolved: number
  /** Nothing was found out yet; they are looked into again. */
  readonly postponed: number
  /** They are for an operator now. */
  readonly givenUp: number
  /** They had moved on meanwhile. */
  readonly moved: number
  /** The store failed; they are looked into again. */
  readonly failed: number
}

export function createReconciler(options: ReconcilerOptions): Reconciler {
  const resolved = resolveReconcilerOptions(options)
  markReconciled(resolved.engine)
  return new PollingReconciler(resolved)
}

const BY = { who: 'reconciler' } as const
const ASKED = 'the provider was asked'
const ON_RECORD = 'what became of its effect is on record by now'
/** While all ordinary places are taken: how often it looks for records that may use the reserve. */
const RESERVE_EVERY_MS = 250

type Tally = { -readonly [Name in keyof ReconcileReport]: number }

/** What one look has brought. */
type Answer =
  | { readonly kind: 'effect'; readonly phase: StoredPhase; readonly found: Found }
  | { readonly kind: 'record'; readonly verdict: ResolveVerdict; readonly why: string }
  | { readonly kind: 'open'; readonly provenInMs: number | undefined }
  /** There is no way to ask, here or anywhere, or nothing more to do about the answer. */
  | { readonly kind: 'nobody' }

type Found = Exclude<FoundOut, { kind: 'open' }>

interface Begun {
  readonly begun: readonly Promise<void>[]
  readonly isMore: boolean
}

/** What one look says of the provider. */
interface Asking {
  outcome: LookOutcome
  readonly look: Look
}

const OPEN: Answer = { kind: 'open', provenInMs: undefined }
const GOES_ON: Answer = {
  kind: 'record',
  verdict: { kind: 'failed_retryable' },
  why: ON_RECORD,
}

class PollingReconciler implements Reconciler {
  readonly #options: ResolvedReconcilerOptions
  readonly #desk: Desk
  readonly #looks = new Set<Promise<void>>()
  readonly #places: LookPlaces

  constructor(options: ResolvedReconcilerOptions) {
    this.#options = options
    const { operations, handlers } = options
    const known = [
      ...operations.map(({ name, version }) => ({ name, version })),
      ...[...handlers.keys()].map((name) => ({ name, version: undefined })),
    ]
    this.#places = new LookPlaces({ ...options, known })
    this.#desk = new Desk(options.engine, options.durable, options.operations)
  }

  async runOnce(): Promise<ReconcileReport> {
    const tally = emptyTally()
    const own = new Set<Promise<void>>()
    const endUse = this.#places.use()
    let left = this.#options.recordsMax
    try {
      while (left > 0) {
        const { begun, isMore } = await this.#begin(left, tally)
        for (const look of begun) own.add(look)
        left -= begun.length
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
        isMore = (await this.#begin(Number.POSITIVE_INFINITY, tally)).isMore
      } catch {
        // Reported as a failure of the store; the next poll tries again.
      }
      if (isMore) await this.#untilRoom(signal)
      else await sleep(engine.clock, pollMs, signal)
    }
    await Promise.all(this.#looks)
    endUse()
  }

  stats(): PlacesStats {
    return this.#places.stats()
  }

  async resolve(
    target: EffectTarget,
    verdict: EffectVerdict | ResolveVerdict,
    said: Said = {},
  ): Promise<ActOutcome> {
    const where = 'reconciler.resolve'
    rejectUnknownOptions(`${where}: by`, said, ['who', 'why'])
    const { who = 'webhook', why = 'said by the provider' } = said
    const by = checkActedBy(where, { who, why })
    if (verdict?.kind === 'completed' || verdict?.kind === 'failed_retryable') {
      if (!('recordId' in target)) {
        throw new InvalidOptionsError(
          `${where}: a verdict on a whole record ('${verdict.kind}') takes { recordId }; of an ` +
            "effect, say 'done' or 'not_executed'",
        )
      }
      const record = checkRecordTarget(where, target)
      return this.#desk.resolve(record, checkRecordVerdict(where, verdict), by)
    }
    const effect = checkEffectTarget(where, target)
    return this.#desk.conclude(effect, checkEffectVerdict(where, verdict), by)
  }

  /** Waits for the end of a look; or, since the reserve may have room, not for long. */
  async #untilRoom(signal?: AbortSignal): Promise<void> {
    if (this.#places.free > 0) return
    const { clock } = this.#options.engine
    const waiting = new AbortController()
    const end = () => waiting.abort()
    signal?.addEventListener('abort', end)
    await Promise.race([...this.#looks, sleep(clock, RESERVE_EVERY_MS, waiting.signal)])
    signal?.removeEventListener('abort', end)
    end()
  }

  /** `isMore`: there may be more to look into, once there is room. */
  async #begin(limit: number, tally: Tally): Promise<Begun> {
    const begun: Promise<void>[] = []
    const takeEach = async (asks: readonly LookAsk[]) => {
      for (const ask of asks.slice(0, limit)) begun.push(...(await this.#take(ask, tally)))
    }
    await takeEach(this.#places.askTries())
    const ask = this.#places.ask(Math.max(0, limit - begun.length))
    if (ask === undefined) {
      await takeEach(this.#places.askReserve())
      return { begun, isMore: true }
    }
    const looks = await this.#take(ask, tally)
    begun.push(...looks)
    return { begun, isMore: looks.length === ask.limit }
  }

  async #take(ask: LookAsk, tally: Tally): Promise<Promise<void>[]> {
    if (ask.limit === 0) return []
    const { engine, durable, timeoutMs } = this.#options
    // Longer than a look can take, with its calls of the store: no other node looks a second time
    // meanwhile, and what dies with this process is looked into again.
    const againMs = timeoutMs + 3 * STORE_TIMEOUT_MS
    const due = await askStore(engine, 'takeUnknown', (signal) =>
      durable.desk.takeUnknown({ ...ask, againMs }, signal),
    )
    return due.map((one) => {
      const look = this.#look(one, tally).finally(() => this.#looks.delete(look))
      this.#looks.add(look)
      return look
    })
  }

  /** Never rejects: one bad record does not stop the others. */
  async #look(due: DueUnknown, tally: Tally): Promise<void> {
    const look = this.#places.begin(due)
    const asking: Asking = { outcome: 'not_asked', look }
    tally.looked++
    try {
      tally[await this.#lookInto(due, asking)]++
    } catch {
      // The store has failed, and that was reported. The record is due again by itself.
      tally.failed++
    } finally {
      look.end(asking.outcome)
    }
  }

  async #lookInto({ record, operation }: DueUnknown, asking: Asking): Promise<keyof Tally> {
    // Earlier looks have not even come to their end: this record may be what ends them.
    if (record.tries > this.#options.schedule.tries) return this.#giveUp(record)
    const answer = await this.#ask(record, operation, asking)
    switch (answer.kind) {
      case 'effect': {
        const { recordId } = record
        const { phase, found } = answer
        const by = { ...BY, why: `${ASKED} about "${phase.name}"` }
        return endOf(await this.#desk.concludeFound({ recordId, phase }, found, by))
      }
      case 'record': {
        const { recordId, attempt } = record
        const by = { ...BY, why: answer.why }
        return endOf(await this.#desk.resolve({ recordId, attempt }, answer.verdict, by))
      }
      case 'open':
        return this.#postpone(record, answer.provenInMs)
      case 'nobody':
        return this.#giveUp(record)
    }
  }

  async #ask(
    record: RecordView,
    operation: StoredOperation | undefined,
    asking: Asking,
  ): Promise<Answer> {
    if (operation === undefined) {
      const handler = this.#options.handlers.get(record.operation)
      // Another node may have it.
      return handler === undefined ? OPEN : this.#askHandler(handler, record, asking)
    }
    const known = this.#desk.known(operation)
    if (known === undefined) {
      const { name, version } = operation
      const { recordId } = record
      this.#options.engine.emit({ kind: 'operation_orphaned', name, version, recordId })
      return OPEN
    }
    const phase = operation.phases.find(({ state }) => state === 'intended')
    if (phase === undefined) return isConcluded(record) ? GOES_ON : { kind: 'nobody' }
    const effect = Object.hasOwn(known.effects, phase.name) ? known.effects[phase.name] : undefined
    if (effect?.reconcile === undefined) return { kind: 'nobody' }
    return this.#askProvider(effect, { record, phase }, asking)
  }

  async #askProvider(
    effect: Effect,
    { record, phase }: { readonly record: RecordView; readonly phase: StoredPhase },
    asking: Asking,
  ): Promise<Answer> {
    const { engine } = this.#options
    const { recordId, errorCode } = record
    // Before the provider is asked: what it does not know yet may be under way for so much longer.
    const nowMs = await storeTimeMs(engine)
    const who = `reconcile of effect "${phase.name}"`
    try {
      const found = await this.#askWithin(who, asking, (signal) =>
        findOut(effect, { recordId, phase, nowMs, signal }),
      )
      // It would be sent again, and has been as often as it may.
      const isOver = found.kind === 'not_executed' && errorCode === ATTEMPTS_EXHAUSTED
      if (isOver) return { kind: 'nobody' }
      if (found.kind !== 'open') return { kind: 'effect', phase, found }
      if (found.error !== undefined) this.#troubled(found.error)
      return { kind: 'open', provenInMs: found.inMs }
    } catch (error) {
      this.#troubled(error)
      return OPEN
    }
  }

  async #askHandler(
    handler: ReconcileHandler,
    record: RecordView,
    asking: Asking,
  ): Promise<Answer> {
    const where = `the reconcile handler of "${record.operation}"`
    try {
      const verdict = await this.#askWithin(where, asking, (signal) => handler({ record, signal }))
      if (verdict?.kind === 'pending') return OPEN
      if (verdict === undefined || verdict === null) {
        throw new InvalidOptionsError(
          `${where} must return { kind }, one of 'completed', 'failed_retryable' and 'pending', ` +
            `got ${describe(verdict)}`,
        )
      }
      return { kind: 'record', verdict: checkRecordVerdict(where, verdict), why: ASKED }
    } catch (error) {
      this.#troubled(error)
      return OPEN
    }
  }

  #askWithin<Found>(
    who: string,
    asking: Asking,
    ask: (signal: AbortSignal) => Found | Promise<Found>,
  ): Promise<Found> {
    const { engine, timeoutMs } = this.#options
    asking.look.ask()
    asking.outcome = 'answered'
    const onOverdue = (ended: Promise<unknown>) => {
      asking.outcome = 'timeout'
      asking.look.overdue(ended)
    }
    return askWithin({ clock: engine.clock, timeoutMs, who, onOverdue }, ask)
  }

  #troubled(error: unknown): void {
    this.#options.engine.emit({ kind: 'maintenance_failed', task: 'reconcile', error })
  }

  async #postpone(record: RecordView, provenInMs: number | undefined): Promise<keyof Tally> {
    const { schedule } = this.#options
    const random = Math.random()
    const inMs = nextLookInMs(schedule, { tries: record.tries, provenInMs, random })
    if (inMs === undefined) return this.#giveUp(record)
    return (await this.#next(record, inMs)) ? 'postponed' : 'moved'
  }

  async #giveUp(record: RecordView): Promise<keyof Tally> {
    if (!(await this.#next(record, undefined))) return 'moved'
    const { engine } = this.#options
    const { tries } = record
    engine.emit({ kind: 'reconcile_given_up', ...subjectOf(record), tries })
    return 'givenUp'
  }

  /** `false`: it has moved on, or an operator has asked for a look of their own. */
  #next({ recordId, attempt, tries }: RecordView, inMs: number | undefined): Promise<boolean> {
    const { engine, durable } = this.#options
    const target = { recordId, attempt, tries, inMs }
    return askStore(engine, 'postpone', (signal) => durable.desk.postpone(target, signal))
  }
}

/** It was in doubt about an effect, and a webhook had said, or soon said, what became of it. */
function isConcluded({ errorCode }: RecordView): boolean {
  return errorCode === EFFECT_UNKNOWN || errorCode === RESULT_NOT_RECORDED
}

function endOf(outcome: ActOutcome): keyof Tally {
  return outcome.kind === 'done' ? 'resolved' : 'moved'
}

function emptyTally(): Tally {
  return { looked: 0, resolved: 0, postponed: 0, givenUp: 0, moved: 0, failed: 0 }
}
