import type { RecordState } from '../record/record.ts'
import type { OperatorStore } from './operator-store.ts'
import type { Completion, Lease, RecordView } from './store.ts'

/**
 * The part of a store for operations and their phases, the outbox and the audit (`Store.durable`).
 * It needs a database with transactions.
 *
 * The rules of `Store` apply: bytes are opaque, ordinary outcomes are returned, a repeated call is
 * recognised, and the last argument is the `AbortSignal` of the call. The `durableCases` of
 * `oncekey/testing` define the behaviour.
 */
export interface DurableStore {
  /** Operations and their phases. */
  readonly phases: PhaseStore
  /** Messages that wait to be relayed. */
  readonly outbox: OutboxStore
  /** Verdicts, the acts of operators, and the audit. */
  readonly operator: OperatorStore
}

/** Keeps operations and their phases: the progress of the work of a record. */
export interface PhaseStore {
  /**
   * Runs `work` in a transaction of the store, and commits the rows of `work` together with the
   * step that it returns.
   *
   * Write the step as the last statement. It is fenced: it is written only while the record is
   * `in_progress` under this lease. If it is not written, roll back. If `work` throws, roll back
   * and throw the same error. If `work` has ended the transaction itself, throw
   * `OutcomeUnknownError`.
   */
  advance(
    lease: Lease,
    work: (tx: unknown) => Step | Promise<Step>,
    signal?: AbortSignal,
  ): Promise<StepOutcome>

  /** Commits a step without work. This should take one round trip if the database allows it. */
  record(lease: Lease, step: Step, signal?: AbortSignal): Promise<StepOutcome>

  /** Reads the operation of a record, with its phases by number; `undefined` if it has none. */
  load(recordId: string, signal?: AbortSignal): Promise<StoredOperation | undefined>

  /**
   * Lists operations of the requested names that are due for a worker: accepted, released or
   * lapsed. Claims nothing: a worker claims a record with the mode `take`.
   *
   * Operations and tenants take turns: one record of each operation, and within an operation one of
   * each tenant, which is the longest due of that tenant. A tenant gets a second record only if
   * there are fewer tenants than `limit`. Each call continues the turns where the previous call of
   * this store object stopped. A call may return fewer records than are due, but returns none only
   * if none is due.
   */
  due(query: DueQuery, signal?: AbortSignal): Promise<DueOperation[]>

  /** Lists due operations of all names and versions except these: no worker here runs them. */
  orphans(query: DueQuery, signal?: AbortSignal): Promise<OrphanedOperation[]>
}

export interface OperationName {
  readonly name: string
  readonly version: number
}

export interface DueQuery {
  /** The names and versions to return (`due`) or to leave out (`orphans`). */
  readonly operations: readonly OperationName[]
  readonly limit: number
  /**
   * Tenants to leave out, because they already use all the places of the worker that they may use.
   *
   * @default none
   */
  readonly withoutTenants?: readonly string[] | undefined
}

export interface DueOperation extends OperationName {
  readonly record: RecordView
}

export interface OrphanedOperation extends OperationName {
  readonly recordId: string
}

/** The changes of one commit. */
export interface Step {
  /** The operation, with its first step. An operation that is already on record stays as it is. */
  readonly operation?: NewOperation | undefined
  readonly phase?: PhaseStep | undefined
  /** Ends the attempt with this step. @default the attempt continues */
  readonly end?: StepEnd | undefined
}

export interface NewOperation extends OperationName {
  readonly input: Uint8Array
}

export type StepEnd =
  | ({ readonly kind: 'complete' } & Completion)
  /**
   * Leaves the rest to a worker: the record becomes `pending`, and is due after `afterMs`. Nothing
   * has run in this attempt, so it does not count.
   */
  | { readonly kind: 'hand_over'; readonly afterMs: number }

export type PhaseStep =
  /** A transaction phase, and its result. */
  | (PhaseName & { readonly kind: 'transaction'; readonly result: Uint8Array })
  /**
   * The effect is about to be sent. If it has an intent already, the first request stays, and only
   * `sentAt` and `attempt` change.
   */
  | (PhaseName & {
      readonly kind: 'intent'
      readonly request: Uint8Array
      readonly downstreamKey: string
    })
  /** The effect has happened. */
  | (PhaseName & {
      readonly kind: 'result'
      readonly result: Uint8Array
      readonly downstreamKey: string
      readonly providerId: string | undefined
    })
  /** The effect provably did not happen: the phase is removed. */
  | (PhaseName & { readonly kind: 'clear' })

export interface PhaseName {
  readonly name: string
  /** Position in the operation, from 1. */
  readonly number: number
}

export type StepOutcome =
  /** The step is committed. A repeated step that hands over gets this again. */
  | { readonly kind: 'advanced'; readonly expiresAt: Date }
  /** Nothing was written: the effect already has this result, for example from a webhook. */
  | { readonly kind: 'concluded'; readonly result: Uint8Array }
  /**
   * Nothing was written: the record is not `in_progress` under this lease. `own`: it still carries
   * the token and attempt of the lease. A repeated step that completes gets `own` and `completed`.
   * With `own` and `in_progress`, the transaction phase of the step is already on record.
   */
  | { readonly kind: 'fenced'; readonly own: boolean; readonly state: RecordState | 'absent' }

export interface StoredOperation extends NewOperation {
  readonly phases: readonly StoredPhase[]
}

/** An `external` phase is first `intended`, then `done`. A `transaction` phase is always `done`. */
export interface StoredPhase extends PhaseName {
  readonly kind: 'transaction' | 'external'
  readonly state: 'intended' | 'done'
  readonly request: Uint8Array | undefined
  readonly result: Uint8Array | undefined
  readonly downstreamKey: string | undefined
  readonly providerId: string | undefined
  /** The last attempt that recorded or sent the phase. */
  readonly attempt: number
  /** Time of the first intent; of a transaction, its commit. */
  readonly firstSentAt: Date
  /** Time of the last intent; of a transaction, its commit. */
  readonly sentAt: Date
  readonly doneAt: Date | undefined
}

/** Keeps messages until a relay has delivered them. */
export interface OutboxStore {
  /**
   * Whether `add` writes before it returns. It then needs its payload at once: a payload that is
   * encrypted later would be written after the transaction has ended.
   *
   * @default false
   */
  readonly isSynchronous?: boolean

  /**
   * Adds a message in an open transaction of the store or of the caller. The message exists when
   * that transaction commits. Other transactions that add to the same partition wait until it ends.
   * The call is synchronous if the driver is.
   */
  add(tx: unknown, message: NewMessage): Promise<void> | void

  /**
   * Takes at most `limit` due messages, each for `leaseMs`. A message that is not settled is due
   * again when its lease ends. A repeated claim with the same token returns the same messages.
   *
   * Topics and tenants take turns: one message of each topic, and within a topic one of each
   * tenant, which is the longest due of that tenant. Of a partition only the first message is
   * available. Messages without a tenant count as one tenant. Each claim continues the turns where
   * the previous claim of this store object stopped.
   */
  claim(request: MessageClaim, signal?: AbortSignal): Promise<HeldMessage[]>

  /**
   * Ends leases, or records the id of a provider under one. Returns `false` for a message that this
   * lease no longer holds. A repeated settlement returns `true`, and is written once.
   */
  settle(settlements: readonly MessageSettlement[], signal?: AbortSignal): Promise<boolean[]>

  /** Extends leases from now. Returns `false` for a message that the lease no longer holds. */
  renew(leases: readonly MessageLease[], leaseMs: number, signal?: AbortSignal): Promise<boolean[]>

  /** Reads one message with its payload; `undefined` if it does not exist. */
  read(id: string, signal?: AbortSignal): Promise<MessageView | undefined>

  /** Lists messages in one state, oldest first, without their payloads. */
  list(
    query: { readonly state: MessageState; readonly limit: number },
    signal?: AbortSignal,
  ): Promise<MessageView[]>

  /**
   * Removes at most `limit` messages that were done or dropped more than `olderThanMs` ago. Returns
   * their number.
   */
  prune(
    request: { readonly limit: number; readonly olderThanMs: number },
    signal?: AbortSignal,
  ): Promise<number>

  /**
   * Finds topics without a relay: topics outside `query.topics` with a message that has been due
   * for `overdueMs` or longer. Returns one such message of each topic, the longest due that a
   * bounded search finds: of the partitions, it examines only the first messages of some. At most
   * `limit` topics, ordered by name. Reads only, and only by index.
   *
   * Omit it if the store cannot find such topics by index; they are then not reported.
   */
  unrelayed?(query: UnrelayedQuery, signal?: AbortSignal): Promise<UnrelayedTopic[]>

  /**
   * Notifies a relay: call `wake` when messages were committed. A notification may be missed or
   * needless, because relays also poll. Returns a function that ends the watch.
   *
   * @default relays only poll
   */
  watch?(wake: () => void): () => void
}

export interface UnrelayedQuery {
  /** Topics that have a relay. */
  readonly topics: readonly string[]
  readonly overdueMs: number
  readonly limit: number
}

export interface UnrelayedTopic {
  readonly topic: string
  readonly messageId: string
  readonly dueAt: Date
}

/** Topics, and first messages of partitions of each, that one call of `unrelayed` examines. */
export const UNRELAYED_TOPICS_MAX = 100
export const UNRELAYED_HEADS_MAX = 16

/**
 * `ready`: waits for a claim. `held`: a relay has taken it. `done`: it was delivered. `dead`: its
 * delivery failed for good, and an operator must decide. `dropped`: an operator has given it up.
 */
export const MESSAGE_STATES = ['ready', 'held', 'done', 'dead', 'dropped'] as const

export type MessageState = (typeof MESSAGE_STATES)[number]

export interface NewMessage {
  /** A UUID (version 7). */
  readonly id: string
  readonly topic: string
  /** The tenant whose turn the message takes. @default shared by all messages without a tenant */
  readonly tenant?: string | undefined
  /** The subject, such as an order id. Receivers recognise repeats by the downstream key. */
  readonly key: string | undefined
  /** Messages with the same topic and partition are relayed in order, one at a time. */
  readonly partition: string | undefined
  readonly payload: Uint8Array
  /** Delay until the message is due. */
  readonly delayMs: number
}

export interface MessageClaim {
  readonly topics: readonly string[]
  readonly limit: number
  /** The limit for each topic, in the order of `topics`. @default `limit` for each */
  readonly limits?: readonly number[] | undefined
  /** Tenants to leave out. An empty string means messages without a tenant. @default none */
  readonly withoutTenants?: readonly string[] | undefined
  readonly leaseMs: number
  /** New for each claim. A repeated claim finds the messages that it has taken by it. */
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
  /** The number of this attempt, from 1. */
  readonly attempt: number
  /** Recorded by an earlier attempt: the provider already has the message. */
  readonly providerId: string | undefined
  readonly createdAt: Date
}

/** How a relay settles a message that it holds. `done`: the message was delivered. */
export type MessageSettlement = MessageLease &
  (
    | { readonly kind: 'done'; readonly providerId: string | undefined }
    /** Records the id of the provider, and keeps the lease. */
    | { readonly kind: 'note'; readonly providerId: string }
    /** The delivery failed: the message is due again after `delayMs`. */
    | { readonly kind: 'retry'; readonly error: string; readonly delayMs: number }
    /** The delivery failed for good. `blocks`: the partition waits for an act of an operator. */
    | { readonly kind: 'dead'; readonly error: string; readonly blocks: boolean }
    /** The message was not used: it is due again, and this attempt does not count. */
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
  /** The last ten errors, newest last. */
  readonly errors: readonly MessageError[]
  readonly providerId: string | undefined
  readonly createdAt: Date
  /** When a claim may take the message next; absent if it is done, dead or dropped. */
  readonly dueAt: Date | undefined
  /** When the message became done, dead or dropped. */
  readonly endedAt: Date | undefined
}

export interface MessageError {
  readonly at: Date
  readonly attempt: number
  readonly error: string
}

/** Errors that are kept of a message, and the length of each. */
export const MESSAGE_ERRORS_MAX = 10
export const MESSAGE_ERROR_LENGTH_MAX = 500
