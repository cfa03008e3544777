/**
 * Runs the phase of one outside effect.
 *
 * Tests: test/durable/operations/effects.test.ts, faults.test.ts, unanswered.test.ts.
 */
import type { OperationAttempt, OperationEnd } from '../../core/attempt/operation-attempt.ts'
import { NO_BYTES } from '../../core/bytes.ts'
import { MINUTE_MS, SECOND_MS } from '../../core/time/durations.ts'
import type { PhaseStep, StepOutcome, StoredPhase } from '../../core/store/durable-store.ts'
import {
  LeaseLostError,
  NotExecutedError,
  OutcomeUnknownError,
  hasCode,
} from '../../core/errors.ts'
import { downstreamKeyOf } from '../../core/record/identity.ts'
import { backoffMs, retry, type Backoff } from '../../core/time/retry.ts'
import { HOOK_MS_MAX } from '../../core/encryption.ts'
import { callWithin } from '../bounded-calls.ts'
import { EFFECT_UNKNOWN, RESULT_NOT_RECORDED } from './failed-attempt.ts'
import { findOut, toResult, type EffectState } from './find-out.ts'
import type { Effect } from './operation-contract.ts'
import type { PhasePosition } from './operation-run.ts'
import { reportOverdueCall } from './overdue-calls.ts'
import { reportUnreadKey, WatchedKey } from './unread-key.ts'
import { checkSchema } from './schema.ts'
import { requestOf, resultOf, type RecordValues } from '../record-values.ts'
import { decodeValue, encodeValue } from '../values.ts'

export interface ExternalPhaseOptions {
  /** The name of the operation. */
  readonly operation: string
  readonly position: PhasePosition
  readonly effect: Effect
  readonly attempt: OperationAttempt
  readonly values: RecordValues
  /** Commits a step of the phase. */
  readonly record: (phase: PhaseStep) => Promise<StepOutcome>
  /** Called with the end of the run while the outcome of the effect is unknown. */
  readonly setDoubt: (end: Extract<OperationEnd, { kind: 'doubt' }> | undefined) => void
}

/** The default of `timeoutMs`, for `send` and for `reconcile`. */
const TIMEOUT_MS = MINUTE_MS
/** The pause before a provider that has just failed to answer is asked again. */
const ASK_AGAIN_MS = SECOND_MS
/** The pauses between failed attempts to encrypt a result. */
const SEAL_BACKOFF: Backoff = { firstMs: 50, maxMs: 1_000 }

/**
 * Runs one outside effect: commits the intent, sends the request, commits the result. If an earlier
 * attempt has sent the effect, its outcome is found out first.
 */
export class ExternalPhase {
  readonly #options: ExternalPhaseOptions
  readonly #name: string
  readonly #number: number
  readonly #downstreamKey: string

  constructor(options: ExternalPhaseOptions) {
    this.#options = options
    const { name, number } = options.position
    this.#name = name
    this.#number = number
    // The key on record counts: the provider has seen it, and a new one could charge again.
    this.#downstreamKey =
      options.position.stored?.downstreamKey ?? downstreamKeyOf(options.attempt.idSource, name)
  }

  async run(request: unknown): Promise<unknown> {
    const { position, values } = this.#options
    const { stored } = position
    if (stored?.state === 'done') return values.read(stored.result, resultOf(stored))
    await this.#checkPrepared(stored)
    if (stored === undefined) return this.#send(await this.#sealRequest(request), undefined)
    // Before the provider is asked: what cannot be read can neither be asked about nor sent again.
    const plain = await values.open(stored.request, requestOf(stored))
    const found = await this.#findEarlierSend(stored, plain)
    if (found.kind === 'done') return found.value
    const isOpen = found.kind === 'repeatable'
    const sealed = { plain, stored: stored.request ?? NO_BYTES }
    return this.#send(sealed, { firstSentAt: stored.firstSentAt, isOpen })
  }

  async #sealRequest(request: unknown): Promise<SealedRequest> {
    const { effect, position, values } = this.#options
    const where = `the request of "${this.#name}"`
    const plain = encodeValue(where, await checkSchema(where, effect.request, request))
    return { plain, stored: await values.sealInTime(plain, requestOf(position)) }
  }

  /** The result of what an earlier attempt has sent, or why it may be sent again. */
  async #findEarlierSend(stored: StoredPhase, plain: Uint8Array): Promise<EarlierOutcome> {
    const { attempt, effect } = this.#options
    const { clock } = attempt
    const startedMs = clock.monotonicMs()
    const nowMs = await this.#storeNowMs()
    const found = await this.#findOut({ ...stored, request: plain }, nowMs)
    if (found.kind === 'done') return { kind: 'done', value: await this.#recordResult(found) }
    if (found.kind === 'not_executed') return found
    // The answer takes time, during which `resendWithinMs` can end.
    const passedMs = clock.monotonicMs() - startedMs
    if (isRepeatable(effect, stored.firstSentAt.getTime(), nowMs + passedMs)) {
      return { kind: 'repeatable' }
    }
    attempt.assertHeld()
    throw this.#toUnknown(found, found.error)
  }

  async #send(sealed: SealedRequest, earlier: EarlierSend | undefined): Promise<unknown> {
    const { attempt, effect, position, record, values } = this.#options
    const { recordId } = attempt.subject
    const named = { name: this.#name, number: this.#number }
    const downstreamKey = this.#downstreamKey
    const request = sealed.stored
    const intent = { kind: 'intent', ...named, request, downstreamKey } as const
    const outcome = await record(intent)
    if (outcome.kind === 'concluded') return values.read(outcome.result, resultOf(position))
    if (outcome.kind === 'fenced') throw new LeaseLostError(recordId)
    attempt.assertHeld()

    let result: Awaited<ReturnType<typeof toResult>>
    try {
      const answer = await this.#callSend(sealed.plain)
      result = await toResult(effect, this.#name, answer)
    } catch (error) {
      return this.#afterFailure(error, sealed, earlier)
    }
    return this.#recordResult(result)
  }

  /** After the effect has happened, it is too late to find out that nothing can be encrypted. */
  async #checkPrepared(stored: StoredPhase | undefined): Promise<void> {
    const isReady = this.#options.values.prepare()
    if (isReady === true || (await isReady)) return
    const why = 'because its result could perhaps not be encrypted'
    // An earlier attempt may have sent the effect, so the record must not say that it did not.
    if (stored !== undefined) {
      throw new Error(`the provider is not asked about effect "${this.#name}", ${why}`)
    }
    throw new NotExecutedError(`effect "${this.#name}" does not begin, ${why}`)
  }

  /** The answer of the provider. A timeout is treated like a lost answer. */
  async #callSend(plain: Uint8Array): Promise<unknown> {
    const { attempt, effect, operation } = this.#options
    const key = new WatchedKey(this.#downstreamKey)
    const answer = await this.#within(`effect "${this.#name}"`, (signal) =>
      effect.send({
        request: decodeValue(plain),
        get downstreamKey() {
          return key.read()
        },
        recordId: attempt.subject.recordId,
        attempt: attempt.attempt,
        signal,
      }),
    )
    if (!key.isRead && effect.keyless !== true) {
      reportUnreadKey(attempt, { operation, phase: this.#name })
    }
    return answer
  }

  /** `signal` aborts at the timeout, and when the lease is lost. */
  #within<Answer>(
    who: string,
    call: (signal: AbortSignal) => Answer | Promise<Answer>,
  ): Promise<Answer> {
    const { attempt, effect, operation: name } = this.#options
    const { clock, store, subject, signal: held } = attempt
    const timeoutMs = effect.timeoutMs ?? TIMEOUT_MS
    const { recordId } = subject
    const onOverdue = (ended: Promise<unknown>) =>
      reportOverdueCall(store, { name, recordId, ended })
    return callWithin({ clock, timeoutMs, who, onOverdue }, (timeout) =>
      call(AbortSignal.any([held, timeout])),
    )
  }

  /** `send` failed: the effect may have happened, unless `error` or the provider rules it out. */
  async #afterFailure(
    error: unknown,
    sealed: SealedRequest,
    earlier: EarlierSend | undefined,
  ): Promise<unknown> {
    const { attempt, effect, setDoubt } = this.#options
    setDoubt({ kind: 'doubt', reconcileAfterMs: ASK_AGAIN_MS, errorCode: EFFECT_UNKNOWN })
    const nowMs = await this.#storeNowMs()
    const now = new Date(nowMs)
    const phase: StoredPhase = {
      name: this.#name,
      number: this.#number,
      kind: 'external',
      state: 'intended',
      request: sealed.plain,
      result: undefined,
      downstreamKey: this.#downstreamKey,
      providerId: undefined,
      attempt: attempt.attempt,
      firstSentAt: earlier?.firstSentAt ?? now,
      sentAt: now,
      doneAt: undefined,
    }
    // NotExecutedError says that this call sent nothing. An earlier send may still be open.
    const isProof = hasCode(error, 'NOT_EXECUTED') && earlier?.isOpen !== true
    const found: EffectState = isProof
      ? { kind: 'not_executed' }
      : await this.#findOut(phase, nowMs)
    switch (found.kind) {
      case 'done':
        return this.#recordResult(found)
      case 'not_executed':
        await this.#clear()
        setDoubt(undefined)
        throw error
      case 'open':
        if (!isRepeatable(effect, phase.firstSentAt.getTime(), nowMs)) {
          throw this.#toUnknown(found, error)
        }
        setDoubt(undefined)
        throw error
    }
  }

  /** The request of `phase` is encoded, but not encrypted. */
  async #findOut(phase: StoredPhase, nowMs: number): Promise<EffectState> {
    const { attempt, effect } = this.#options
    const { recordId } = attempt.subject
    const found = await this.#within(`reconcile of effect "${this.#name}"`, (signal) =>
      findOut(effect, { recordId, phase, nowMs, signal }),
    ).catch((error: unknown): EffectState => ({ kind: 'open', inMs: undefined, error }))
    if (found.kind !== 'open') {
      const finding = found.kind
      attempt.emit({ kind: 'effect_found', ...attempt.subject, phase: this.#name, finding })
    }
    return found
  }

  async #recordResult({
    result: plain,
    providerId,
  }: {
    readonly result: Uint8Array
    readonly providerId: string | undefined
  }): Promise<unknown> {
    const { attempt, position, record, setDoubt, values } = this.#options
    const named = { name: this.#name, number: this.#number }
    const downstreamKey = this.#downstreamKey
    // Until the result is on record, only this process has it.
    setDoubt({ kind: 'doubt', reconcileAfterMs: 0, errorCode: RESULT_NOT_RECORDED })
    const result = await this.#sealResult(plain)
    const phase = { kind: 'result', ...named, result, downstreamKey, providerId } as const
    const outcome = await record(phase)
    setDoubt(undefined)
    if (outcome.kind === 'fenced') throw new LeaseLostError(attempt.subject.recordId)
    if (outcome.kind === 'concluded') return values.read(outcome.result, resultOf(position))
    return decodeValue(plain)
  }

  /** Tries again for a while, because a result that is not recorded makes the outcome unknown. */
  #sealResult(plain: Uint8Array): Promise<Uint8Array> {
    const { attempt, position, values } = this.#options
    const { clock } = attempt
    return retry(
      {
        clock,
        deadlineMs: clock.monotonicMs() + HOOK_MS_MAX,
        pauseMs: (failures) => backoffMs(SEAL_BACKOFF, failures),
        mayRetry: () => true,
      },
      () => values.sealInTime(plain, resultOf(position)),
    )
  }

  async #clear(): Promise<void> {
    const { attempt, record } = this.#options
    const phase = { kind: 'clear', name: this.#name, number: this.#number } as const
    const outcome = await record(phase)
    if (outcome.kind === 'fenced') throw new LeaseLostError(attempt.subject.recordId)
  }

  #toUnknown(found: Extract<EffectState, { kind: 'open' }>, cause: unknown): OutcomeUnknownError {
    const reconcileAfterMs = found.inMs ?? ASK_AGAIN_MS
    this.#options.setDoubt({ kind: 'doubt', reconcileAfterMs, errorCode: EFFECT_UNKNOWN })
    return new OutcomeUnknownError(`the outcome of effect "${this.#name}" is unknown`, { cause })
  }

  /** The store wrote the times of the phase, so they are compared with the store's clock only. */
  async #storeNowMs(): Promise<number> {
    const { store, clock, ask } = this.#options.attempt
    if (store.now === undefined) return clock.nowMs()
    return (await ask('now', (signal) => store.now!(signal))).getTime()
  }
}

/** A request as it is stored, and as it is encoded. */
interface SealedRequest {
  readonly stored: Uint8Array
  readonly plain: Uint8Array
}

/** The outcome of what an earlier attempt has sent. */
type EarlierOutcome =
  | { readonly kind: 'done'; readonly value: unknown }
  | { readonly kind: 'not_executed' }
  /** The outcome is not known, but the provider recognises the key: sending again is safe. */
  | { readonly kind: 'repeatable' }

/** A send by an earlier attempt. `isOpen`: its outcome is not known. */
interface EarlierSend {
  readonly firstSentAt: Date
  readonly isOpen: boolean
}

function isRepeatable({ resendWithinMs }: Effect, firstSentMs: number, nowMs: number): boolean {
  return resendWithinMs !== undefined && nowMs - firstSentMs < resendWithinMs
}
