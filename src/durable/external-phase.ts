import type { Attempt, OperationEnd } from '../core/attempt.ts'
import type { PhaseStep, StepOutcome, StoredPhase } from '../core/durable-store.ts'
import { LeaseLostError, OutcomeUnknownError, hasCode } from '../core/errors.ts'
import { downstreamKeyOf } from '../core/identity.ts'
import { askWithin } from './ask-within.ts'
import { EFFECT_UNKNOWN, RESULT_NOT_RECORDED } from './doubts.ts'
import { findOut, toResult, type FoundOut } from './find-out.ts'
import type { Effect } from './operation-contract.ts'
import type { Place } from './operation-run.ts'
import { tellOverdueCall } from './overdue-calls.ts'
import { checkSchema } from './schema.ts'
import { decodeValue, encodeValue } from './values.ts'

export interface ExternalPhaseOptions {
  /** The name of the operation. */
  readonly operation: string
  readonly place: Place
  readonly effect: Effect
  readonly attempt: Attempt
  /** Commits a step of the phase. */
  readonly record: (phase: PhaseStep) => Promise<StepOutcome>
  /** Called when the effect may have happened and nobody can know. */
  readonly doubt: (end: Extract<OperationEnd, { kind: 'doubt' }> | undefined) => void
}

/** For the answer to what is sent, and to what is asked. */
const ANSWER_MS = 60_000
/** A provider that has just failed to answer is not asked again at once. */
const LOOK_AGAIN_MS = 1_000

/**
 * One outside effect: the intent is committed, then it is sent, then its result is committed. What
 * an earlier attempt has sent is found out first.
 */
export class ExternalPhase {
  readonly #options: ExternalPhaseOptions
  readonly #name: string
  readonly #number: number
  readonly #downstreamKey: string

  constructor(options: ExternalPhaseOptions) {
    this.#options = options
    const { name, number } = options.place
    this.#name = name
    this.#number = number
    this.#downstreamKey = downstreamKeyOf(options.attempt.subject.recordId, name)
  }

  async run(given: unknown): Promise<unknown> {
    const { stored } = this.#options.place
    if (stored?.state === 'done') return decodeValue(stored.result)
    if (stored === undefined) return this.#send(await this.#encodeRequest(given), undefined)
    const found = await this.#askAfter(stored)
    if (found.kind === 'done') return found.value
    const isOpen = found.kind === 'repeatable'
    return this.#send(stored.request ?? NO_BYTES, { firstSentAt: stored.firstSentAt, isOpen })
  }

  async #encodeRequest(given: unknown): Promise<Uint8Array> {
    const where = `the request of "${this.#name}"`
    return encodeValue(where, await checkSchema(where, this.#options.effect.request, given))
  }

  /** What an earlier attempt has sent: its result, or why it may be sent again. */
  async #askAfter(stored: StoredPhase): Promise<AskedAfter> {
    const { attempt, effect } = this.#options
    const { clock } = attempt
    const startedMs = clock.monotonicMs()
    const nowMs = await this.#storeNowMs()
    const found = await this.#findOut(stored, nowMs)
    if (found.kind === 'done') return { kind: 'done', value: await this.#recordResult(found) }
    if (found.kind === 'not_executed') return found
    // To ask takes time, in which the provider may have forgotten the key.
    const passedMs = clock.monotonicMs() - startedMs
    if (isRepeatable(effect, stored.firstSentAt.getTime(), nowMs + passedMs)) {
      return { kind: 'repeatable' }
    }
    attempt.assertHeld()
    throw this.#doubt(found, found.error)
  }

  async #send(request: Uint8Array, earlier: Earlier | undefined): Promise<unknown> {
    const { attempt, effect, record } = this.#options
    const { recordId } = attempt.subject
    const named = { name: this.#name, number: this.#number }
    const downstreamKey = this.#downstreamKey
    const intent = { kind: 'intent', ...named, request, downstreamKey } as const
    const outcome = await record(intent)
    if (outcome.kind === 'concluded') return decodeValue(outcome.result)
    if (outcome.kind === 'fenced') throw new LeaseLostError(recordId)
    attempt.assertHeld()

    let result: Awaited<ReturnType<typeof toResult>>
    try {
      const answer = await this.#answerTo(request)
      result = await toResult(effect, this.#name, answer)
    } catch (error) {
      return this.#afterFailure(error, request, earlier)
    }
    return this.#recordResult(result)
  }

  /** What the provider says, in time: an answer that does not come is a lost one. */
  #answerTo(request: Uint8Array): Promise<unknown> {
    const { attempt, effect } = this.#options
    return this.#within(`effect "${this.#name}"`, (signal) =>
      effect.send({
        request: decodeValue(request),
        downstreamKey: this.#downstreamKey,
        recordId: attempt.subject.recordId,
        attempt: attempt.attempt,
        signal,
      }),
    )
  }

  /** `signal` aborts when the answer is waited for no more, or the lease is lost. */
  #within<Answer>(
    who: string,
    ask: (signal: AbortSignal) => Answer | Promise<Answer>,
  ): Promise<Answer> {
    const { attempt, effect, operation: name } = this.#options
    const { clock, store, subject, signal: held } = attempt
    const timeoutMs = effect.timeoutMs ?? ANSWER_MS
    const { recordId } = subject
    const onOverdue = (ended: Promise<unknown>) => tellOverdueCall(store, { name, recordId, ended })
    return askWithin({ clock, timeoutMs, who, onOverdue }, (ending) =>
      ask(AbortSignal.any([held, ending])),
    )
  }

  /** The call failed: the effect may have happened all the same, unless somebody knows better. */
  async #afterFailure(
    error: unknown,
    request: Uint8Array,
    earlier: Earlier | undefined,
  ): Promise<unknown> {
    const { attempt, effect, doubt } = this.#options
    doubt({ kind: 'doubt', reconcileAfterMs: LOOK_AGAIN_MS, errorCode: EFFECT_UNKNOWN })
    const nowMs = await this.#storeNowMs()
    const now = new Date(nowMs)
    const phase: StoredPhase = {
      name: this.#name,
      number: this.#number,
      kind: 'external',
      state: 'intended',
      request,
      result: undefined,
      downstreamKey: this.#downstreamKey,
      providerId: undefined,
      attempt: attempt.attempt,
      firstSentAt: earlier?.firstSentAt ?? now,
      sentAt: now,
      doneAt: undefined,
    }
    // It says that nothing was sent this time, and nothing about what was sent before.
    const isProof = hasCode(error, 'NOT_EXECUTED') && earlier?.isOpen !== true
    const found: FoundOut = isProof ? { kind: 'not_executed' } : await this.#findOut(phase, nowMs)
    switch (found.kind) {
      case 'done':
        return this.#recordResult(found)
      case 'not_executed':
        await this.#clear()
        doubt(undefined)
        throw error
      case 'open':
        if (!isRepeatable(effect, phase.firstSentAt.getTime(), nowMs)) {
          throw this.#doubt(found, error)
        }
        doubt(undefined)
        throw error
    }
  }

  async #findOut(phase: StoredPhase, nowMs: number): Promise<FoundOut> {
    const { attempt, effect } = this.#options
    const { recordId } = attempt.subject
    const found = await this.#within(`reconcile of effect "${this.#name}"`, (signal) =>
      findOut(effect, { recordId, phase, nowMs, signal }),
    ).catch((error: unknown): FoundOut => ({ kind: 'open', inMs: undefined, error }))
    if (found.kind !== 'open') {
      const finding = found.kind
      attempt.emit({ kind: 'effect_found', ...attempt.subject, phase: this.#name, finding })
    }
    return found
  }

  async #recordResult({
    result,
    providerId,
  }: {
    readonly result: Uint8Array
    readonly providerId: string | undefined
  }): Promise<unknown> {
    const { attempt, record, doubt } = this.#options
    const named = { name: this.#name, number: this.#number }
    const downstreamKey = this.#downstreamKey
    const phase = { kind: 'result', ...named, result, downstreamKey, providerId } as const
    // Until it is on record, nobody but this process knows of it.
    doubt({ kind: 'doubt', reconcileAfterMs: 0, errorCode: RESULT_NOT_RECORDED })
    const outcome = await record(phase)
    doubt(undefined)
    if (outcome.kind === 'fenced') throw new LeaseLostError(attempt.subject.recordId)
    return decodeValue(outcome.kind === 'concluded' ? outcome.result : result)
  }

  async #clear(): Promise<void> {
    const { attempt, record } = this.#options
    const phase = { kind: 'clear', name: this.#name, number: this.#number } as const
    const outcome = await record(phase)
    if (outcome.kind === 'fenced') throw new LeaseLostError(attempt.subject.recordId)
  }

  #doubt(found: Extract<FoundOut, { kind: 'open' }>, cause: unknown): OutcomeUnknownError {
    const reconcileAfterMs = found.inMs ?? LOOK_AGAIN_MS
    this.#options.doubt({ kind: 'doubt', reconcileAfterMs, errorCode: EFFECT_UNKNOWN })
    return new OutcomeUnknownError(`the outcome of effect "${this.#name}" is unknown`, { cause })
  }

  /** The times of a phase are the store's, and are compared with no other clock. */
  async #storeNowMs(): Promise<number> {
    const { store, clock, ask } = this.#options.attempt
    if (store.now === undefined) return clock.nowMs()
    return (await ask('now', (signal) => store.now!(signal))).getTime()
  }
}

/** What became of what an earlier attempt has sent. */
type AskedAfter =
  | { readonly kind: 'done'; readonly value: unknown }
  | { readonly kind: 'not_executed' }
  /** Nobody knows, but the provider recognises the key. */
  | { readonly kind: 'repeatable' }

/** An earlier attempt has sent it. `isOpen`: and nobody knows what became of that. */
interface Earlier {
  readonly firstSentAt: Date
  readonly isOpen: boolean
}

function isRepeatable({ repeatable }: Effect, firstSentMs: number, nowMs: number): boolean {
  return repeatable !== undefined && nowMs - firstSentMs < repeatable.withinMs
}

const NO_BYTES = new Uint8Array(0)
