/** Asks the provider, or the application's handler, for the outcome of one `unknown` record. */
import type { StoredPhase } from '../../core/store/durable-store.ts'
import type { DueUnknown } from '../../core/store/operator-store.ts'
import type { ResolveVerdict } from '../../core/engine/engine-contract.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe } from '../../core/options.ts'
import type { RecordView } from '../../core/store/store.ts'
import { callWithin } from '../bounded-calls.ts'
import { storeTimeMs } from '../durable-engine.ts'
import {
  ATTEMPTS_EXHAUSTED,
  EFFECT_UNKNOWN,
  RESULT_NOT_RECORDED,
} from '../operations/failed-attempt.ts'
import { findOut, type EffectState } from '../operations/find-out.ts'
import type { Effect } from '../operations/operation-contract.ts'
import { checkRecordVerdict } from '../operator/act-checks.ts'
import type { OperatorActs } from '../operator/operator-acts.ts'
import { requestOf } from '../record-values.ts'
import { UnreadableValueError } from '../sealed-bytes.ts'
import type { ProviderOutcome, RecordPlace } from './reconcile-places.ts'
import type { ReconcileHandler, ResolvedReconcilerOptions } from './reconciler-options.ts'

/** The result of one inquiry. */
export type InquiryAnswer =
  | {
      readonly kind: 'effect'
      readonly phase: StoredPhase
      readonly found: Exclude<EffectState, { kind: 'open' }>
    }
  | { readonly kind: 'record'; readonly verdict: ResolveVerdict; readonly why: string }
  /** The outcome is not known yet. `provenInMs`: the time until "not found" is a proof. */
  | { readonly kind: 'open'; readonly provenInMs: number | undefined }
  /** Only an operator can decide: there is nothing to ask, or no further step for the answer. */
  | { readonly kind: 'operator' }

/** The `why` of audit entries that the reconciler writes. */
export const PROVIDER_ASKED = 'the provider was asked'
const OUTCOME_RECORDED = 'the outcome of its effect is on record'

const OPEN: InquiryAnswer = { kind: 'open', provenInMs: undefined }
const CONTINUES: InquiryAnswer = {
  kind: 'record',
  verdict: { kind: 'failed_retryable' },
  why: OUTCOME_RECORDED,
}

export class Inquiry {
  /** Whether the provider was called, and whether it answered in time. */
  outcome: ProviderOutcome = 'not_asked'
  readonly #options: ResolvedReconcilerOptions
  readonly #acts: OperatorActs
  readonly #place: RecordPlace

  constructor(options: ResolvedReconcilerOptions, acts: OperatorActs, place: RecordPlace) {
    this.#options = options
    this.#acts = acts
    this.#place = place
  }

  async ask({ record, operation }: DueUnknown): Promise<InquiryAnswer> {
    if (operation === undefined) {
      const handler = this.#options.handlers.get(record.operation)
      // Without a handler here, the record stays open: another node may have one.
      return handler === undefined ? OPEN : this.#askHandler(handler, record)
    }
    const known = this.#acts.known(operation)
    if (known === undefined) {
      const { name, version } = operation
      const { recordId } = record
      this.#options.engine.emit({ kind: 'operation_orphaned', name, version, recordId })
      return OPEN
    }
    const phase = operation.phases.find(({ state }) => state === 'intended')
    if (phase === undefined) return hasRecordedOutcome(record) ? CONTINUES : { kind: 'operator' }
    const effect = Object.hasOwn(known.effects, phase.name) ? known.effects[phase.name] : undefined
    if (effect?.reconcile === undefined) return { kind: 'operator' }
    try {
      const values = this.#acts.valuesOf(record, operation)
      const request = await values.open(phase.request, requestOf(phase))
      return await this.#askProvider(effect, record, { ...phase, request })
    } catch (error) {
      if (!(error instanceof UnreadableValueError)) throw error
      this.#emitFailure(error)
      return OPEN
    }
  }

  /** The request of `phase` is encoded, but not encrypted. */
  async #askProvider(
    effect: Effect,
    record: RecordView,
    phase: StoredPhase,
  ): Promise<InquiryAnswer> {
    const { engine } = this.#options
    const { recordId, errorCode } = record
    // Read before the provider is asked: during a slow answer, the effect can still arrive there.
    const nowMs = await storeTimeMs(engine)
    const who = `reconcile of effect "${phase.name}"`
    try {
      const found = await this.#callWithin(who, (signal) =>
        findOut(effect, { recordId, phase, nowMs, signal }),
      )
      // `not_executed` would send the effect again, and its attempts are used up.
      const isLast = found.kind === 'not_executed' && errorCode === ATTEMPTS_EXHAUSTED
      if (isLast) return { kind: 'operator' }
      if (found.kind !== 'open') return { kind: 'effect', phase, found }
      if (found.error !== undefined) this.#emitFailure(found.error)
      return { kind: 'open', provenInMs: found.inMs }
    } catch (error) {
      this.#emitFailure(error)
      return OPEN
    }
  }

  async #askHandler(handler: ReconcileHandler, record: RecordView): Promise<InquiryAnswer> {
    const where = `the reconcile handler of "${record.operation}"`
    try {
      const verdict = await this.#callWithin(where, (signal) => handler({ record, signal }))
      if (verdict?.kind === 'pending') return OPEN
      if (verdict === undefined || verdict === null) {
        throw new InvalidOptionsError(
          `${where} must return { kind }, one of 'completed', 'failed_retryable' and 'pending', ` +
            `got ${describe(verdict)}`,
        )
      }
      return { kind: 'record', verdict: checkRecordVerdict(where, verdict), why: PROVIDER_ASKED }
    } catch (error) {
      this.#emitFailure(error)
      return OPEN
    }
  }

  #callWithin<Result>(
    who: string,
    call: (signal: AbortSignal) => Result | Promise<Result>,
  ): Promise<Result> {
    const { engine, timeoutMs } = this.#options
    this.#place.ask()
    this.outcome = 'answered'
    const onOverdue = (ended: Promise<unknown>) => {
      this.outcome = 'timeout'
      this.#place.overdue(ended)
    }
    return callWithin({ clock: engine.clock, timeoutMs, who, onOverdue }, call)
  }

  #emitFailure(error: unknown): void {
    this.#options.engine.emit({ kind: 'maintenance_failed', task: 'reconcile', error })
  }
}

/** The record became `unknown` because of an effect, and no effect is open: its outcome arrived. */
function hasRecordedOutcome({ errorCode }: RecordView): boolean {
  return errorCode === EFFECT_UNKNOWN || errorCode === RESULT_NOT_RECORDED
}
