import {
  InvalidOptionsError,
  OutcomeNotRecordedError,
  OutcomeUnknownError,
  isRejected,
} from './errors.ts'
import type { EventSubject } from './events.ts'
import {
  errorCodeOf,
  judgeFailure,
  mayHaveActed,
  type Failure,
  type FailureVerdict,
} from './failure.ts'
import type { Attempt } from './attempt.ts'
import type { ExecutionParts, ExecutionRequest } from './execution-parts.ts'
import { liveAttempt } from './live-attempt.ts'
import { HeldLease, type LeaseListener } from './held-lease.ts'
import type { Proof } from './record.ts'
import { LiveContext, type ContextHost } from './run-context.ts'
import type { RunOutcome } from './run-outcome.ts'
import { describe } from './options.ts'
import type { NotRecorded, SettlingOptions } from './settler.ts'
import type { Completion, RecordView, SettleOutcome, Settlement } from './store.ts'
import { toEnding, type FailedEnd, type Work, type WorkEnd } from './work-end.ts'

export { ExecutionRequest, type Claimed, type ExecutionParts } from './execution-parts.ts'
export type { RunOutcome } from './run-outcome.ts'
export type { Work, WorkEnd } from './work-end.ts'

/** When an `unknown` that no reconciler is known for should be looked at: at once. */
const RECONCILE_AFTER_MS = 0

const NOT_COMPLETED =
  'the work returned the result of a transaction that has not completed its key: nobody can tell ' +
  'whether its rows are kept'

/** One attempt: the work under its lease, and the record brought to what came of it. */
export class Execution implements LeaseListener, ContextHost {
  readonly #parts: ExecutionParts
  readonly #request: ExecutionRequest
  readonly #held: HeldLease
  readonly #context: LiveContext
  /** This attempt has itself brought the record to `unknown`. */
  #doubted = false
  /** The work has ended and its record is being told. */
  #settling = false
  /** Of the work that has run too long, and the doubt that says so, how many are under way. */
  #outliving = 0
  /** Answer the caller; only the first call counts. */
  #resolve!: (outcome: RunOutcome) => void
  #reject!: (error: unknown) => void

  constructor(parts: ExecutionParts, request: ExecutionRequest) {
    this.#parts = parts
    this.#request = request
    this.#held = new HeldLease(parts, request, this)
    this.#context = new LiveContext(parts, request, this.#held, this)
  }

  get #recordId(): string {
    return this.#request.claimed.recordId
  }

  get #identity(): string {
    return this.#held.lease.identity
  }

  /** For those who listen. */
  #subject(): EventSubject {
    return { identity: this.#identity, ...this.#request.scope, recordId: this.#recordId }
  }

  attempt(): Attempt {
    const live = { context: this.#context, subject: this.#subject() }
    return liveAttempt(this.#parts, this.#request, live)
  }

  settleIn(tx: unknown, completion: Completion): Promise<SettleOutcome> {
    const { store, port } = this.#parts
    const { lease } = this.#held
    return port.askJoined('settleIn', () => store.settleIn!(tx, lease, completion))
  }

  leaseLost(): void {
    this.#report('lease_lost')
  }

  leaseOverrun(): void {
    // What came of the work is known and on its way to the store: nothing to doubt.
    if (this.#settling) return
    this.#outliving = 2
    this.#parts.onOutlive(1)
    this.#overrun()
      .finally(() => this.#outlivingEnded())
      .then(this.#resolve, this.#reject)
  }

  /** Counts until both have ended: either may answer the caller, and leave the other under way. */
  #outlivingEnded(): void {
    if (this.#outliving > 0 && --this.#outliving === 0) this.#parts.onOutlive(-1)
  }

  /**
   * Runs the work and settles its record. If the work runs longer than `maxRunMs`, answers
   * without it; whatever it brings in the end is still recorded.
   */
  run(work: Work): Promise<RunOutcome> {
    return new Promise((resolve, reject) => {
      this.#resolve = resolve
      this.#reject = reject
      // After an overrun nobody listens to these any more; the record has been told all the same.
      this.#runAndSettle(work).then(resolve, reject)
    })
  }

  async #runAndSettle(work: Work): Promise<RunOutcome> {
    const context = this.#context
    try {
      let end: WorkEnd
      try {
        end = await work(context)
      } catch (error) {
        return await this.#thrown(error)
      }
      context.ended = true
      if (context.transactionEnded !== undefined) await context.transactionEnded
      this.#workEnded()
      const committed = context.mayHaveCommitted ? await this.#committed() : undefined
      if (committed === undefined) return await this.#afterReturn(end)
      this.#held.stop()
      return committed
    } finally {
      this.#outlivingEnded()
      this.#parts.onSettled(this.#identity)
    }
  }

  async #thrown(error: unknown): Promise<RunOutcome> {
    this.#context.ended = true
    await this.#context.transactionEnded
    this.#workEnded()
    const outcome = await this.#afterThrow(error)
    if (outcome !== undefined) return outcome
    throw error
  }

  #afterReturn(end: WorkEnd): Promise<RunOutcome> {
    const { declared, operationEnd } = this.#context
    const ending = toEnding(end)
    if (operationEnd !== undefined) {
      const result = ending?.result ?? NO_BYTES
      const isDoubt = operationEnd.kind === 'doubt'
      return isDoubt ? this.#doubt(result, undefined) : this.#release(result, 'proven', undefined)
    }
    if (ending === undefined) return this.#withoutResult(end)
    if (declared === 'not_executed') return this.#release(ending.result, 'proven', undefined)
    if (declared === 'unknown') return this.#doubt(ending.result, undefined)
    switch (ending.kind) {
      case 'complete':
        return this.#context.hasGiven(ending.result)
          ? this.#withoutCommit()
          : this.#complete(ending.result)
      case 'release':
        return this.#afterRefusal(ending.result, ending.error)
      case 'fail':
        return this.#afterFailure(ending)
    }
  }

  #workEnded(): void {
    const context = this.#context
    // An operation that was begun is ended by its own steps alone: work that has answered without
    // it must not have its phases forgotten.
    if (context.isBegun && !context.hasOperation && context.declared !== 'unknown') {
      context.operationEnd = { kind: 'release', resumeAfterMs: 0 }
    }
    this.#settling = true
  }

  /**
   * What a transaction of this attempt has committed, as far as that can be told without touching
   * the record. That one of the work's own did not commit is for the settlement to prove: it waits
   * for the transaction to end, and finds its result or takes hold.
   */
  async #committed(): Promise<RunOutcome | undefined> {
    const { committed, joined, handedOver } = this.#context
    if (handedOver) return { kind: 'pending', recordId: this.#recordId }
    if (committed !== undefined) {
      return { kind: 'ran', identity: this.#identity, recordId: this.#recordId, ...committed }
    }
    const recorded = joined ? await this.#recorded() : undefined
    return recorded?.kind === 'ran' ? recorded : undefined
  }

  /** The work ran to its end and left nothing to replay: it may not run again for that. */
  async #withoutResult(end: unknown): Promise<never> {
    await this.#settle(this.#doubtAs('no_result'), undefined)
    throw new InvalidOptionsError(
      `the work must return a Uint8Array, or { kind, result } with one, got ${describe(end)}`,
    )
  }

  /** A refusal has no effect, unless the work had begun one before it refused. */
  #afterRefusal(result: Uint8Array, error: unknown): Promise<RunOutcome> {
    const { effectBegun } = this.#context
    const mayRetry = this.#request.policy.onError === 'retry'
    if (!mayRetry && mayHaveActed({ effectBegun, error })) return this.#doubt(result, error)
    return this.#release(result, 'declared', error)
  }

  async #afterFailure({ result, error, blind, unstorable }: FailedEnd): Promise<RunOutcome> {
    const verdict = unstorable ? this.#judgeUnstorable(error) : this.#judge(error, blind)
    switch (verdict) {
      case 'store':
        return this.#complete(result)
      case 'unknown':
        return this.#doubt(result, error)
      case 'proven':
      case 'declared':
        return this.#release(result, verdict, error)
    }
  }

  /** The work left no bytes, so `store` has nothing to store: caution decides. */
  #judgeUnstorable(error: unknown): Exclude<FailureVerdict, 'store'> {
    const verdict = this.#judge(error)
    if (verdict !== 'store') return verdict
    return judgeFailure(this.#failure(error, false), 'auto') as Exclude<FailureVerdict, 'store'>
  }

  /**
   * The work threw. Returns an outcome where the error was only our own word to the work that it
   * had committed before.
   */
  async #afterThrow(error: unknown): Promise<RunOutcome | undefined> {
    if (this.#context.committed !== undefined || this.#context.handedOver) {
      this.#held.stop()
      return undefined
    }
    const verdict = this.#judgeUnstorable(error)
    const settlement =
      verdict === 'unknown' ? this.#doubtAs(errorCodeOf(error)) : this.#releaseAs(verdict, error)
    const outcome = await this.#settle(settlement, error)
    const ended = await this.#endedBefore(outcome)
    if (ended !== undefined) return ended
    return this.#hasJoined ? this.#afterJoinedThrow(outcome, error) : undefined
  }

  /** A settlement that took hold has proven that no transaction of the work completed the key. */
  async #afterJoinedThrow(
    outcome: SettleOutcome | NotRecorded,
    error: unknown,
  ): Promise<RunOutcome | undefined> {
    if (outcome.kind === 'not_recorded') {
      // Never the work's own word alone: what it takes for undone may be done.
      throw new OutcomeUnknownError('the transaction may or may not have committed', {
        cause: error,
      })
    }
    return hasResult(outcome) && error === this.#context.overtaken ? this.#recorded() : undefined
  }

  /** The last step of an operation had taken hold after all, although its answer was lost. */
  async #endedBefore(outcome: SettleOutcome | NotRecorded): Promise<RunOutcome | undefined> {
    if (!this.#context.hasOperation || outcome.kind !== 'fenced') return undefined
    if (outcome.state === 'pending') return { kind: 'pending', recordId: this.#recordId }
    return outcome.own && outcome.state === 'completed' ? this.#whatTheRecordSays() : undefined
  }

  #judge(error: unknown, blind = false): FailureVerdict {
    const { declared, operationEnd } = this.#context
    if (operationEnd !== undefined) return operationEnd.kind === 'doubt' ? 'unknown' : 'proven'
    if (declared === 'not_executed') return 'proven'
    if (declared === 'unknown') return 'unknown'
    return judgeFailure(this.#failure(error, blind), this.#request.policy.onError)
  }

  #failure(error: unknown, blind: boolean): Failure {
    const { effectBegun, rollback, attempt } = this.#context
    // Not where the key was only joined to a transaction of the work's own: that it was not
    // completed does not prove that the rows were rolled back with it.
    const rolledBack = rollback !== undefined && rollback.error === error
    return { error, blind, effectBegun, rolledBack, attempt }
  }

  async #complete(result: Uint8Array): Promise<RunOutcome> {
    const recordId = this.#recordId
    const { retentionMs } = this.#context
    const { lease } = this.#held
    const { identity } = lease
    const settlement: Settlement = { kind: 'complete', lease, result, retentionMs }
    const outcome = await this.#settle(settlement, undefined)
    switch (outcome.kind) {
      case 'settled':
        if (this.#hasJoined) return this.#settledJoined()
        return { kind: 'ran', identity, recordId, result, expiresAt: outcome.expiresAt }
      case 'fenced':
        return this.#whatTheRecordSays()
      case 'not_recorded':
        if (isRejected(outcome.cause))
          await this.#settle(this.#doubtAs('result_rejected'), undefined)
        // Never the unrecorded result: its caller would take it for done.
        throw new OutcomeNotRecordedError(recordId, outcome.cause)
    }
  }

  /** A transaction of the work's own may have completed the key. */
  get #hasJoined(): boolean {
    return this.#context.joined
  }

  /**
   * The work returned what it gave to its transaction, as if that had committed, and it has not:
   * some databases answer the COMMIT of a failed transaction without an error. Recorded now, the
   * result would acknowledge what was rolled back; run again, the work might do twice what was
   * rolled back only in part, to a savepoint.
   */
  async #withoutCommit(): Promise<RunOutcome> {
    const error = new OutcomeUnknownError(NOT_COMPLETED)
    const outcome = await this.#settle(this.#doubtAs(errorCodeOf(error)), error)
    switch (outcome.kind) {
      case 'settled':
        throw error
      case 'fenced':
        return hasResult(outcome) ? this.#settledJoined() : this.#whatTheRecordSays()
      case 'not_recorded':
        throw new OutcomeNotRecordedError(this.#recordId, outcome.cause)
    }
  }

  /** Settled: by this result, or by that of the work's own transaction, which may be another. */
  async #settledJoined(): Promise<RunOutcome> {
    const recorded = await this.#recorded()
    if (recorded !== undefined) return recorded
    const cause = new Error('its record cannot be read')
    throw new OutcomeNotRecordedError(this.#recordId, cause)
  }

  async #release(result: Uint8Array, proof: Proof, error: unknown): Promise<RunOutcome> {
    const outcome = await this.#settle(this.#releaseAs(proof, error), error)
    if (hasResult(outcome)) return this.#whatTheRecordSays()
    const ended = await this.#endedBefore(outcome)
    if (ended !== undefined) return ended
    const expiresAt = outcome.kind === 'settled' ? outcome.expiresAt : undefined
    return { kind: 'released', recordId: this.#recordId, result, proof, expiresAt }
  }

  async #doubt(result: Uint8Array, error: unknown): Promise<RunOutcome> {
    const outcome = await this.#settle(this.#doubtAs(errorCodeOf(error)), error)
    if (hasResult(outcome)) return this.#whatTheRecordSays()
    const isRecorded = outcome.kind !== 'not_recorded'
    return { kind: 'doubted', recordId: this.#recordId, result, isRecorded }
  }

  #releaseAs(proof: Proof, error: unknown): Settlement {
    const { retentionMs, operationEnd } = this.#context
    const { lease } = this.#held
    const errorCode = errorCodeOf(error)
    const resumeAfterMs = operationEnd?.kind === 'release' ? operationEnd.resumeAfterMs : undefined
    return { kind: 'release', lease, proof, errorCode, retentionMs, resumeAfterMs }
  }

  #doubtAs(errorCode: string | undefined): Settlement {
    const { operationEnd } = this.#context
    const { lease } = this.#held
    if (operationEnd?.kind === 'doubt') {
      const { reconcileAfterMs } = operationEnd
      return {
        kind: 'doubt',
        lease,
        errorCode: operationEnd.errorCode ?? errorCode,
        reconcileAfterMs,
      }
    }
    return { kind: 'doubt', lease, errorCode, reconcileAfterMs: RECONCILE_AFTER_MS }
  }

  /** Settles, keeping the lease alive for as long as that takes. */
  async #settle(settlement: Settlement, error: unknown): Promise<SettleOutcome | NotRecorded> {
    const { settler } = this.#parts
    let abandoned = false
    const onEnd = (late: SettleOutcome | undefined) => {
      abandoned = late === undefined
      this.#held.stop()
      if (late === undefined) this.#report('settle_abandoned')
      else this.#reportSettled(settlement, late, error)
      this.#parts.onSettled(this.#identity)
    }
    const outcome = await settler.settle(settlement, this.#settlingOptions(this.#hasJoined), onEnd)
    if (outcome.kind === 'not_recorded') {
      if (!abandoned) this.#report('settle_late')
      return outcome
    }
    this.#held.stop()
    this.#reportSettled(settlement, outcome, error)
    return outcome
  }

  #settlingOptions(alone: boolean): SettlingOptions {
    const { scope, policy } = this.#request
    return { tenant: scope.tenant, timeoutMs: policy.settleTimeoutMs, alone }
  }

  #reportSettled(settlement: Settlement, outcome: SettleOutcome, error: unknown): void {
    const { attempt } = this.#held.lease
    if (outcome.kind === 'fenced') {
      // A doubt that meets the result of its own attempt is a doubt removed; and so is a release,
      // where the work has committed by itself.
      const { hasOperation } = this.#context
      const isAsking = settlement.kind === 'doubt' || this.#hasJoined || hasOperation
      if (isAsking && hasResult(outcome)) return
      this.#parts.emit({ kind: 'settle_fenced', ...this.#subject(), attempt, error })
    } else if (settlement.kind === 'doubt') {
      const { errorCode } = settlement
      if (!this.#doubted) {
        this.#parts.emit({ kind: 'reconcile_scheduled', ...this.#subject(), errorCode })
      }
      this.#doubted = true
    } else if (this.#doubted) {
      // The work itself, ending late, has given the verdict.
      this.#doubted = false
      const to = settlement.kind === 'complete' ? 'completed' : 'failed_retryable'
      this.#parts.emit({ kind: 'reconcile_resolved', ...this.#subject(), to })
    }
  }

  #report(kind: 'lease_lost' | 'settle_late' | 'settle_abandoned'): void {
    this.#parts.emit({ kind, ...this.#subject(), attempt: this.#held.lease.attempt })
  }

  /** The record moved on while the work ran. If it has a result by now, that one is the answer. */
  async #whatTheRecordSays(): Promise<RunOutcome> {
    const recordId = this.#recordId
    return (await this.#recorded()) ?? { kind: 'lease_lost', recordId }
  }

  /** The result on record. Of this very attempt, where it may have put one there by itself. */
  async #recorded(): Promise<Extract<RunOutcome, { kind: 'ran' | 'replayed' }> | undefined> {
    const recordId = this.#recordId
    const record = await this.#read(this.#identity)
    if (record?.recordId !== recordId || record.state !== 'completed') return undefined
    const { result, expiresAt, attempt } = record
    if (result === undefined) return undefined
    const isOurs = this.#hasJoined && attempt === this.#held.lease.attempt
    const identity = this.#identity
    return { kind: isOurs ? 'ran' : 'replayed', identity, recordId, result, expiresAt }
  }

  async #read(identity: string): Promise<RecordView | undefined> {
    const { store, port } = this.#parts
    try {
      return await port.ask('read', (signal) => store.read({ identity }, signal))
    } catch {
      // Reported by the port as a store error; without the record there is no result to show.
      return undefined
    }
  }

  /**
   * After a commit without an answer: a doubt that takes hold proves that there was no commit
   * before it. (One that comes after it completes the record, unless the key was claimed again by
   * then: once in either case.) A release would prove the same, but would free the key while the
   * work may still begin an outside effect.
   */
  async probe(): Promise<SettleOutcome | undefined> {
    const { settler } = this.#parts
    const settlement = this.#doubtAs('commit_unanswered')
    const outcome = await settler.settle(settlement, this.#settlingOptions(false), () => undefined)
    if (outcome.kind === 'not_recorded') return undefined
    this.#reportSettled(settlement, outcome, undefined)
    return outcome
  }

  /** The work has run too long. It may still end, so only what is true now is said. */
  async #overrun(): Promise<RunOutcome> {
    const recordId = this.#recordId
    const { policy } = this.#request
    const committed = await this.#committed()
    if (committed !== undefined) return committed
    if (policy.onLapse !== 'unknown') {
      // The lease runs out by itself, and the next claim or sweep may run it again.
      const { expiresAt } = this.#request.claimed
      return { kind: 'in_progress', recordId, retryAfterMs: policy.leaseMs, expiresAt }
    }
    const outcome = await this.#settle(this.#doubtAs('max_run_exceeded'), undefined)
    this.#parts.onSettled(this.#identity)
    if (outcome.kind === 'fenced') return this.#whatTheRecordSays()
    return { kind: 'unknown', recordId, retryAfterMs: RECONCILE_AFTER_MS }
  }
}

const NO_BYTES = new Uint8Array(0)

/** The record turned out to have the result of this very attempt. */
function hasResult(outcome: SettleOutcome | NotRecorded): boolean {
  return outcome.kind === 'fenced' && outcome.own && outcome.state === 'completed'
}
