import type { RecordState } from '../record/record.ts'
import type { MessageState, StoredOperation } from './durable-store.ts'
import type { RecordRef, RecordView } from './store.ts'

/** Applies verdicts and the acts of operators. Each is in the audit by the same commit. */
export interface OperatorStore {
  /**
   * Takes `unknown` records that are due for reconciliation, with their operation if they have one.
   * Counts a try on each, and makes it due again in `againMs`, so that no other node takes it until
   * then.
   *
   * Operations and tenants take turns: one record of each operation, and within an operation one of
   * each tenant, which is the longest due of that tenant. Each call continues the turns where the
   * previous call of this store object stopped. A call may return fewer records than are due, but
   * returns none only if none is due.
   */
  takeUnknown(request: UnknownRequest, signal?: AbortSignal): Promise<DueUnknown[]>

  /**
   * Sets the time of the next reconciliation of an `unknown` record. Returns `false`, and writes
   * nothing, if the record is not `unknown` because of this attempt, or has another number of
   * tries: an operator has called `processNow` since, or another node has taken the record.
   */
  postpone(target: Postponement, signal?: AbortSignal): Promise<boolean>

  /** Carries out one act and writes it into the audit, in one commit. */
  act(act: Act, by: Actor, signal?: AbortSignal): Promise<ActOutcome>

  /** Lists the replies of a record that were discarded, newest first. */
  discarded(
    query: { readonly recordId: string; readonly limit: number },
    signal?: AbortSignal,
  ): Promise<DiscardedReply[]>

  /** Lists the audit of one record or message (`subject`), or of all, newest first. */
  audit(
    query: { readonly subject?: string; readonly limit: number },
    signal?: AbortSignal,
  ): Promise<AuditEntry[]>
}

export interface UnknownRequest {
  readonly limit: number
  /** Delay until a record that is returned is due again. */
  readonly againMs: number
  /** Operations to leave out. @default none */
  readonly withoutOperations?: readonly UnknownOperation[] | undefined
  /** Tenants to leave out. @default none */
  readonly withoutTenants?: readonly string[] | undefined
}

/**
 * The operation by which `unknown` records take turns: name and version of the operation on record,
 * or else the operation of the scope, without a version.
 */
export interface UnknownOperation {
  readonly name: string
  readonly version: number | undefined
}

export interface Postponement {
  readonly recordId: string
  readonly attempt: number
  /** The number of tries that the record must have. @default any number */
  readonly tries?: number | undefined
  /** Delay until the next reconciliation. `undefined`: none, the record is left to operators. */
  readonly inMs: number | undefined
}

export interface DueUnknown {
  readonly record: RecordView
  readonly operation: StoredOperation | undefined
}

/**
 * Names an external phase by its downstream key, by the id of its provider, or by its record: then
 * the phase that is `intended`, or else the last that is `done`.
 */
export type PhaseRef =
  | { readonly recordId: string }
  | { readonly downstreamKey: string }
  | { readonly providerId: string }

export type Act =
  /**
   * `resolve` of an effect: records the outcome. `done`: its phase gets this result.
   * `not_executed`: its phase is removed, and the effect may be sent again. An `unknown` record is
   * released, and a worker resumes it. `not_executed` is refused while the record is held.
   */
  | {
      readonly kind: 'conclude'
      readonly phase: PhaseRef
      /** The attempt that must have sent the effect last. @default any attempt */
      readonly attempt?: number | undefined
      readonly finding:
        | {
            readonly kind: 'done'
            readonly result: Uint8Array
            readonly providerId: string | undefined
          }
        | { readonly kind: 'not_executed' }
    }
  /** `resolve` of a record: gives an `unknown` record its verdict, as `Store.resolve` does. */
  | {
      readonly kind: 'resolve'
      readonly ref: RecordRef
      readonly attempt?: number | undefined
      readonly verdict:
        | { readonly kind: 'completed'; readonly result: Uint8Array }
        | { readonly kind: 'failed_retryable' }
      readonly retentionMs: number
    }
  /** Releases a held or `unknown` record: it may run again, and its holder can settle nothing. */
  | { readonly kind: 'release'; readonly ref: RecordRef }
  /**
   * `operator.discardReply`: takes the result from a `completed` record, as `Store.discard` does.
   * Keeps the result, and the operation with its phases, as a `DiscardedReply`, and removes the
   * operation from the record, so that the next attempt starts it from the beginning. Refused if an
   * external phase is `intended` or `done`, unless `despiteEffects`.
   */
  | {
      readonly kind: 'discard_reply'
      readonly ref: RecordRef
      /** The attempt that has made the result. */
      readonly attempt: number
      /** A new seed for the ids of later attempts. @default the seed on record stays */
      readonly idSeed?: string | undefined
      readonly despiteEffects: boolean
    }
  /** `operator.processNow`: makes an `unknown` record or waiting operation due, with 0 tries. */
  | { readonly kind: 'requeue'; readonly ref: RecordRef }
  /** Makes a dead message ready again. Its earlier attempts stay on record. */
  | { readonly kind: 'retry_message'; readonly messageId: string }
  /** Gives up a dead message. Its partition continues. */
  | { readonly kind: 'drop_message'; readonly messageId: string }

/**
 * The stored word of an act. `requeue` is `operator.processNow`, and `conclude` is `resolve` of an
 * effect. The others are named after their methods.
 */
export type ActKind = Act['kind']

export interface Actor {
  /** A person, or a part of the system such as `reconciler` or `webhook`. */
  readonly who: string
  /** The reason, in the words of the actor. */
  readonly why: string
}

/**
 * Why an act was refused: the state of the record or message, or `other_attempt`, or one of these.
 * `no_phase`: the record has no such effect. `effect_done`, `effect_in_doubt`: an outside effect of
 * the record has happened, or may have happened.
 */
export type RefusalReason =
  | RecordState
  | MessageState
  | 'other_attempt'
  | 'no_phase'
  | 'effect_done'
  | 'effect_in_doubt'

export type ActOutcome =
  | {
      readonly kind: 'done'
      /** The id of the record or message. */
      readonly subject: string
      /** The record after the act; absent for a message. */
      readonly record?: RecordView | undefined
    }
  /** Nothing was written: the act was done before, for example by a repeated webhook. */
  | { readonly kind: 'already'; readonly subject: string }
  /** Nothing was written: the state or the attempt does not allow this act. */
  | {
      readonly kind: 'refused'
      readonly subject: string
      readonly reason: RefusalReason
    }
  | { readonly kind: 'not_found' }

export interface AuditEntry extends Actor {
  readonly at: Date
  /** `bust`: an earlier version has removed a completed record. */
  readonly act: ActKind | 'bust'
  /** The id of a record or a message. */
  readonly subject: string
  /** Details in JSON: the verdict, the phase, the state before the act. Never a payload. */
  readonly detail: string
}

/** A result that an operator has discarded, with the operation that has made it. */
export interface DiscardedReply {
  readonly recordId: string
  readonly attempt: number
  readonly discardedAt: Date
  readonly result: Uint8Array
  readonly operation: StoredOperation | undefined
}
