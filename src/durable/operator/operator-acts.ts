/**
 * Sends verdicts and operator acts to the store. Used by operators, webhooks and the reconciler.
 *
 * Tests: test/durable/operator/operator.test.ts,
 * test/durable/reconciliation/reconciler-webhooks.test.ts.
 */
import type {
  Act,
  Actor,
  ActOutcome,
  DurableStore,
  PhaseRef,
  StoredOperation,
  StoredPhase,
} from '../../core/store/durable-store.ts'
import type { Engine, ResolveTarget, ResolveVerdict } from '../../core/engine/engine-contract.ts'
import { toRef } from '../../core/record/verdict.ts'
import type { RecordView } from '../../core/store/store.ts'
import { askStore } from '../durable-engine.ts'
import { toProviderId, toResult } from '../operations/find-out.ts'
import type { Effects } from '../operations/operation-contract.ts'
import { sendStoreSignal } from '../store-signal.ts'
import { encodeValue } from '../values.ts'

/** The part of an operation that is needed to reconcile its effects. */
export interface OperationInfo {
  readonly name: string
  readonly version: number
  readonly effects: Effects
}

/** The outcome of one outside effect. */
export type EffectVerdict =
  /**
   * The provider has processed the request, with success or not: a declined payment is `done`, too.
   * `result` is the value that `send` would have returned.
   */
  | { readonly kind: 'done'; readonly result: unknown; readonly providerId?: string | undefined }
  /** The effect did not happen and will not happen: the operation may send it again. */
  | { readonly kind: 'not_executed' }

/**
 * An effect by its record, its downstream key or the provider's id.
 *
 * With `attempt`, the verdict applies only if this attempt was the last to send the effect.
 * Without it, `done` applies to any send and `not_executed` to the last send on record.
 */
export type EffectTarget = PhaseRef & { readonly attempt?: number }

/**
 * A record by its id, or by its scope and key.
 *
 * With `attempt`, the verdict applies only if the record is still in this attempt.
 */
export type RecordTarget = ResolveTarget & { readonly attempt?: number }

type Conclusion = Extract<Act, { kind: 'conclude' }>

/** No attempt has this number: an act on it changes nothing and returns the record it concerns. */
const NO_ATTEMPT = -1

export class OperatorActs {
  readonly #engine: Engine
  readonly #store: DurableStore
  readonly #operations: ReadonlyMap<string, OperationInfo>

  constructor(engine: Engine, store: DurableStore, operations: readonly OperationInfo[]) {
    this.#engine = engine
    this.#store = store
    this.#operations = new Map(operations.map((known) => [nameOf(known), known]))
  }

  /** The operation as it is registered in this process. */
  known(stored: { readonly name: string; readonly version: number }): OperationInfo | undefined {
    return this.#operations.get(nameOf(stored))
  }

  async act(act: Act, by: Actor): Promise<ActOutcome> {
    const outcome = await askStore(this.#engine, act.kind, (signal) =>
      this.#store.operator.act(act, by, signal),
    )
    // Most acts make an operation due: the workers of this process run it without waiting to poll.
    if (outcome.kind === 'done') sendStoreSignal(this.#engine.store, 'operation_due')
    return outcome
  }

  /** Records the outcome of an effect. Checks and encodes its result first. */
  async resolveEffect(
    { attempt, ...ref }: EffectTarget,
    verdict: EffectVerdict,
    by: Actor,
  ): Promise<ActOutcome> {
    const probe: Conclusion = {
      kind: 'conclude',
      phase: ref,
      attempt: NO_ATTEMPT,
      finding: { kind: 'not_executed' },
    }
    const probed = await this.act(probe, by)
    const isOpen = probed.kind === 'refused' && probed.reason === 'other_attempt'
    if (!isOpen) return this.#report(probed, undefined, verdict.kind)
    const recordId = probed.subject
    const [record, operation] = await Promise.all([
      this.#engine.read({ recordId }),
      askStore(this.#engine, 'load', (signal) => this.#store.phases.load(recordId, signal)),
    ])
    const phase = operation?.phases.find((one) => matches(one, ref))
    // The phase was open at the probe. Another caller has recorded an outcome since, possibly the
    // opposite one: a second probe returns it.
    if (operation === undefined || phase === undefined) {
      return this.#report(await this.act(probe, by), undefined, verdict.kind)
    }
    const finding = await this.#toFinding(operation, phase.name, verdict)
    const outcome = await this.act(
      {
        kind: 'conclude',
        phase: refOf(recordId, phase),
        // `not_executed` is true of the send that was just read, not of a send that comes between.
        attempt: attempt ?? (finding.kind === 'done' ? undefined : phase.attempt),
        finding,
      },
      by,
    )
    return this.#report(outcome, { phase: phase.name, from: record?.state }, verdict.kind)
  }

  /** Records what the reconciler found out about an effect of an `unknown` record. */
  async recordFinding(
    { recordId, phase }: { readonly recordId: string; readonly phase: StoredPhase },
    finding: Conclusion['finding'],
    by: Actor,
  ): Promise<ActOutcome> {
    const { name, attempt } = phase
    const ref = refOf(recordId, phase)
    const outcome = await this.act({ kind: 'conclude', phase: ref, attempt, finding }, by)
    return this.#report(outcome, { phase: name, from: 'unknown' }, finding.kind)
  }

  /** Records a verdict on a whole `unknown` record. */
  async resolveRecord(
    target: RecordTarget,
    verdict: ResolveVerdict,
    by: Actor,
  ): Promise<ActOutcome> {
    const { retentionMs } = this.#engine.policy({})
    const { attempt } = target
    const ref = toRef(target)
    const outcome = await this.act({ kind: 'resolve', ref, attempt, verdict, retentionMs }, by)
    if (outcome.kind === 'done' && outcome.record !== undefined) this.#emitResolved(outcome.record)
    else this.#emitFailed(outcome)
    return outcome
  }

  async #toFinding(
    operation: StoredOperation,
    phase: string,
    verdict: EffectVerdict,
  ): Promise<Conclusion['finding']> {
    if (verdict.kind === 'not_executed') return verdict
    const { result } = verdict
    const providerId = toProviderId(phase, verdict.providerId)
    const effects = this.known(operation)?.effects
    const effect = effects !== undefined && Object.hasOwn(effects, phase) && effects[phase]
    if (!effect) {
      const bytes = encodeValue(`the result of "${phase}"`, result)
      return { kind: 'done', result: bytes, providerId }
    }
    const checked = await toResult(effect, phase, result)
    return { kind: 'done', result: checked.result, providerId: providerId ?? checked.providerId }
  }

  #report(
    outcome: ActOutcome,
    about: { readonly phase: string; readonly from: string | undefined } | undefined,
    finding: 'done' | 'not_executed',
  ): ActOutcome {
    if (outcome.kind !== 'done' || outcome.record === undefined || about === undefined) {
      this.#emitFailed(outcome)
      return outcome
    }
    const { phase, from } = about
    this.#engine.emit({ kind: 'effect_found', ...subjectOf(outcome.record), phase, finding })
    if (from === 'unknown') this.#emitResolved(outcome.record)
    return outcome
  }

  #emitResolved(record: RecordView): void {
    const to = record.state
    this.#engine.emit({ kind: 'reconcile_resolved', ...subjectOf(record), to })
  }

  #emitFailed(outcome: ActOutcome): void {
    if (outcome.kind === 'not_found') {
      this.#engine.emit({ kind: 'reconcile_failed', reason: 'not_found' })
    } else if (outcome.kind === 'refused') {
      const isOther = outcome.reason === 'other_attempt'
      const reason = isOther ? 'other_attempt' : 'not_unknown'
      this.#engine.emit({ kind: 'reconcile_failed', reason })
    }
  }
}

/** The fields by which events name a record. */
export function subjectOf({ identity, tenant, operation, recordId }: RecordView) {
  return { identity, tenant, operation, recordId }
}

/** The most precise reference: a downstream key names one phase, a record id any open phase. */
function refOf(recordId: string, { downstreamKey }: StoredPhase): PhaseRef {
  return downstreamKey === undefined ? { recordId } : { downstreamKey }
}

/** Whether `ref` names this phase and the phase is still open. */
function matches(phase: StoredPhase, ref: PhaseRef): boolean {
  if (phase.state !== 'intended') return false
  if ('downstreamKey' in ref) return phase.downstreamKey === ref.downstreamKey
  if ('providerId' in ref) return phase.providerId === ref.providerId
  return true
}

function nameOf({ name, version }: { readonly name: string; readonly version: number }): string {
  return `${version} ${name}`
}
