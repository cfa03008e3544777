import { InvalidOptionsError, LeaseLostError, OutcomeUnknownError, hasCode } from '../errors.ts'
import { RETENTION_MS_MAX } from '../engine/policy.ts'
import { describe, wholeNumber } from '../options.ts'
import { deterministicIdOf, downstreamKeyOf, idSourceOf, type Scope } from '../record/identity.ts'
import type { Completion, SettleOutcome } from '../store/store.ts'
import {
  IN_OPERATION,
  IN_TRANSACTION,
  JOINED,
  JOINING,
  OPEN,
  UNANSWERED,
  type AttemptState,
  type KeyState,
} from './attempt-state.ts'
import { hasOwnResult } from './attempt-verdict.ts'
import type { ExecutionParts, ExecutionRequest } from './execution-parts.ts'
import type { HeldLease } from './held-lease.ts'
import { ATTEMPT, OperationAttempt, type HasAttempt } from './operation-attempt.ts'
import type { RunContext } from './run-context.ts'

/** The attempt that a context belongs to. */
export interface ContextHost {
  readonly held: HeldLease
  readonly state: AttemptState
  /** Finds out whether a transaction took effect although its commit was not answered. */
  probeCommit(): Promise<SettleOutcome | undefined>
}

/**
 * The context of one attempt. Every method reads and sets the one `AttemptState`; the other fields
 * are facts by which `attempt-verdict.ts` judges the attempt after the work has ended.
 */
export class LiveContext implements RunContext, HasAttempt {
  readonly key: string
  readonly scope: Scope
  readonly identity: string
  readonly recordId: string
  readonly attempt: number
  readonly state: AttemptState
  retentionMs: number
  /** The work has asked for a downstream key, so an outside effect may have begun. */
  effectBegun = false
  /** The last declaration of the work (or of this context) about the attempt. */
  declared: 'not_executed' | 'unknown' | undefined
  /**
   * The last transaction that provably did not commit ended with this error. The rollback proves
   * something only about work that fails with the same error: work that goes on after it may have
   * acted by other means.
   */
  rollback: { readonly error: unknown } | undefined
  /**
   * Resolves when every transaction has ended. Never rejects: the caller of the transaction has the
   * error. The attempt must not be settled before that, even if the work did not await its
   * transaction.
   */
  transactionsEnded: Promise<void> | undefined
  /** Created when an operation or the guard first asks for it. */
  operation: OperationAttempt | undefined
  /** Every result that the work has passed to `completeIn`. */
  #completeInResults: Uint8Array[] | undefined
  readonly #parts: ExecutionParts
  readonly #request: ExecutionRequest
  readonly #host: ContextHost

  constructor(parts: ExecutionParts, request: ExecutionRequest, host: ContextHost) {
    this.#parts = parts
    this.#request = request
    this.#host = host
    const { claimed, policy } = request
    this.key = request.key
    this.scope = request.scope
    this.identity = claimed.lease.identity
    this.recordId = claimed.recordId
    this.attempt = claimed.lease.attempt
    this.state = host.state
    this.retentionMs = policy.retentionMs
  }

  get signal(): AbortSignal {
    return this.#host.held.signal
  }

  get [ATTEMPT](): OperationAttempt {
    return (this.operation ??= new OperationAttempt(this.#parts, this.#request, this))
  }

  /** An earlier attempt has begun an operation under this key. */
  get wasBegun(): boolean {
    return this.#request.claimed.recoveryPoint !== undefined
  }

  assertHeld(): void {
    this.#host.held.assertHeld()
  }

  downstreamKey(name = 'default'): string {
    this.effectBegun = true
    return downstreamKeyOf(idSourceOf(this.#request.claimed), name)
  }

  deterministicId(name: string): string {
    return deterministicIdOf(idSourceOf(this.#request.claimed), name)
  }

  notExecuted(): void {
    this.declared = 'not_executed'
  }

  outcomeUnknown(): void {
    this.declared = 'unknown'
  }

  extendRetention(retentionMs: number): void {
    const limits = { fallback: 0, min: 1, max: RETENTION_MS_MAX }
    const ms = wholeNumber('extendRetention', retentionMs, limits)
    this.retentionMs = Math.max(this.retentionMs, ms)
  }

  transaction<Tx>(work: (tx: Tx) => Uint8Array | Promise<Uint8Array>): Promise<Uint8Array> {
    return this.#trackEnd(this.#transaction(work))
  }

  completeIn(tx: unknown, result: Uint8Array): Promise<void> {
    return this.#trackEnd(this.#completeIn(tx, result))
  }

  /** See `OperationAttempt.begin`. */
  beginOperation(ended: Promise<unknown>): void {
    this.#checkFree()
    this.#checkNotJoined()
    this.state.key = IN_OPERATION
    void this.#trackEnd(ended).catch(() => undefined)
  }

  /** Whether the work has passed this result to `completeIn`, even in a call that failed. */
  hasPassedToCompleteIn(result: Uint8Array): boolean {
    return this.#completeInResults?.some((passed) => isEqual(passed, result)) === true
  }

  #trackEnd<Result>(ended: Promise<Result>): Promise<Result> {
    const before = this.transactionsEnded
    this.transactionsEnded = ended.then(
      () => before,
      () => before,
    )
    // A new promise instead of `ended`: `ended` has handlers now, so Node would not report its
    // rejection to a caller that forgets to await it.
    return ended.then((result) => result)
  }

  /** Allows one transaction at a time, and none if the record may have its result already. */
  #checkFree(): void {
    const { work, key } = this.state
    if (work !== 'running') {
      throw new InvalidOptionsError('the work of this attempt has ended already')
    }
    switch (key.kind) {
      case 'committed':
        throw new InvalidOptionsError('this attempt has committed its result already')
      case 'operation':
      case 'handed_over':
        throw new InvalidOptionsError('an operation runs under this attempt: use its phases')
      case 'unanswered':
        // The earlier commit may still take effect. The result of a second transaction would then
        // be reported although it is not on record.
        this.declared = 'unknown'
        throw new OutcomeUnknownError('the commit of an earlier transaction was never answered')
      case 'transaction':
      case 'joining':
        throw new InvalidOptionsError('a transaction of this attempt is still open')
      case 'open':
      case 'joined':
        this.assertHeld()
    }
  }

  #checkNotJoined(): void {
    if (!this.state.isJoined) return
    throw new InvalidOptionsError(
      'this attempt completes its key with completeIn, in a transaction that the work has begun',
    )
  }

  /** A result from outside the operation would discard the phases on record. */
  #checkNotBegun(): void {
    if (!this.wasBegun) return
    throw new InvalidOptionsError(
      'an operation was begun under this key, and only its own phases can complete it: run it',
    )
  }

  async #completeIn(tx: unknown, result: Uint8Array): Promise<void> {
    const { store, port } = this.#parts
    const { state } = this
    const { held } = this.#host
    if (store.settleIn === undefined) {
      throw new InvalidOptionsError(
        `the ${store.name} store cannot complete a key in a transaction that the work has begun`,
      )
    }
    if (!(result instanceof Uint8Array)) {
      throw new InvalidOptionsError(
        `completeIn must be given bytes to record, got ${describe(result)}`,
      )
    }
    // Noted even if the call is refused below: the work may commit its rows anyway.
    if (state.work === 'running') (this.#completeInResults ??= []).push(result)
    this.#checkFree()
    this.#checkNotBegun()
    const before = state.key
    let after: KeyState = before.kind === 'joined' ? before : JOINED
    // Set before the statement is sent: the work may commit even if this call fails.
    state.key = JOINING
    held.renewAlone()
    const completion = { result, retentionMs: this.retentionMs }
    try {
      const outcome = await port.askInCallerTransaction('settleIn', () =>
        store.settleIn!(tx, held.lease, completion),
      )
      if (outcome.kind === 'settled') return
      // Thrown into the work, so that it rolls back its transaction.
      const error = new LeaseLostError(this.recordId)
      if (hasOwnResult(outcome)) {
        after = { kind: 'joined', overtaken: error }
      } else {
        after = before
        this.rollback = { error }
      }
      throw error
    } catch (error) {
      if (hasCode(error, 'INVALID_OPTIONS')) {
        // `tx` is not a transaction: rows that the work has written may be kept without the key.
        after = before
        this.declared = 'unknown'
      }
      throw error
    } finally {
      state.key = after
    }
  }

  async #transaction<Tx>(work: (tx: Tx) => Uint8Array | Promise<Uint8Array>): Promise<Uint8Array> {
    const { store, port } = this.#parts
    const begin = store.transaction?.bind(store)
    if (begin === undefined) {
      throw new InvalidOptionsError(
        `the ${store.name} store has no transactions; use one in the database of your own data`,
      )
    }
    this.#checkFree()
    this.#checkNotBegun()
    this.#checkNotJoined()

    const callback = new TransactionCallback(work, () => this.retentionMs)
    let outcome: SettleOutcome | undefined
    this.state.key = IN_TRANSACTION
    try {
      const { lease } = this.#host.held
      outcome = await port.transact(this.scope.tenant, ({ signal, during }) =>
        begin(
          lease,
          during((tx) => callback.run(tx as Tx)),
          signal,
        ),
      )
    } catch (error) {
      // The store itself does not know the outcome of the commit, and the record cannot tell it.
      if (hasCode(error, 'OUTCOME_UNKNOWN')) this.declared = 'unknown'
      else if (callback.close() === 'nothing to commit') this.rollback = { error }
      else outcome = await this.#probeCommit(error)
      if (outcome === undefined) throw error
    } finally {
      if (this.state.key === IN_TRANSACTION) this.state.key = OPEN
    }
    return this.#conclude(outcome, callback.result)
  }

  /** The store failed around the commit: only the record can tell whether it took effect. */
  async #probeCommit(error: unknown): Promise<SettleOutcome> {
    this.state.key = UNANSWERED
    const outcome = await this.#host.probeCommit()
    if (outcome === undefined) {
      // The outcome stays unknown even if the work catches this error and returns a result.
      this.declared = 'unknown'
      throw new OutcomeUnknownError('the transaction may or may not have committed', {
        cause: error,
      })
    }
    if (outcome.kind === 'settled') {
      // The record accepted the settlement `unknown`, so the transaction had not committed.
      this.rollback = { error }
      throw error
    }
    return outcome
  }

  #conclude(outcome: SettleOutcome, result: Uint8Array | undefined): Uint8Array {
    const isCommitted = outcome.kind === 'settled' || hasOwnResult(outcome)
    if (isCommitted && result === undefined) {
      // The store did not call the work, because an earlier transaction had committed after all.
      this.declared = 'unknown'
      throw new OutcomeUnknownError('an earlier transaction of this attempt has committed')
    }
    if (!isCommitted || result === undefined) {
      const error = new LeaseLostError(this.recordId)
      this.rollback = { error }
      throw error
    }
    const expiresAt =
      outcome.kind === 'settled'
        ? outcome.expiresAt
        : new Date(this.#parts.clock.nowMs() + this.retentionMs)
    this.state.key = { kind: 'committed', result, expiresAt }
    return result
  }
}

/** One call of the work of a transaction. Stays synchronous if the work is synchronous. */
class TransactionCallback<Tx> {
  result: Uint8Array | undefined
  #state: 'not entered' | 'entered' | 'failed' | 'closed' = 'not entered'
  readonly #work: (tx: Tx) => Uint8Array | Promise<Uint8Array>
  readonly #retentionMs: () => number

  constructor(work: (tx: Tx) => Uint8Array | Promise<Uint8Array>, retentionMs: () => number) {
    this.#work = work
    this.#retentionMs = retentionMs
  }

  run(tx: Tx): Completion | Promise<Completion> {
    // A store that has failed, such as by a timeout while it waited for a connection, must not call
    // the work after that.
    if (this.#state === 'closed') {
      throw new InvalidOptionsError('this transaction has failed already')
    }
    this.#state = 'entered'
    try {
      const result = this.#work(tx)
      return result instanceof Promise ? this.#awaited(result) : this.#completion(result)
    } catch (error) {
      this.#state = 'failed'
      throw error
    }
  }

  /**
   * Called when the store has failed. If the work was never called, or threw, there was nothing to
   * commit. Otherwise the store may have failed before or after the commit.
   */
  close(): 'nothing to commit' | 'perhaps committed' {
    const isOpen = this.#state === 'entered'
    this.#state = 'closed'
    return isOpen ? 'perhaps committed' : 'nothing to commit'
  }

  async #awaited(pending: Promise<Uint8Array>): Promise<Completion> {
    try {
      return this.#completion(await pending)
    } catch (error) {
      this.#state = 'failed'
      throw error
    }
  }

  /** Throws inside the transaction: a result that cannot be recorded rolls it back. */
  #completion(result: unknown): Completion {
    if (!(result instanceof Uint8Array)) {
      throw new InvalidOptionsError(
        `the work of a transaction must return bytes to record, got ${describe(result)}`,
      )
    }
    this.result = result
    return { result, retentionMs: this.#retentionMs() }
  }
}

function isEqual(a: Uint8Array, b: Uint8Array): boolean {
  return a.length === b.length && a.every((byte, index) => byte === b[index])
}
