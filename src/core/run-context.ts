import { ATTEMPT, type Attempt, type HasAttempt, type OperationEnd } from './attempt.ts'
import type { Step, StepOutcome } from './durable-store.ts'
import { InvalidOptionsError, LeaseLostError, OutcomeUnknownError, hasCode } from './errors.ts'
import type { ExecutionParts, ExecutionRequest } from './execution-parts.ts'
import type { HeldLease } from './held-lease.ts'
import { deterministicIdOf, downstreamKeyOf, type Scope } from './identity.ts'
import { describe, wholeNumber } from './options.ts'
import { RETENTION_MS_MAX } from './policy.ts'
import type { Completion, SettleOutcome } from './store.ts'

/** What work can know and do while it holds its key. */
export interface RunContext {
  readonly key: string
  readonly scope: Scope
  /** Hash over tenant, operation and key: names the key where the key itself must not appear. */
  readonly identity: string
  /** Opaque and the same on every attempt: business rows may refer to it. */
  readonly recordId: string
  /** 1 for the first run, counting up with every retry. */
  readonly attempt: number

  /** Aborts when the lease is lost or `maxRunMs` has passed. Hand it to whatever can be stopped. */
  readonly signal: AbortSignal

  /**
   * Throws `LeaseLostError` unless this attempt still holds the key. Call it right before an
   * outside effect: it narrows the window in which two attempts could act, but cannot close it.
   */
  assertHeld(): void

  /**
   * A key to send along with an outside effect, the same on every attempt, at most 64 characters.
   * Asking for it means that the effect has begun: if the work fails after that without a word
   * from `NotExecutedError`, its outcome is unknown.
   */
  downstreamKey(name?: string): string

  /** A UUID that is the same on every attempt: for ids and nonces that the work needs to make. */
  deterministicId(name: string): string

  /** Declares that this attempt had no effect, whatever its result says: the key may run again. */
  notExecuted(): void

  /** Declares that nobody can know whether this attempt had an effect. */
  outcomeUnknown(): void

  /** Keeps the result longer than the policy says, counted from its completion. */
  extendRetention(retentionMs: number): void

  /**
   * Runs `work` inside a transaction of the store and commits the key together with what it
   * wrote: both take effect, or neither does. `work` returns the bytes to record. Keep it short;
   * on SQLite keep it synchronous, because it holds the file's only writer.
   */
  transaction<Tx>(work: (tx: Tx) => Uint8Array | Promise<Uint8Array>): Promise<Uint8Array>

  /**
   * Completes the key as a statement of a transaction that the work has begun itself, in the
   * database of the store: what was written in it commits with the key, or neither does. Call it
   * last, right before the commit. Where the lease is lost, or the key was completed before, it
   * throws `LeaseLostError`: let it roll the transaction back.
   *
   * Nothing is decided until the work commits, so the engine asks the record afterwards: what was
   * committed is the result, whatever the work returns. If nothing was, the work's end counts, as
   * ever; but not if it returns the very bytes that it gave here, for they stand for the commit:
   * its outcome is unknown then, because part of the transaction may be kept (savepoints).
   * A transaction that was rolled back may be tried again, with a new call; of several, at most
   * one can commit.
   */
  completeIn(tx: unknown, result: Uint8Array): Promise<void>
}

/** The attempt that a context belongs to, as far as the context asks things of it. */
export interface ContextHost {
  /** Finds out whether a transaction whose commit was not answered took effect. */
  probe(): Promise<SettleOutcome | undefined>
  /** Completes the key in a transaction of the caller's, where the store can. */
  settleIn(tx: unknown, completion: Completion): Promise<SettleOutcome>
  /** What an operation sees of this attempt. */
  attempt(): Attempt
}

type StepEnding = Step['end']

/** The context of one attempt, and what the engine needs to know of it afterwards. */
export class LiveContext implements RunContext, HasAttempt {
  readonly key: string
  readonly scope: Scope
  readonly identity: string
  readonly recordId: string
  readonly attempt: number
  /** An outside effect was begun. */
  effectBegun = false
  /**
   * With this error a transaction of this attempt ended, and it is known not to have committed.
   * It proves something only about work that fails with this very error: whatever came after it
   * may have acted by other means.
   */
  rollback: { readonly error: unknown } | undefined
  /** What the work declared about itself. */
  declared: 'not_executed' | 'unknown' | undefined
  /** The result that a transaction of this attempt has committed. */
  committed: { readonly result: Uint8Array; readonly expiresAt: Date } | undefined
  /** A transaction of the work's own may have completed the key: only the record can tell. */
  joined = false
  /** The work was told by this error that an earlier transaction of its own had committed. */
  overtaken: LeaseLostError | undefined
  /** The work has ended: a transaction that begins now would commit beside its result. */
  ended = false
  /**
   * Resolves when every transaction has ended, well or badly: its caller has the error. Work that
   * does not wait for its own transaction must still not be settled beside it.
   */
  transactionEnded: Promise<void> | undefined
  /** An operation runs under this attempt: its steps alone complete the key. */
  hasOperation = false
  /** How the attempt ends, because its operation has not come to its end. */
  operationEnd: OperationEnd | undefined
  /** A step has left the rest to a worker. */
  handedOver = false
  retentionMs: number
  #given: Uint8Array[] | undefined
  #transactionOpen = false
  /** A step of an operation is on record. */
  #hasStepped = false
  /** The commit of a transaction was not answered. */
  #unanswered = false
  #attempt: Attempt | undefined
  readonly #parts: ExecutionParts
  readonly #held: HeldLease
  readonly #host: ContextHost
  /** An earlier attempt has begun an operation. */
  readonly #wasBegun: boolean

  constructor(
    parts: ExecutionParts,
    request: ExecutionRequest,
    held: HeldLease,
    host: ContextHost,
  ) {
    this.#parts = parts
    this.#held = held
    this.#host = host
    const { claimed, policy } = request
    this.key = request.key
    this.scope = request.scope
    this.identity = claimed.lease.identity
    this.recordId = claimed.recordId
    this.attempt = claimed.lease.attempt
    this.retentionMs = policy.retentionMs
    this.#wasBegun = claimed.recoveryPoint !== undefined
  }

  get signal(): AbortSignal {
    return this.#held.signal
  }

  /** Whether the record may have a result, or another owner, by what this attempt has done. */
  get mayHaveCommitted(): boolean {
    return this.committed !== undefined || this.joined || this.handedOver
  }

  get [ATTEMPT](): Attempt {
    return (this.#attempt ??= this.#host.attempt())
  }

  /** Something of an operation is on record. */
  get isBegun(): boolean {
    return this.#wasBegun || this.#hasStepped
  }

  assertHeld(): void {
    this.#held.assertHeld()
  }

  downstreamKey(name = 'default'): string {
    this.effectBegun = true
    return downstreamKeyOf(this.recordId, name)
  }

  deterministicId(name: string): string {
    return deterministicIdOf(this.recordId, name)
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
    return this.#waitedFor(this.#transaction(work))
  }

  completeIn(tx: unknown, result: Uint8Array): Promise<void> {
    return this.#waitedFor(this.#completeIn(tx, result))
  }

  /** See `Attempt.begin`. */
  beginOperation(ended: Promise<unknown>): void {
    this.#checkFree()
    if (this.joined) {
      throw new InvalidOptionsError('this attempt completes its key in a transaction of its own')
    }
    this.hasOperation = true
    void this.#waitedFor(ended).catch(() => undefined)
  }

  /** A step of the operation. `commit`: how it is brought into the store. */
  async takeStep(
    commit: () => Promise<StepOutcome>,
    endOf: () => StepEnding,
    { mustHold = true }: { readonly mustHold?: boolean } = {},
  ): Promise<StepOutcome> {
    if (!this.hasOperation) throw new InvalidOptionsError('no operation runs under this attempt')
    if (this.committed !== undefined || this.handedOver || this.operationEnd !== undefined) {
      throw new InvalidOptionsError('the operation of this attempt has ended already')
    }
    if (mustHold) this.#held.assertHeld()
    const outcome = await commit()
    if (outcome.kind !== 'advanced') return outcome
    this.#hasStepped = true
    const end = endOf()
    if (end?.kind === 'hand_over') this.handedOver = true
    if (end?.kind === 'complete') {
      this.committed = { result: end.result, expiresAt: outcome.expiresAt }
    }
    return outcome
  }

  #waitedFor<Result>(ended: Promise<Result>): Promise<Result> {
    const before = this.transactionEnded
    this.transactionEnded = ended.then(
      () => before,
      () => before,
    )
    // Not `ended` itself: a caller that forgets to wait should hear of a failure from Node.
    return ended.then((result) => result)
  }

  /** Its phases would be forgotten with a result from elsewhere. */
  #checkNotBegun(): void {
    if (!this.isBegun) return
    throw new InvalidOptionsError(
      'an operation was begun under this key, and only its own phases can complete it: run it',
    )
  }

  /** One at a time, and none where the record may have its result already. */
  #checkFree(): void {
    if (this.ended) throw new InvalidOptionsError('the work of this attempt has ended already')
    if (this.committed !== undefined) {
      throw new InvalidOptionsError('this attempt has committed its result already')
    }
    if (this.hasOperation) {
      throw new InvalidOptionsError('an operation runs under this attempt: use its phases')
    }
    if (this.#unanswered) {
      // It may still land, and then this one would report a result that is not on record.
      this.declared = 'unknown'
      throw new OutcomeUnknownError('the commit of an earlier transaction was never answered')
    }
    if (this.#transactionOpen) {
      throw new InvalidOptionsError('a transaction of this attempt is still open')
    }
    this.#held.assertHeld()
  }

  /** Whether the work has given this result to a transaction of its own, whatever became of it. */
  hasGiven(result: Uint8Array): boolean {
    return this.#given?.some((given) => isEqual(given, result)) === true
  }

  async #completeIn(tx: unknown, result: Uint8Array): Promise<void> {
    const { store } = this.#parts
    if (store.settleIn === undefined) {
      throw new InvalidOptionsError(
        `the ${store.name} store cannot complete a key in a transaction of yours`,
      )
    }
    if (!(result instanceof Uint8Array)) {
      throw new InvalidOptionsError(
        `completeIn must be given bytes to record, got ${describe(result)}`,
      )
    }
    // Also where nothing is sent: the work may commit its rows all the same.
    if (!this.ended) (this.#given ??= []).push(result)
    this.#checkFree()
    this.#checkNotBegun()
    const before = this.joined
    // From the moment it is sent: the work may commit whatever it hears of this call.
    this.joined = true
    this.#held.renewAlone()
    this.#transactionOpen = true
    try {
      const outcome = await this.#host.settleIn(tx, { result, retentionMs: this.retentionMs })
      if (outcome.kind === 'settled') return
      throw this.#fenced(outcome, before)
    } catch (error) {
      if (hasCode(error, 'INVALID_OPTIONS')) {
        // There is no transaction: what the work has written before may be kept, without its key.
        this.joined = before
        this.declared = 'unknown'
      }
      throw error
    } finally {
      this.#transactionOpen = false
    }
  }

  /** With this error the transaction of the work is to be rolled back. */
  #fenced(
    { own, state }: Extract<SettleOutcome, { kind: 'fenced' }>,
    before: boolean,
  ): LeaseLostError {
    const error = new LeaseLostError(this.recordId)
    if (own && state === 'completed') {
      this.overtaken = error
    } else {
      this.joined = before
      this.rollback = { error }
    }
    return error
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
    if (this.joined) {
      throw new InvalidOptionsError('this attempt completes its key in a transaction of its own')
    }

    const attempt = new TransactionAttempt(work, () => this.retentionMs)
    let outcome: SettleOutcome | undefined
    this.#transactionOpen = true
    try {
      const { lease } = this.#held
      outcome = await port.transact(this.scope.tenant, ({ signal, during }) =>
        begin(
          lease,
          during((tx) => attempt.run(tx as Tx)),
          signal,
        ),
      )
    } catch (error) {
      // The store itself cannot tell what became of it: nor can we, by asking the record.
      if (hasCode(error, 'OUTCOME_UNKNOWN')) this.declared = 'unknown'
      else if (attempt.close() === 'nothing to commit') this.rollback = { error }
      else outcome = await this.#findOut(error)
      if (outcome === undefined) throw error
    } finally {
      this.#transactionOpen = false
    }
    return this.#conclude(outcome, attempt)
  }

  /** The store failed around the commit: only the record itself can tell whether it took hold. */
  async #findOut(error: unknown): Promise<SettleOutcome> {
    this.#unanswered = true
    const probed = await this.#host.probe()
    if (probed === undefined) {
      // Work that catches this and ends well has not found out either.
      this.declared = 'unknown'
      throw new OutcomeUnknownError('the transaction may or may not have committed', {
        cause: error,
      })
    }
    if (probed.kind === 'settled') {
      // The doubt took hold, so the commit did not.
      this.rollback = { error }
      throw error
    }
    return probed
  }

  #conclude(outcome: SettleOutcome, attempt: TransactionAttempt<never>): Uint8Array {
    const { result } = attempt
    const byUs = outcome.kind === 'settled' || (outcome.own && outcome.state === 'completed')
    if (byUs && result === undefined) {
      // The store did not enter the work, because an earlier transaction had committed after all.
      this.declared = 'unknown'
      throw new OutcomeUnknownError('an earlier transaction of this attempt has committed')
    }
    if (!byUs || result === undefined) {
      const error = new LeaseLostError(this.recordId)
      this.rollback = { error }
      throw error
    }
    const expiresAt =
      outcome.kind === 'settled'
        ? outcome.expiresAt
        : new Date(this.#parts.clock.nowMs() + this.retentionMs)
    this.committed = { result, expiresAt }
    return result
  }
}

/** One pass through the caller's transaction callback. Stays synchronous where the callback is. */
class TransactionAttempt<Tx> {
  result: Uint8Array | undefined
  #state: 'not entered' | 'entered' | 'failed' | 'closed' = 'not entered'
  readonly #work: (tx: Tx) => Uint8Array | Promise<Uint8Array>
  readonly #retentionMs: () => number

  constructor(work: (tx: Tx) => Uint8Array | Promise<Uint8Array>, retentionMs: () => number) {
    this.#work = work
    this.#retentionMs = retentionMs
  }

  run(tx: Tx): Completion | Promise<Completion> {
    // A store that gave up waiting for a connection must not enter the work after all.
    if (this.#state === 'closed')
      throw new InvalidOptionsError('this transaction has failed already')
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
   * The store has failed. Where the callback was never entered, or threw, there was nothing to
   * commit; otherwise the failure may have come around the commit.
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

  /** Throws inside the transaction, so that what cannot be recorded is rolled back. */
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
