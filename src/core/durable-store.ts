import type { RecordState } from './record.ts'
import type { Completion, Lease, RecordRef, RecordView } from './store.ts'

/**
 * What a store with transactions keeps beside its records: operations and their phases, the
 * outbox, and the audit. `store.durable` where a store has it.
 *
 * Like the rest of a store it moves opaque bytes, answers in unions, and may be asked again: a
 * repeated call recognises itself. The signal that calls take last means what it means in `Store`.
 * The cases in `testing/durable-cases.ts` are the contract.
 */
export interface DurableStore {
  readonly phases: PhaseStore
  readonly outbox: OutboxStore
  readonly desk: DeskStore
}

/** Operations and their phases: how far the work of a record has come. */
export interface PhaseStore {
  /**
   * Runs `work` in a transaction of the store and commits what it wrote together with the step it
   * returns, or nothing at all. The step is the last statement, and is fenced: it takes hold only
   * while the record is `in_progress` under this very lease. Where it does not, or `work` throws,
   * everything is rolled back. `work` that has ended the transaction itself: `OutcomeUnknownError`.
   */
  advance(
    lease: Lease,
    work: (tx: unknown) => Step | Promise<Step>,
    signal?: AbortSignal,
  ): Promise<StepOutcome>

  /** The same for a step without work: one round trip, where the database allows it. */
  record(lease: Lease, step: Step, signal?: AbortSignal): Promise<StepOutcome>

  /** The operation of a record and its phases in their order; `undefined` where it has none. */
  load(recordId: string, signal?: AbortSignal): Promise<StoredOperation | undefined>

  /**
   * Operations that wait for a worker: accepted, released or lapsed, and due. In turns: one of each
   * operation that is asked for, and within an operation one of each tenant, the longest due of
   * that tenant first. A tenant gets a second one only where there are fewer tenants than `limit`.
   * The turns go on where the last call of this store object stopped. May return fewer than are
   * due, but none only where none are due. Takes nothing: a worker claims one with mode `take`.
   */
  due(query: DueQuery, signal?: AbortSignal): Promise<DueOperation[]>

  /** Operations that are due, of names and versions that are none of these. */
  orphans(query: DueQuery, signal?: AbortSignal): Promise<OrphanedOperation[]>
}

export interface OperationName {
  readonly name: string
  readonly version: number
}

export interface DueQuery {
  readonly operations: readonly OperationName[]
  readonly limit: number
  /** Tenants of which nothing is returned: they have all the places that they may have. */
  readonly withoutTenants?: readonly string[] | undefined
}

export interface DueOperation extends OperationName {
  readonly record: RecordView
}

export interface OrphanedOperation extends OperationName {
  readonly recordId: string
}

/** What is committed at once. */
export interface Step {
  /** Brought by the first step of an operation; where it is on record already, it is left. */
  readonly operation?: NewOperation | undefined
  readonly phase?: PhaseStep | undefined
  /** Ends the lease with this step. */
  readonly end?: StepEnd | undefined
}

export interface NewOperation extends OperationName {
  readonly input: Uint8Array
}

export type StepEnd =
  | ({ readonly kind: 'complete' } & Completion)
  /**
   * Leaves the rest to a worker: the record becomes `pending`, and is due after so long. Nothing
   * has run under this attempt, so it does not count.
   */
  | { readonly kind: 'hand_over'; readonly afterMs: number }

export type PhaseStep =
  /** A transaction phase, with what it returned. */
  | (PhaseName & { readonly kind: 'transaction'; readonly result: Uint8Array })
  /**
   * An outside effect is about to be sent. Where it was intended before, the first request stays,
   * and only the time of sending is new.
   */
  | (PhaseName & {
      readonly kind: 'intent'
      readonly request: Uint8Array
      readonly downstreamKey: string
    })
  /** An outside effect has happened. */
  | (PhaseName & {
      readonly kind: 'result'
      readonly result: Uint8Array
      readonly downstreamKey: string
      readonly providerId: string | undefined
    })
  /** An outside effect provably did not happen: as if it had never been intended. */
  | (PhaseName & { readonly kind: 'clear' })

export interface PhaseName {
  readonly name: string
  /** Its place in the operation, from 1. */
  readonly number: number
}

export type StepOutcome =
  | { readonly kind: 'advanced'; readonly expiresAt: Date }
  /** Nothing was written: the phase has its result already (from a webhook, say). */
  | { readonly kind: 'concluded'; readonly result: Uint8Array }
  /** Nothing was written: the record has moved on. `own`: it still carries this lease's token. */
  | { readonly kind: 'fenced'; readonly own: boolean; readonly state: RecordState | 'absent' }

export interface StoredOperation extends NewOperation {
  readonly phases: readonly StoredPhase[]
}

/** `external` phases are `intended` first; `transaction` phases are only ever `done`. */
export interface StoredPhase extends PhaseName {
  readonly kind: 'transaction' | 'external'
  readonly state: 'intended' | 'done'
  readonly request: Uint8Array | undefined
  readonly result: Uint8Array | undefined
  readonly downstreamKey: string | undefined
  readonly providerId: string | undefined
  /** The attempt of the record that wrote it last. */
  readonly attempt: number
  /** When it was intended first, and last; of a transaction: when it was committed. */
  readonly firstSentAt: Date
  readonly sentAt: Date
  readonly doneAt: Date | undefined
}

/** Messages that wait to be relayed. */
export interface OutboxStore {
  /**
   * Adds a message in a transaction that is open: one that the store handed out, or one of the
   * caller's own. It exists once that commits. With a partition, others who add to the same one
   * wait until then. Where the driver is synchronous, so is this.
   */
  add(tx: unknown, message: NewMessage): Promise<void> | void

  /**
   * Takes at most `limit` messages that are due, each for `leaseMs`. In turns: one of each topic,
   * within a topic one of each tenant, the longest due of that tenant first, and of a partition
   * only its head. Messages without a tenant take turns as one tenant. The turns go on where the
   * last claim of this store object stopped. What is taken and not settled is due again when its
   * lease is over.
   */
  claim(request: MessageClaim, signal?: AbortSignal): Promise<HeldMessage[]>

  /** Ends leases, or notes a provider's id under one. `false` where the message has moved on. */
  settle(settlements: readonly MessageSettlement[], signal?: AbortSignal): Promise<boolean[]>

  /** Prolongs leases, from now. `false` where the message has moved on. */
  renew(leases: readonly MessageLease[], leaseMs: number, signal?: AbortSignal): Promise<boolean[]>

  read(id: string, signal?: AbortSignal): Promise<MessageView | undefined>

  /** Messages in one state, oldest first, without their payloads. */
  list(
    query: { readonly state: MessageState; readonly limit: number },
    signal?: AbortSignal,
  ): Promise<MessageView[]>

  /** Removes at most `limit` messages that were done or dropped more than `olderThanMs` ago. */
  prune(
    request: { readonly limit: number; readonly olderThanMs: number },
    signal?: AbortSignal,
  ): Promise<number>

  /**
   * Topics that are none of these and have a message that has been due for `overdueMs` or longer.
   * Of each topic one such message, the longest due that a bounded look finds: of partitions only
   * the first heads are looked at. At most `limit` topics, in the order of their names. Reads only,
   * and only by index. Absent in stores that were written before it was part of the contract.
   */
  unrelayed?(query: UnrelayedQuery, signal?: AbortSignal): Promise<UnrelayedTopic[]>

  /**
   * Present where the store can tell that messages were committed. Calls `wake` when that happens;
   * perhaps for nothing, and perhaps never, so relays look for themselves now and then. Returns
   * what ends the watch.
   */
  watch?(wake: () => void): () => void
}

export interface UnrelayedQuery {
  readonly topics: readonly string[]
  readonly overdueMs: number
  readonly limit: number
}

export interface UnrelayedTopic {
  readonly topic: string
  readonly messageId: string
  readonly dueAt: Date
}

/** Topics, and heads of each, that a store looks at in one call of `unrelayed`. */
export const UNRELAYED_TOPICS_MAX = 100
export const UNRELAYED_HEADS_MAX = 16

/** `dropped`: an operator has decided that a dead one is not to be relayed. */
export const MESSAGE_STATES = ['ready', 'held', 'done', 'dead', 'dropped'] as const

export type MessageState = (typeof MESSAGE_STATES)[number]

export interface NewMessage {
  /** A UUID (version 7). */
  readonly id: string
  readonly topic: string
  /** The tenant whose turn it takes; `undefined`: it shares one turn with the others without. */
  readonly tenant?: string | undefined
  /** For the receiver, to recognise repeats by. */
  readonly key: string | undefined
  /** Messages of one topic and one partition are relayed one after the other. */
  readonly partition: string | undefined
  readonly payload: Uint8Array
  readonly delayMs: number
}

export interface MessageClaim {
  readonly topics: readonly string[]
  readonly limit: number
  /** For each topic, in the order of `topics`: at most so many of it. @default `limit` for each */
  readonly limits?: readonly number[] | undefined
  /** Tenants of which nothing is taken; the empty text stands for messages without a tenant. */
  readonly withoutTenants?: readonly string[] | undefined
  readonly leaseMs: number
  /** New for every claim: how a repeated claim recognises what it has taken. */
  readonly token: string
}

export interface MessageLease {
  readonly id: string
  readonly token: string
}

export interface HeldMessage extends MessageLease {
  readonly topic: string
  readonly tenant: string | undefined
  readonly key: string | undefined
  readonly partition: string | undefined
  readonly payload: Uint8Array
  /** Counts this one. */
  readonly attempt: number
  /** Noted by an earlier attempt: the provider has it already. */
  readonly providerId: string | undefined
  readonly createdAt: Date
}

export type MessageSettlement = MessageLease &
  (
    | { readonly kind: 'done'; readonly providerId: string | undefined }
    /** Keeps the lease; only the id is written. */
    | { readonly kind: 'note'; readonly providerId: string }
    | { readonly kind: 'retry'; readonly error: string; readonly delayMs: number }
    /** `blocks`: its partition waits until an operator has decided. */
    | { readonly kind: 'dead'; readonly error: string; readonly blocks: boolean }
    /** Gives it back unused: this attempt does not count. */
    | { readonly kind: 'return' }
  )

export interface MessageView {
  readonly id: string
  readonly topic: string
  readonly tenant: string | undefined
  readonly key: string | undefined
  readonly partition: string | undefined
  /** Absent in lists. */
  readonly payload: Uint8Array | undefined
  readonly state: MessageState
  readonly attempt: number
  /** The last ten, newest last. */
  readonly errors: readonly MessageError[]
  readonly providerId: string | undefined
  readonly createdAt: Date
  /** When it may be taken, or taken again; absent once it is done, dead or dropped. */
  readonly dueAt: Date | undefined
  /** When it was done, died, or was dropped. */
  readonly endedAt: Date | undefined
}

export interface MessageError {
  readonly at: Date
  readonly attempt: number
  readonly error: string
}

/** How many errors of a message are kept, and how long each may be. */
export const MESSAGE_ERRORS_MAX = 10
export const MESSAGE_ERROR_LENGTH_MAX = 500

/** Verdicts and the acts of operators. Each is written into the audit in the same commit. */
export interface DeskStore {
  /**
   * `unknown` records that are due for reconciliation, with their operation where they have one. In
   * turns: one of each operation, and within an operation one of each tenant, the longest due of
   * that tenant first. The turns go on where the last call of this store object stopped. May return
   * fewer than are due, but none only where none are due. Counts a try on each and makes it due
   * again in `againMs`, so that no other node looks into it meanwhile.
   */
  takeUnknown(request: UnknownRequest, signal?: AbortSignal): Promise<DueUnknown[]>

  /**
   * When to look into an `unknown` record next; `undefined`: never, it is for an operator. Only if
   * it is still unknown by this attempt, and where `tries` is given, only if that look is the last:
   * since an operator has asked for another, an earlier one decides nothing.
   */
  postpone(target: Postponement, signal?: AbortSignal): Promise<boolean>

  /** Carries out one act, and writes it into the audit, together. */
  act(act: Act, by: ActedBy, signal?: AbortSignal): Promise<ActOutcome>

  /** Newest first. Of one record or message, or of all. */
  audit(
    query: { readonly subject?: string; readonly limit: number },
    signal?: AbortSignal,
  ): Promise<AuditEntry[]>
}

export interface UnknownRequest {
  readonly limit: number
  readonly againMs: number
  /** Operations of which nothing is taken. */
  readonly withoutOperations?: readonly UnknownOperation[] | undefined
  /** Tenants of which nothing is taken. */
  readonly withoutTenants?: readonly string[] | undefined
}

/**
 * What the turns of `unknown` records go by: the name and version of the operation that is on
 * record, or else the operation of the scope, without a version.
 */
export interface UnknownOperation {
  readonly name: string
  readonly version: number | undefined
}

export interface Postponement {
  readonly recordId: string
  readonly attempt: number
  readonly tries?: number | undefined
  readonly inMs: number | undefined
}

export interface DueUnknown {
  readonly record: RecordView
  readonly operation: StoredOperation | undefined
}

/** An external phase, by what somebody knows of it. */
export type PhaseRef =
  | { readonly recordId: string }
  | { readonly downstreamKey: string }
  | { readonly providerId: string }

export type Act =
  /**
   * What became of an outside effect. `done`: its phase has this result. `not_executed`: it may be
   * sent again. An `unknown` record is then resumed. Not while somebody holds the record and
   * `not_executed` is all there is to say: the holder finds out by itself.
   */
  | {
      readonly kind: 'conclude'
      readonly phase: PhaseRef
      /** Only if the phase was last sent by this attempt. */
      readonly attempt?: number | undefined
      readonly finding:
        | {
            readonly kind: 'done'
            readonly result: Uint8Array
            readonly providerId: string | undefined
          }
        | { readonly kind: 'not_executed' }
    }
  /** A verdict on a whole `unknown` record. */
  | {
      readonly kind: 'resolve'
      readonly ref: RecordRef
      readonly attempt?: number | undefined
      readonly verdict:
        | { readonly kind: 'completed'; readonly result: Uint8Array }
        | { readonly kind: 'failed_retryable' }
      readonly retentionMs: number
    }
  /** Takes a record from its holder, or out of `unknown`, on an operator's word: may run again. */
  | { readonly kind: 'release'; readonly ref: RecordRef }
  /** Removes a stored result: the next request with the key runs. */
  | { readonly kind: 'bust'; readonly ref: RecordRef }
  /** Looks into an `unknown` record, or runs an operation, again from now on. */
  | { readonly kind: 'requeue'; readonly ref: RecordRef }
  /** A dead message becomes ready again, with all its attempts before it. */
  | { readonly kind: 'retry_message'; readonly messageId: string }
  /** A dead message is given up, and its partition goes on. */
  | { readonly kind: 'drop_message'; readonly messageId: string }

export type ActKind = Act['kind']

export interface ActedBy {
  /** A person, or a part of the system: `reconciler`, `webhook`. */
  readonly who: string
  readonly why: string
}

export type ActOutcome =
  | {
      readonly kind: 'done'
      /** The record or message that was acted on. */
      readonly subject: string
      /** As it is now; absent where it was removed, or is a message. */
      readonly record?: RecordView | undefined
    }
  /** It was as wanted before: a repeated webhook, a second click. Nothing was written. */
  | { readonly kind: 'already'; readonly subject: string }
  /** Nothing was written: it is in a state in which this cannot be done, or of another attempt. */
  | {
      readonly kind: 'refused'
      readonly subject: string
      readonly reason: RecordState | MessageState | 'other_attempt' | 'no_phase'
    }
  | { readonly kind: 'not_found' }

export interface AuditEntry extends ActedBy {
  readonly at: Date
  readonly act: ActKind
  /** The id of a record or a message. */
  readonly subject: string
  /** What it was about, in JSON: the verdict, the phase, the state before. Never a payload. */
  readonly detail: string
}
