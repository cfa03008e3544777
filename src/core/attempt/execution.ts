/**
 * Runs one attempt: the work under its lease, then the settlement of its record. The states of an
 * attempt and their transitions are listed in `attempt-state.ts`.
 *
 * After the work has ended, in this order:
 *
 * 1. Wait for transactions that the work did not await.
 * 2. If a transaction or a step of this attempt has committed a result, report that result.
 * 3. Otherwise settle the record: complete it, release the key, or mark it `unknown`.
 * 4. If the settlement is fenced, the record decides: report its result or `lease_lost`.
 *
 * Tests: test/core/attempt/engine-*.test.ts, complete-in-*.test.ts.
 */
import { NO_BYTES } from '../bytes.ts'
import {
  InvalidOptionsError,
  OutcomeNotRecordedError,
  OutcomeUnknownError,
  isRejected,
} from '../errors.ts'
import type { EventSubject } from '../events.ts'
import { describe } from '../options.ts'
import type { Proof } from '../record/record.ts'
import type { RecordView, SettleOutcome, Settlement } from '../store/store.ts'
import { AttemptState } from './attempt-state.ts'
import {
  RECONCILE_AFTER_MS,
  hasOwnResult,
  judgeAttempt,
  judgeWithoutResult,
  releaseOf,
  unknownOf,
} from './attempt-verdict.ts'
import type { ExecutionParts, ExecutionRequest } from './execution-parts.ts'
import { errorCodeOf, mayHaveActed } from './failure.ts'
import { HeldLease, type LeaseListener } from './held-lease.ts'
import { LiveContext, type ContextHost } from './live-context.ts'
import { ATTEMPT } from './operation-attempt.ts'
import { toEnding, type FailedEnd, type Work, type WorkResult } from './run-context.ts'
import type { RunOutcome } from './run-outcome.ts'
import type { NotRecorded, SettlingOptions } from './settler.ts'

const NOT_COMMITTED =
  'the work returned the result that it passed to completeIn, but the transaction has not ' +
  'committed: it is unknown whether its rows are kept'

export class Execution implements LeaseListener, ContextHost {
  readonly state = new AttemptState()
  readonly held: HeldLease
  readonly #parts: ExecutionParts
  readonly #request: ExecutionRequest
  readonly #context: LiveContext
  /** Answer the caller; only the first call counts. */
  #resolve!: (outcome: RunOutcome) => void
  #reject!: (error: unknown) => void

  constructor(parts: ExecutionParts, request: ExecutionRequest) {
    this.#parts = parts
    this.#request = request
    this.held = new HeldLease(parts, request, this)
    this.#context = new LiveContext(parts, request, this)
  }

  get #recordId(): string {
    return this.#request.claimed.recordId
  }

  get #identity(): string {
    return this.held.lease.identity
  }

  /** The fields that name the record in events. */
  #subject(): EventSubject {
    return { identity: this.#identity, ...this.#request.scope, recordId: this.#recordId }
  }

  /**
   * Runs the work and settles its record. If the work runs longer than `runTimeoutMs`, the promise
   * resolves without it; the outcome of the work is still recorded when it ends.
   */
  run(work: Work): Promise<RunOutcome> {
    return new Promise((resolve, reject) => {
      this.#resolve = resolve
      this.#reject = reject
      // After an overrun these calls have no effect, but the record is settled.
      this.#runAndSettle(work).then(resolve, reject)
    })
  }

  leaseLost(): void {
    this.#report('lease_lost')
  }

  leaseOverrun(): void {
    const { state } = this
    // The outcome of the work is known and on its way to the store: it is not unknown.
    if (state.work === 'settling' || state.work === 'settled') return
    state.caller = 'overrun'
    this.#parts.onOutlive(1)
    this.#answerOverrun()
      .finally(() => {
        state.caller = 'answered'
        if (state.work === 'settled') this.#parts.onOutlive(-1)
      })
      .then(this.#resolve, this.#reject)
  }

  async #runAndSettle(work: Work): Promise<RunOutcome> {
    const { state } = this
    const context = this.#context
    try {
      let end: WorkResult
      try {
        end = await work(context)
      } catch (error) {
        return await this.#afterThrow(error)
      }
      state.work = 'ended'
      if (context.transactionsEnded !== undefined) await context.transactionsEnded
      this.#startSettling()
      const committed = state.mayHaveCommitted ? await this.#committedOutcome() : undefined
      if (committed === undefined) return await this.#afterReturn(end)
      this.held.stop()
      return committed
    } finally {
      state.work = 'settled'
      if (state.caller === 'answered') this.#parts.onOutlive(-1)
      this.#parts.onSettled(this.#identity)
    }
  }

  #startSettling(): void {
    const context = this.#context
    // Only its steps may end an operation. If an earlier attempt has begun one and this work did
    // not run it, the key is released so that the operation resumes with its phases.
    if (context.wasBegun && this.state.key.kind === 'open' && context.declared !== 'unknown') {
      context[ATTEMPT].fail({ kind: 'release', resumeAfterMs: 0 })
    }
    this.state.work = 'settling'
  }

  /**
   * The outcome that a transaction or a step of this attempt has committed, as far as a read can
   * tell. A read cannot prove that a transaction that the work has begun did not commit. The
   * settlement proves it: it waits for that transaction, and is either applied or finds its result.
   */
  async #committedOutcome(): Promise<RunOutcome | undefined> {
    const { state } = this
    const recordId = this.#recordId
    if (state.key.kind === 'handed_over') return { kind: 'pending', recordId }
    if (state.key.kind === 'committed') {
      const { result, expiresAt } = state.key
      return { kind: 'ran', identity: this.#identity, recordId, result, expiresAt }
    }
    const recorded = state.isJoined ? await this.#recordedResult() : undefined
    return recorded?.kind === 'ran' ? recorded : undefined
  }

  #afterReturn(end: WorkResult): Promise<RunOutcome> {
    const { declared, operation } = this.#context
    const ending = toEnding(end)
    if (operation?.end !== undefined) {
      const result = ending?.result ?? NO_BYTES
      const isUnknown = operation.end.kind === 'doubt'
      return isUnknown
        ? this.#markUnknown(result, undefined)
        : this.#release(result, 'proven', undefined)
    }
    if (ending === undefined) return this.#afterNoResult(end)
    if (declared === 'not_executed') return this.#release(ending.result, 'proven', undefined)
    if (declared === 'unknown') return this.#markUnknown(ending.result, undefined)
    switch (ending.kind) {
      case 'complete':
        return this.#context.hasPassedToCompleteIn(ending.result)
          ? this.#afterMissingCommit()
          : this.#complete(ending.result)
      case 'release':
        return this.#afterRefusal(ending.result, ending.error)
      case 'fail':
        return this.#afterFailure(ending)
    }
  }

  /** The work has ended without a result to replay. It may have acted, so it must not run again. */
  async #afterNoResult(end: unknown): Promise<never> {
    await this.#settle(unknownOf(this.#context, this.held.lease, 'no_result'), undefined)
    throw new InvalidOptionsError(
      `the work must return a Uint8Array, or { kind, result } with one, got ${describe(end)}`,
    )
  }

  /** A refusal has no effect, unless the work had begun an effect before it refused. */
  #afterRefusal(result: Uint8Array, error: unknown): Promise<RunOutcome> {
    const { effectBegun } = this.#context
    const mayRetry = this.#request.policy.onError === 'retry'
    if (!mayRetry && mayHaveActed({ effectBegun, error })) return this.#markUnknown(result, error)
    return this.#release(result, 'declared', error)
  }

  async #afterFailure({ result, error, blind, unstorable }: FailedEnd): Promise<RunOutcome> {
    const { onError } = this.#request.policy
    const verdict = unstorable
      ? judgeWithoutResult(this.#context, onError, error)
      : judgeAttempt(this.#context, onError, { error, blind })
    switch (verdict) {
      case 'store':
        return this.#complete(result)
      case 'unknown':
        return this.#markUnknown(result, error)
      case 'proven':
      case 'declared':
        return this.#release(result, verdict, error)
    }
  }

  /**
   * The work returned the result that it passed to `completeIn`, but its transaction has not
   * committed: some databases answer the COMMIT of a failed transaction without an error. Recording
   * the result would confirm rows that were rolled back. Running the work again could repeat rows
   * that are kept after a rollback to a savepoint.
   */
  async #afterMissingCommit(): Promise<RunOutcome> {
    const error = new OutcomeUnknownError(NOT_COMMITTED)
    const settlement = unknownOf(this.#context, this.held.lease, errorCodeOf(error))
    const outcome = await this.#settle(settlement, error)
    switch (outcome.kind) {
      case 'settled':
        throw error
      case 'fenced':
        return hasOwnResult(outcome) ? this.#joinedResult() : this.#resultOrLeaseLost()
      case 'not_recorded':
        throw new OutcomeNotRecordedError(this.#recordId, outcome.cause)
    }
  }

  /** Rethrows the error of the work, unless the record has a result of this attempt. */
  async #afterThrow(error: unknown): Promise<RunOutcome> {
    this.state.work = 'ended'
    await this.#context.transactionsEnded
    this.#startSettling()
    const outcome = await this.#settleThrown(error)
    if (outcome !== undefined) return outcome
    throw error
  }

  async #settleThrown(error: unknown): Promise<RunOutcome | undefined> {
    const context = this.#context
    const { lease } = this.held
    if (this.state.isFinal) {
      this.held.stop()
      return undefined
    }
    const verdict = judgeWithoutResult(context, this.#request.policy.onError, error)
    const settlement =
      verdict === 'unknown'
        ? unknownOf(context, lease, errorCodeOf(error))
        : releaseOf(context, lease, verdict, error)
    const outcome = await this.#settle(settlement, error)
    const ended = await this.#operationOutcome(outcome)
    if (ended !== undefined) return ended
    return this.state.isJoined ? this.#afterJoinedThrow(outcome, error) : undefined
  }

  /** A settlement that was applied proves that no transaction of the work completed the key. */
  async #afterJoinedThrow(
    outcome: SettleOutcome | NotRecorded,
    error: unknown,
  ): Promise<RunOutcome | undefined> {
    const { key } = this.state
    if (outcome.kind === 'not_recorded') {
      // The error of the work is not enough: a transaction that it takes for rolled back may have
      // committed.
      throw new OutcomeUnknownError('the transaction may or may not have committed', {
        cause: error,
      })
    }
    const isOvertaken = key.kind === 'joined' && error === key.overtaken
    return hasOwnResult(outcome) && isOvertaken ? this.#recordedResult() : undefined
  }

  /** The last step of the operation had been applied, although its answer was lost. */
  async #operationOutcome(outcome: SettleOutcome | NotRecorded): Promise<RunOutcome | undefined> {
    if (this.state.key.kind !== 'operation' || outcome.kind !== 'fenced') return undefined
    if (outcome.state === 'pending') return { kind: 'pending', recordId: this.#recordId }
    return hasOwnResult(outcome) ? this.#resultOrLeaseLost() : undefined
  }

  async #complete(result: Uint8Array): Promise<RunOutcome> {
    const recordId = this.#recordId
    const { retentionMs } = this.#context
    const { lease } = this.held
    const { identity } = lease
    const settlement: Settlement = { kind: 'complete', lease, result, retentionMs }
    const outcome = await this.#settle(settlement, undefined)
    switch (outcome.kind) {
      case 'settled':
        if (this.state.isJoined) return this.#joinedResult()
        return { kind: 'ran', identity, recordId, result, expiresAt: outcome.expiresAt }
      case 'fenced':
        return this.#resultOrLeaseLost()
      case 'not_recorded':
        if (isRejected(outcome.cause)) {
          await this.#settle(unknownOf(this.#context, lease, 'result_rejected'), undefined)
        }
        // The caller must not get the unrecorded result: it would take the request for done.
        throw new OutcomeNotRecordedError(recordId, outcome.cause)
    }
  }

  async #release(result: Uint8Array, proof: Proof, error: unknown): Promise<RunOutcome> {
    const settlement = releaseOf(this.#context, this.held.lease, proof, error)
    const outcome = await this.#settle(settlement, error)
    if (hasOwnResult(outcome)) return this.#resultOrLeaseLost()
    const ended = await this.#operationOutcome(outcome)
    if (ended !== undefined) return ended
    const expiresAt = outcome.kind === 'settled' ? outcome.expiresAt : undefined
    return { kind: 'released', recordId: this.#recordId, result, proof, expiresAt }
  }

  async #markUnknown(result: Uint8Array, error: unknown): Promise<RunOutcome> {
    const settlement = unknownOf(this.#context, this.held.lease, errorCodeOf(error))
    const outcome = await this.#settle(settlement, error)
    if (hasOwnResult(outcome)) return this.#resultOrLeaseLost()
    const isRecorded = outcome.kind !== 'not_recorded'
    return { kind: 'doubted', recordId: this.#recordId, result, isRecorded }
  }

  /**
   * Answers the caller after `runTimeoutMs`. The work may still end, so the answer says only what
   * is certain now.
   */
  async #answerOverrun(): Promise<RunOutcome> {
    const recordId = this.#recordId
    const { policy } = this.#request
    const committed = await this.#committedOutcome()
    if (committed !== undefined) return committed
    if (policy.onLapse !== 'unknown') {
      // The lease is not renewed any more. After it, the next claim or sweep may run the key again.
      const { expiresAt } = this.#request.claimed
      return { kind: 'in_progress', recordId, retryAfterMs: policy.leaseMs, expiresAt }
    }
    const settlement = unknownOf(this.#context, this.held.lease, 'max_run_exceeded')
    const outcome = await this.#settle(settlement, undefined)
    this.#parts.onSettled(this.#identity)
    if (outcome.kind === 'fenced') return this.#resultOrLeaseLost()
    return { kind: 'unknown', recordId, retryAfterMs: RECONCILE_AFTER_MS }
  }

  /**
   * After a commit without an answer: if the record accepts the settlement `unknown`, there was no
   * commit before it. A commit that arrives later completes the record, unless the key was claimed
   * again; in both cases the rows are kept at most once. A release would prove the same, but would
   * free the key while the work may still begin an outside effect.
   */
  async probeCommit(): Promise<SettleOutcome | undefined> {
    const { settler } = this.#parts
    const settlement = unknownOf(this.#context, this.held.lease, 'commit_unanswered')
    const outcome = await settler.settle(settlement, this.#settlingOptions(false), () => undefined)
    if (outcome.kind === 'not_recorded') return undefined
    this.#reportSettled(settlement, outcome, undefined)
    return outcome
  }

  /** Settles the record. The lease is renewed until the settlement has ended. */
  async #settle(settlement: Settlement, error: unknown): Promise<SettleOutcome | NotRecorded> {
    const { settler } = this.#parts
    let abandoned = false
    const onEnd = (late: SettleOutcome | undefined) => {
      abandoned = late === undefined
      this.held.stop()
      if (late === undefined) this.#report('settle_abandoned')
      else this.#reportSettled(settlement, late, error)
      this.#parts.onSettled(this.#identity)
    }
    const options = this.#settlingOptions(this.state.isJoined)
    const outcome = await settler.settle(settlement, options, onEnd)
    if (outcome.kind === 'not_recorded') {
      if (!abandoned) this.#report('settle_late')
      return outcome
    }
    this.held.stop()
    this.#reportSettled(settlement, outcome, error)
    return outcome
  }

  #settlingOptions(alone: boolean): SettlingOptions {
    const { scope, policy } = this.#request
    return { tenant: scope.tenant, timeoutMs: policy.settleTimeoutMs, alone }
  }

  #reportSettled(settlement: Settlement, outcome: SettleOutcome, error: unknown): void {
    const { state } = this
    if (outcome.kind === 'fenced') {
      // No fault if the settlement could not know that this attempt had completed the record: the
      // settlement `unknown` asks for that, and a transaction or a step may have committed.
      const mayMeetResult =
        settlement.kind === 'doubt' || state.isJoined || state.key.kind === 'operation'
      if (mayMeetResult && hasOwnResult(outcome)) return
      const { attempt } = this.held.lease
      this.#parts.emit({ kind: 'settle_fenced', ...this.#subject(), attempt, error })
    } else if (settlement.kind === 'doubt') {
      const { errorCode } = settlement
      if (state.record !== 'unknown') {
        this.#parts.emit({ kind: 'reconcile_scheduled', ...this.#subject(), errorCode })
      }
      state.record = 'unknown'
    } else {
      const wasUnknown = state.record === 'unknown'
      state.record = 'settled'
      if (!wasUnknown) return
      // The work has ended after the record became `unknown`: its outcome is the verdict.
      const to = settlement.kind === 'complete' ? 'completed' : 'failed_retryable'
      this.#parts.emit({ kind: 'reconcile_resolved', ...this.#subject(), to })
    }
  }

  #report(kind: 'lease_lost' | 'settle_late' | 'settle_abandoned'): void {
    this.#parts.emit({ kind, ...this.#subject(), attempt: this.held.lease.attempt })
  }

  /** The record has changed while the work ran: its result is the answer, if it has one. */
  async #resultOrLeaseLost(): Promise<RunOutcome> {
    const recordId = this.#recordId
    return (await this.#recordedResult()) ?? { kind: 'lease_lost', recordId }
  }

  /** The record is completed: by this settlement, or by the transaction of the work. */
  async #joinedResult(): Promise<RunOutcome> {
    const recorded = await this.#recordedResult()
    if (recorded !== undefined) return recorded
    const cause = new Error('its record cannot be read')
    throw new OutcomeNotRecordedError(this.#recordId, cause)
  }

  /** The result on record: `ran` if a transaction of this attempt may have written it. */
  async #recordedResult(): Promise<Extract<RunOutcome, { kind: 'ran' | 'replayed' }> | undefined> {
    const recordId = this.#recordId
    const record = await this.#read(this.#identity)
    if (record?.recordId !== recordId || record.state !== 'completed') return undefined
    const { result, expiresAt, attempt } = record
    if (result === undefined) return undefined
    const isOwn = this.state.isJoined && attempt === this.held.lease.attempt
    const identity = this.#identity
    return { kind: isOwn ? 'ran' : 'replayed', identity, recordId, result, expiresAt }
  }

  async #read(identity: string): Promise<RecordView | undefined> {
    const { store, port } = this.#parts
    try {
      return await port.ask('read', (signal) => store.read({ identity }, signal))
    } catch {
      // The port has reported the store error. Without the record there is no result to return.
      return undefined
    }
  }
}
