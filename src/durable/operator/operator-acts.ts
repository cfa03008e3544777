/**
 * Sends verdicts and operator acts to the store. Used by operators, webhooks and the reconciler.
 *
 * Tests: test/durable/operator/operator.test.ts,
 * test/durable/reconciliation/reconciler-webhooks.test.ts.
 */
import { effectiveRule, type Encryption } from '../../core/encryption.ts'
import type { EventSubject } from '../../core/events.ts'
import type {
  DurableStore,
  OperationName,
  StoredOperation,
  StoredPhase,
} from '../../core/store/durable-store.ts'
import type { Act, Actor, ActOutcome, PhaseRef } from '../../core/store/operator-store.ts'
import type { Engine, ResolveTarget, ResolveVerdict } from '../../core/engine/engine-contract.ts'
import { toRef } from '../../core/record/verdict.ts'
import type { RecordView } from '../../core/store/store.ts'
import { askStore } from '../durable-engine.ts'
import { toProviderId, toResult } from '../operations/find-out.ts'
import type { Effects } from '../operations/operation-contract.ts'
import { sendStoreSignal } from '../store-signal.ts'
import { RecordValues, resultOf } from '../record-values.ts'
import { encodeValue } from '../values.ts'

/** The part of an operation that is needed to reconcile its effects. */
export interface OperationInfo {
  readonly name: string
  readonly version: number
  readonly effects: Effects
  /** The options of the operation. @default those of the engine */
  readonly encryption?: Encryption | undefined
  readonly requireEncryption?: boolean | undefined
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

/** An effect of an operation that is on record. */
export interface RecordedEffect {
  readonly record: EventSubject
  readonly operation: OperationName
  readonly phase: StoredPhase
}

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

  /** The values of an operation that is on record. */
  valuesOf(record: EventSubject, stored: OperationName): RecordValues {
    const { clock } = this.#engine
    const parts = { clock, emit: this.#engine.emit.bind(this.#engine) }
    const rule = effectiveRule(this.known(stored), this.#engine)
    return new RecordValues(parts, subjectOf(record), rule)
  }

  /** The operation of a record; `undefined` if it has none. */
  load(recordId: string): Promise<StoredOperation | undefined> {
    return askStore(this.#engine, 'load', (signal) => this.#store.phases.load(recordId, signal))
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
      this.load(recordId),
    ])
    const phase = operation?.phases.find((one) => matches(one, ref))
    // The phase was open at the probe. Another caller has recorded an outcome since, possibly the
    // opposite one: a second probe returns it.
    if (operation === undefined || phase === undefined || record === undefined) {
      return this.#report(await this.act(probe, by), undefined, verdict.kind)
    }
    const finding = await this.#toFinding({ record, operation, phase }, verdict)
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
    return this.#report(outcome, { phase: phase.name, from: record.state }, verdict.kind)
  }

  /** The outcome of an effect as it is stored. Rejects if its result cannot be encrypted. */
  async sealFinding(
    { record, operation, phase }: RecordedEffect,
    finding: Conclusion['finding'],
  ): Promise<Conclusion['finding']> {
    if (finding.kind === 'not_executed') return finding
    const values = this.valuesOf(record, operation)
    return { ...finding, result: await values.sealInTime(finding.result, resultOf(phase)) }
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
    recorded: RecordedEffect,
    verdict: EffectVerdict,
  ): Promise<Conclusion['finding']> {
    if (verdict.kind === 'not_executed') return verdict
    const { result } = verdict
    const { name } = recorded.phase
    const providerId = toProviderId(name, verdict.providerId)
    const effects = this.known(recorded.operation)?.effects
    const effect = effects !== undefined && Object.hasOwn(effects, name) && effects[name]
    const checked = effect
      ? await toResult(effect, name, result)
      : { result: encodeValue(`the result of "${name}"`, result), providerId: undefined }
    return this.sealFinding(recorded, {
      kind: 'done',
      result: checked.result,
      providerId: providerId ?? checked.providerId,
    })
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
export function subjectOf(record: EventSubject): EventSubject {
  const { identity, tenant, operation, recordId } = record
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
