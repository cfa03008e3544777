/** How verdicts and acts reach the store, for the reconciler, for webhooks and for operators. */
import type {
  Act,
  ActedBy,
  ActOutcome,
  DurableStore,
  PhaseRef,
  StoredOperation,
  StoredPhase,
} from '../core/durable-store.ts'
import type { Engine, ResolveTarget, ResolveVerdict } from '../core/engine-contract.ts'
import { identityOf } from '../core/identity.ts'
import type { RecordRef, RecordView } from '../core/store.ts'
import { askStore } from './durable-engine.ts'
import { toProviderId, toResult } from './find-out.ts'
import { nudge } from './nudge.ts'
import type { Effects } from './operation-contract.ts'
import { encodeValue } from './values.ts'

/** What has to be known of an operation to ask for its effects. */
export interface KnownOperation {
  readonly name: string
  readonly version: number
  readonly effects: Effects
}

/** What became of one outside effect. */
export type EffectVerdict =
  /** It happened, well or badly. `result` is what `send` would have returned. */
  | { readonly kind: 'done'; readonly result: unknown; readonly providerId?: string | undefined }
  /** It did not happen and will not: it may be sent again. */
  | { readonly kind: 'not_executed' }

/** A phase, and by which attempt it must have been sent last; any, where that is not said. */
export type EffectTarget = PhaseRef & { readonly attempt?: number }

export type RecordTarget = ResolveTarget & { readonly attempt?: number }

type Conclusion = Extract<Act, { kind: 'conclude' }>

/** No attempt has this number: an act on it changes nothing, and says what it would be about. */
const NO_ATTEMPT = -1

export class Desk {
  readonly #engine: Engine
  readonly #store: DurableStore
  readonly #operations: ReadonlyMap<string, KnownOperation>

  constructor(engine: Engine, store: DurableStore, operations: readonly KnownOperation[]) {
    this.#engine = engine
    this.#store = store
    this.#operations = new Map(operations.map((known) => [nameOf(known), known]))
  }

  /** The operation as it is registered here. */
  known(stored: { readonly name: string; readonly version: number }): KnownOperation | undefined {
    return this.#operations.get(nameOf(stored))
  }

  async act(act: Act, by: ActedBy): Promise<ActOutcome> {
    const outcome = await askStore(this.#engine, act.kind, (signal) =>
      this.#store.desk.act(act, by, signal),
    )
    // Most acts make an operation due: a worker of this process need not wait to find it.
    if (outcome.kind === 'done') nudge(this.#engine.store)
    return outcome
  }

  /** What is known of an effect, by whoever knows it: its result is checked and encoded first. */
  async conclude(
    { attempt, ...ref }: EffectTarget,
    verdict: EffectVerdict,
    by: ActedBy,
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
    const phase = operation?.phases.find((one) => isMeant(one, ref))
    // It was open a moment ago. Somebody has said what became of it, and perhaps the opposite.
    if (operation === undefined || phase === undefined) {
      return this.#report(await this.act(probe, by), undefined, verdict.kind)
    }
    const finding = await this.#toFinding(operation, phase.name, verdict)
    const outcome = await this.act(
      {
        kind: 'conclude',
        phase: refOf(recordId, phase),
        // That it did not happen is said of this sending, not of one that comes in between.
        attempt: attempt ?? (finding.kind === 'done' ? undefined : phase.attempt),
        finding,
      },
      by,
    )
    return this.#report(outcome, { phase: phase.name, from: record?.state }, verdict.kind)
  }

  /** What was found out about the effect of an `unknown` record, encoded already. */
  async concludeFound(
    { recordId, phase }: { readonly recordId: string; readonly phase: StoredPhase },
    finding: Conclusion['finding'],
    by: ActedBy,
  ): Promise<ActOutcome> {
    const { name, attempt } = phase
    const ref = refOf(recordId, phase)
    const outcome = await this.act({ kind: 'conclude', phase: ref, attempt, finding }, by)
    return this.#report(outcome, { phase: name, from: 'unknown' }, finding.kind)
  }

  /** A verdict on a whole `unknown` record. */
  async resolve(target: RecordTarget, verdict: ResolveVerdict, by: ActedBy): Promise<ActOutcome> {
    const { retentionMs } = this.#engine.policy({})
    const { attempt } = target
    const ref = toRef(target)
    const outcome = await this.act({ kind: 'resolve', ref, attempt, verdict, retentionMs }, by)
    if (outcome.kind === 'done' && outcome.record !== undefined) this.#resolved(outcome.record)
    else this.#notDone(outcome)
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
      this.#notDone(outcome)
      return outcome
    }
    const { phase, from } = about
    this.#engine.emit({ kind: 'effect_found', ...subjectOf(outcome.record), phase, finding })
    if (from === 'unknown') this.#resolved(outcome.record)
    return outcome
  }

  #resolved(record: RecordView): void {
    const to = record.state
    this.#engine.emit({ kind: 'reconcile_resolved', ...subjectOf(record), to })
  }

  #notDone(outcome: ActOutcome): void {
    if (outcome.kind === 'not_found') {
      this.#engine.emit({ kind: 'reconcile_failed', reason: 'not_found' })
    } else if (outcome.kind === 'refused') {
      const isOther = outcome.reason === 'other_attempt'
      const reason = isOther ? 'other_attempt' : 'not_unknown'
      this.#engine.emit({ kind: 'reconcile_failed', reason })
    }
  }
}

export function subjectOf({ identity, tenant, operation, recordId }: RecordView) {
  return { identity, tenant, operation, recordId }
}

export function toRef(target: ResolveTarget): RecordRef {
  if ('recordId' in target) return { recordId: target.recordId }
  return { identity: identityOf(target.scope, target.key) }
}

/** As exactly as it can be named. */
function refOf(recordId: string, { downstreamKey }: StoredPhase): PhaseRef {
  return downstreamKey === undefined ? { recordId } : { downstreamKey }
}

/** The open phase that somebody means. */
function isMeant(phase: StoredPhase, ref: PhaseRef): boolean {
  if (phase.state !== 'intended') return false
  if ('downstreamKey' in ref) return phase.downstreamKey === ref.downstreamKey
  if ('providerId' in ref) return phase.providerId === ref.providerId
  return true
}

function nameOf({ name, version }: { readonly name: string; readonly version: number }): string {
  return `${version} ${name}`
}
