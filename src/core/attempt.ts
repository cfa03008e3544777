import type { Clock } from './clock.ts'
import type { Step, StepOutcome } from './durable-store.ts'
import type { EngineEvent, EventSubject } from './events.ts'
import type { OnLapse } from './record.ts'
import type { ClaimedFrom, Store } from './store.ts'

/**
 * What an operation needs of the attempt that runs it, beyond what work is shown. Not public:
 * whoever commits a step must also say how the attempt ends.
 */
export interface Attempt {
  readonly subject: EventSubject
  readonly attempt: number
  readonly store: Store
  readonly clock: Clock
  readonly signal: AbortSignal
  readonly from: ClaimedFrom
  /** What the record said when it was claimed; absent where it has no operation. */
  readonly recoveryPoint: string | undefined
  readonly onLapse: OnLapse
  /** Something of an operation is on record, of this attempt or an earlier one. */
  readonly isBegun: boolean
  /** How long the result of this attempt is kept. */
  readonly retentionMs: number

  assertHeld(): void

  /** A store call: given up in time, and its failure reported. */
  readonly ask: <Answer>(
    call: string,
    ask: (signal: AbortSignal) => Promise<Answer>,
  ) => Promise<Answer>

  /**
   * From here on the key is completed by steps alone. Throws where the attempt has ended, or runs
   * an operation already. The attempt is not settled before `ended`.
   */
  begin(ended: Promise<unknown>): void

  /** Commits a step together with work of the caller's. */
  advance(work: (tx: unknown) => Step | Promise<Step>): Promise<StepOutcome>

  /**
   * Commits a step, against failures of the store, for as long as a settlement is tried. A result
   * also where the lease counts as lost here: whether it is, the store knows, and the result is
   * known to nobody else.
   */
  record(step: Step): Promise<StepOutcome>

  /** How the attempt ends, now that its operation has failed. */
  fail(end: OperationEnd): void

  /** It has ended, and its operation has not: somebody will go on with it, or look into it. */
  readonly isGoneOnWith: boolean

  emit(event: EngineEvent): void
}

export type OperationEnd =
  /** Nothing is under way: it may be gone on with, by its client at once, by a worker later. */
  | { readonly kind: 'release'; readonly resumeAfterMs: number }
  /** An outside effect may have happened, or it has failed too often. */
  | {
      readonly kind: 'doubt'
      readonly reconcileAfterMs: number
      readonly errorCode: string | undefined
    }

/**
 * Where a context keeps its attempt. Made only when somebody asks: most work runs no operation. A
 * map with weak keys would keep everything about each request alive until a full collection.
 */
export const ATTEMPT: unique symbol = Symbol('attempt')

/** A context of ours, or one that wraps it and stands for the same attempt. */
export interface HasAttempt {
  readonly [ATTEMPT]: Attempt | undefined
}

export function attemptOf(context: object): Attempt | undefined {
  return (context as Partial<HasAttempt>)[ATTEMPT]
}
