/** An operation and the attempt that runs it: how steps are committed and how the attempt ends. */
import type { EncryptionRule } from '../encryption.ts'
import type { EngineEvent, EventSubject } from '../events.ts'
import { InvalidOptionsError, isRejected } from '../errors.ts'
import { idSourceOf } from '../record/identity.ts'
import type { OnLapse } from '../record/record.ts'
import type { PhaseStore, Step, StepOutcome } from '../store/durable-store.ts'
import type { StorePort } from '../store/store-port.ts'
import type { ClaimedFrom, Lease, Store } from '../store/store.ts'
import type { Clock } from '../time/clock.ts'
import { backoffMs, retry, type Backoff } from '../time/retry.ts'
import { HANDED_OVER } from './attempt-state.ts'
import type { ExecutionParts, ExecutionRequest } from './execution-parts.ts'
import type { LiveContext } from './live-context.ts'

/** The pauses between failed calls that record a step. */
const STEP_BACKOFF: Backoff = { firstMs: 50, maxMs: 1_000 }

/** How an attempt ends when its operation has not completed the key. */
export type OperationEnd =
  /** No effect is under way: a retry may resume at once, a worker after `resumeAfterMs`. */
  | { readonly kind: 'release'; readonly resumeAfterMs: number }
  /** An outside effect may have happened, or the operation has failed too often. */
  | {
      readonly kind: 'doubt'
      readonly reconcileAfterMs: number
      readonly errorCode: string | undefined
    }

/**
 * The key under which a context keeps its `OperationAttempt`. The object is created on the first
 * read, because most work runs no operation. A `WeakMap` would keep all the objects of each request
 * alive until a full garbage collection.
 */
export const ATTEMPT: unique symbol = Symbol('attempt')

/** A context of the engine, or a wrapper that stands for the same attempt. */
export interface HasAttempt {
  readonly [ATTEMPT]: OperationAttempt | undefined
}

export function attemptOf(context: object): OperationAttempt | undefined {
  return (context as Partial<HasAttempt>)[ATTEMPT]
}

/**
 * The attempt as an operation uses it. Not part of the public context: code that commits steps must
 * also tell the attempt how it ends.
 */
export class OperationAttempt {
  readonly subject: EventSubject
  /** Source of the downstream keys and deterministic ids of the operation. */
  readonly idSource: string
  readonly attempt: number
  readonly store: Store
  readonly clock: Clock
  readonly from: ClaimedFrom
  /** The recovery point on record at the time of the claim; absent without an operation. */
  readonly recoveryPoint: string | undefined
  readonly onLapse: OnLapse
  /** The encryption of the engine, for operations without their own. */
  readonly encryption: EncryptionRule
  /** A store call with the engine's timeout; a failure is reported as a store error. */
  readonly ask: <Answer>(
    call: string,
    ask: (signal: AbortSignal) => Promise<Answer>,
  ) => Promise<Answer>
  readonly #port: StorePort
  readonly #emit: (event: EngineEvent) => void
  readonly #lease: Lease
  readonly #settleTimeoutMs: number
  readonly #context: LiveContext
  #isBegun: boolean
  #end: OperationEnd | undefined

  constructor(
    { store, clock, port, emit, encryption }: ExecutionParts,
    { claimed, policy }: ExecutionRequest,
    context: LiveContext,
  ) {
    const { identity, scope, recordId } = context
    this.subject = { identity, tenant: scope.tenant, operation: scope.operation, recordId }
    this.idSource = idSourceOf(claimed)
    this.attempt = claimed.lease.attempt
    this.store = store
    this.clock = clock
    this.from = claimed.from
    this.recoveryPoint = claimed.recoveryPoint
    this.onLapse = policy.onLapse
    this.encryption = encryption
    this.ask = (call, ask) => port.ask(call, ask)
    this.#port = port
    this.#emit = emit
    this.#lease = claimed.lease
    this.#settleTimeoutMs = policy.settleTimeoutMs
    this.#context = context
    this.#isBegun = claimed.recoveryPoint !== undefined
  }

  get signal(): AbortSignal {
    return this.#context.signal
  }

  /** How long the result of this attempt is kept. */
  get retentionMs(): number {
    return this.#context.retentionMs
  }

  /** A step of this attempt or of an earlier one is on record. */
  get isBegun(): boolean {
    return this.#isBegun
  }

  /** How the attempt ends, if its operation has failed. */
  get end(): OperationEnd | undefined {
    return this.#end
  }

  /** The attempt ends before its operation: a retry or a worker resumes it, or it is reconciled. */
  get willResume(): boolean {
    return this.#end !== undefined
  }

  assertHeld(): void {
    this.#context.assertHeld()
  }

  emit(event: EngineEvent): void {
    this.#emit(event)
  }

  /**
   * Starts the operation: from now on only steps complete the key. Throws if the attempt has ended
   * or already runs an operation. The attempt is not settled before `ended` resolves.
   */
  begin(ended: Promise<unknown>): void {
    this.#context.beginOperation(ended)
  }

  /** Ends the attempt with a failed operation. Only the first call counts. */
  fail(end: OperationEnd): void {
    this.#end ??= end
  }

  /** Commits a step in one transaction with the rows that `work` writes. */
  advance(work: (tx: unknown) => Step | Promise<Step>): Promise<StepOutcome> {
    let step: Step | undefined
    const keep = (returned: Step): Step => (step = returned)
    return this.#take(
      () => {
        const phases = phasesOf(this.store)
        return this.#port.transact(this.subject.tenant, ({ signal, during }) =>
          phases.advance(
            this.#lease,
            during((tx) => withStep(work(tx), keep)),
            signal,
          ),
        )
      },
      () => step?.end,
    )
  }

  /**
   * Commits a step without rows, and tries again for as long as a settlement is tried. The result
   * of an effect is sent even if the lease counts as lost here: only the store knows whether it is
   * lost, and only this process knows the result.
   */
  record(step: Step): Promise<StepOutcome> {
    return this.#take(
      () => this.#recordWithRetries(step),
      () => step.end,
      { mustHold: step.phase?.kind !== 'result' },
    )
  }

  /** `commit` writes the step to the store; `endOf` is read after that. */
  async #take(
    commit: () => Promise<StepOutcome>,
    endOf: () => Step['end'],
    { mustHold = true }: { readonly mustHold?: boolean } = {},
  ): Promise<StepOutcome> {
    this.#checkRunning()
    if (mustHold) this.#context.assertHeld()
    const outcome = await commit()
    if (outcome.kind !== 'advanced') return outcome
    this.#isBegun = true
    const end = endOf()
    const { state } = this.#context
    if (end?.kind === 'hand_over') state.key = HANDED_OVER
    if (end?.kind === 'complete') {
      state.key = { kind: 'committed', result: end.result, expiresAt: outcome.expiresAt }
    }
    return outcome
  }

  #checkRunning(): void {
    const { key } = this.#context.state
    if (key.kind === 'open') {
      throw new InvalidOptionsError('no operation runs under this attempt')
    }
    if (key.kind !== 'operation' || this.#end !== undefined) {
      throw new InvalidOptionsError('the operation of this attempt has ended already')
    }
  }

  /** Repeating is safe: the store answers a repeated step as it answered the first. */
  async #recordWithRetries(step: Step): Promise<StepOutcome> {
    const { clock } = this
    const phases = phasesOf(this.store)
    return retry(
      {
        clock,
        deadlineMs: clock.monotonicMs() + this.#settleTimeoutMs,
        pauseMs: (failures) => backoffMs(STEP_BACKOFF, failures),
        // The port has reported the store error.
        mayRetry: (error) => !isRejected(error),
      },
      () =>
        this.#port.step(this.subject.tenant, (signal) => phases.record(this.#lease, step, signal)),
    )
  }
}

export function phasesOf(store: Store): PhaseStore {
  if (store.durable !== undefined) return store.durable.phases
  throw new InvalidOptionsError(
    `the ${store.name} store keeps no operations: use oncekey/sqlite, oncekey/postgres or ` +
      'oncekey/mysql for them',
  )
}

/** Synchronous work stays synchronous: on SQLite no other statement may run in between. */
function withStep(step: Step | Promise<Step>, keep: (step: Step) => Step): Step | Promise<Step> {
  return step instanceof Promise ? step.then(keep) : keep(step)
}
