import type { EncryptionPurpose } from './encryption.ts'
import type { BreakerState } from './health/breaker.ts'
import type { WorkPart } from './engine/paused-work.ts'
import type { RecordState } from './record/record.ts'
import type { ActKind } from './store/operator-store.ts'

/** The record of an event. Never contains the client's key: `identity` is its hash. */
export interface EventSubject {
  readonly identity: string
  readonly tenant: string
  readonly operation: string
  readonly recordId: string
}

/** All events. A closed union: the compiler checks a `switch` over `kind`. */
export type EngineEvent = RecordEvent | DurableEvent

/** Events of the engine about records. */
export type RecordEvent =
  /** A key was claimed for the first time, or again after its expired record was removed. */
  | (EventSubject & { readonly kind: 'reserve_created'; readonly attempt: number })
  /** A key was claimed again after its record had expired: a late retry, or a reused key. */
  | (EventSubject & { readonly kind: 'reserve_reused'; readonly attempt: number })
  /** A retry got a stored result. */
  | (EventSubject & { readonly kind: 'reserve_replay' })
  /** A duplicate arrived while the first request runs. */
  | (EventSubject & { readonly kind: 'reserve_in_progress' })
  /** A key was used for another request: a bug in a client, or an attack. */
  | (EventSubject & { readonly kind: 'reserve_key_misuse' })
  /** A key whose earlier attempt had no effect was claimed again. */
  | (EventSubject & { readonly kind: 'reserve_failed_retry'; readonly attempt: number })
  /** A retry found an unknown outcome. */
  | (EventSubject & { readonly kind: 'reserve_unknown' })
  /** A key was refused because its record has expired. */
  | (EventSubject & { readonly kind: 'reserve_expired' })
  /** A store call failed. */
  | {
      readonly kind: 'store_error'
      readonly store: string
      readonly call: string
      readonly error: unknown
    }
  /** The breaker for claims changed its state. `error` is the failure that opened it. */
  | {
      readonly kind: 'breaker_changed'
      readonly store: string
      readonly from: BreakerState
      readonly to: BreakerState
      readonly error: unknown
    }
  /** A request was refused without a store call. Its work did not run. */
  | {
      readonly kind: 'claim_refused'
      readonly tenant: string
      readonly operation: string
      readonly reason: 'breaker_open' | 'engine_closed'
    }
  /**
   * A request was refused before its work: a limit was exceeded (429), or the request was first
   * sent too long ago (412). Its key was not used.
   */
  | {
      readonly kind: 'request_refused'
      readonly tenant: string
      readonly operation: string
      readonly reason: LimitName | 'too_old'
    }
  /** A limiter did not answer, so the request passed without it. */
  | {
      readonly kind: 'limiter_failed'
      readonly tenant: string
      readonly operation: string
      readonly limit: LimitName
      readonly error: unknown
    }
  /** A lease lapsed: its holder stopped renewing it. `to` is the new state of the record. */
  | (EventSubject & {
      readonly kind: 'zombie_key'
      readonly attempt: number
      readonly to: RecordState
    })
  /** Expired records were removed. */
  | { readonly kind: 'ttl_pruned'; readonly count: number }
  /** A record became `unknown` and waits for a verdict. */
  | (EventSubject & {
      readonly kind: 'reconcile_scheduled'
      readonly errorCode: string | undefined
    })
  /** An `unknown` record got its verdict. */
  | (EventSubject & { readonly kind: 'reconcile_resolved'; readonly to: RecordState })
  /** A verdict could not be given. */
  | {
      readonly kind: 'reconcile_failed'
      readonly reason: 'not_found' | 'not_unknown' | 'other_attempt'
    }
  /** A holder found that it has lost its lease while its work runs. */
  | (EventSubject & { readonly kind: 'lease_lost'; readonly attempt: number })
  /** Work ended after its record had changed: the record has another outcome than the work. */
  | (EventSubject & {
      readonly kind: 'settle_fenced'
      readonly attempt: number
      readonly error: unknown
    })
  /** A result could not be recorded in time; recording continues in the background. */
  | (EventSubject & { readonly kind: 'settle_late'; readonly attempt: number })
  /** A result could not be recorded at all; the record will lapse. */
  | (EventSubject & { readonly kind: 'settle_abandoned'; readonly attempt: number })
  /**
   * A recorded reply is damaged, belongs to another record, does not decrypt, or is not encrypted
   * as the route requires. `reason` is a text for the operator, not one of a fixed set of words.
   */
  | (EventSubject & { readonly kind: 'reply_unreadable'; readonly reason: string })
  /**
   * `prepare` of an encryption has failed or was too slow, so no work began: a new key got 503, and
   * an operation that is due waits. Replays pass.
   */
  | {
      readonly kind: 'encryption_failed'
      readonly tenant: string
      readonly operation: string
      readonly error: unknown
    }
  /** Work ran unprotected: the store failed, and the route has `onStoreFailure: 'open'`. */
  | { readonly kind: 'unprotected_run'; readonly tenant: string; readonly operation: string }

/** The limits of a guard: `newKeys`, `lookUps` and `inFlight`. */
export type LimitName = 'new_keys' | 'look_ups' | 'in_flight'

/** Events of operations, relays, the reconciler, operators and maintenance. */
export type DurableEvent =
  /** A request was accepted for a worker. */
  | (EventSubject & { readonly kind: 'operation_accepted'; readonly name: string })
  /** A worker continues an operation that was accepted, or whose client or process is gone. */
  | (EventSubject & {
      readonly kind: 'operation_resumed'
      readonly name: string
      readonly attempt: number
    })
  /** An operation failed in a worker: it is tried again later, or reconciled. */
  | (EventSubject & {
      readonly kind: 'operation_failed'
      readonly name: string
      readonly attempt: number
      readonly error: unknown
    })
  /** An operation is due, and this worker does not have its name and version. */
  | {
      readonly kind: 'operation_orphaned'
      readonly name: string
      readonly version: number
      readonly recordId: string
    }
  /** Accepted work that no worker had taken by its expiry was completed as timed out. */
  | { readonly kind: 'operation_abandoned'; readonly count: number }
  /**
   * The stored input of an operation, or a stored request or result of a phase, is damaged, belongs
   * to another record, does not decrypt, or is not encrypted as the operation requires. The attempt
   * ended before this phase. `phase` is absent for an input. `reason` is a text for the operator.
   */
  | (EventSubject & {
      readonly kind: 'value_unreadable'
      readonly purpose: EncryptionPurpose
      readonly phase: string | undefined
      readonly reason: string
    })
  /** An effect was found to have happened, or not: usually by asking its provider. */
  | (EventSubject & {
      readonly kind: 'effect_found'
      readonly phase: string
      readonly finding: 'done' | 'not_executed'
    })
  /**
   * `send` of an effect has returned without reading its `downstreamKey`, so its provider cannot
   * recognise a repeat. Not emitted in production (`NODE_ENV`).
   */
  | (EventSubject & {
      readonly kind: 'effect_without_key'
      readonly name: string
      readonly phase: string
    })
  /** The reconciler has used all its tries for an `unknown` record: an operator must decide. */
  | (EventSubject & { readonly kind: 'reconcile_given_up'; readonly tries: number })
  /** A message was delivered, and that is recorded. */
  | { readonly kind: 'message_relayed'; readonly topic: string; readonly messageId: string }
  /** A message could not be delivered, and is tried again. */
  | {
      readonly kind: 'message_retried'
      readonly topic: string
      readonly messageId: string
      readonly attempt: number
      readonly error: unknown
    }
  /** A message has used all its attempts: an operator must decide. */
  | {
      readonly kind: 'message_dead'
      readonly topic: string
      readonly messageId: string
      readonly error: unknown
    }
  /**
   * A message has been due for a minute or longer, and no relay of this process has its topic.
   * Emitted for one message of each such topic, every minute.
   */
  | {
      readonly kind: 'message_unrelayed'
      readonly topic: string
      readonly messageId: string
      readonly dueAt: Date
    }
  /** A relay was too slow: another relay may have its message. */
  | { readonly kind: 'message_lost'; readonly topic: string; readonly messageId: string }
  /** Messages that were relayed or dropped long ago were removed. */
  | { readonly kind: 'outbox_pruned'; readonly count: number }
  /**
   * An operator acted on a record or a message. `act` is the stored word, such as `bust`, and
   * `subject` the id of the record or message.
   */
  | {
      readonly kind: 'operator_acted'
      readonly act: ActKind
      readonly subject: string
      readonly who: string
    }
  /**
   * Two ledgers were compared. `matched` counts ids with entries that agree. `different` counts all
   * other entries: pairs that do not agree, entries that one side lacks, and duplicates.
   */
  | {
      readonly kind: 'ledger_compared'
      readonly ledger: string
      readonly matched: number
      readonly different: number
    }
  /**
   * A call of your code still runs after its time limit: an effect or a whole operation, a handler
   * of messages, or a call to a provider's `reconcile`. Other work has its place. `name` is the
   * operation or the topic, `subject` the id of the record or message, and `overdue` the number of
   * such calls of this name in this process.
   */
  | {
      readonly kind: 'work_overdue'
      readonly part: WorkPart
      readonly name: string
      readonly subject: string
      readonly overdue: number
    }
  /**
   * This process starts no more work of an operation or topic, except for a trial from time to
   * time: too many of its calls hang, or its provider does not answer the reconciler.
   */
  | {
      readonly kind: 'work_paused'
      readonly part: WorkPart
      readonly name: string
      readonly overdue: number
    }
  /** A paused operation or topic continues. */
  | { readonly kind: 'work_resumed'; readonly part: WorkPart; readonly name: string }
  /**
   * A part of maintenance failed, and is tried again. `task` is the task of `createMaintenance`:
   * `sweep`, `reap`, `prune`, `unrelayed`, `complete` (the worker), `reconcile`, `relay`, or
   * `ledger` with the name of the job. A worker whose query failed emits `worker`, and a reconciler
   * whose provider or handler failed emits `reconcile`.
   */
  | { readonly kind: 'maintenance_failed'; readonly task: string; readonly error: unknown }

/** Called for each event. Must not throw: an error is ignored, with a warning. */
export type EventListener = (event: EngineEvent) => void

/** The name of the counter of each kind of event. No two kinds share a counter. */
export const EVENT_COUNTERS = {
  reserve_created: 'api.idempotency.reserve.created.count',
  reserve_reused: 'api.idempotency.reserve.reused.count',
  reserve_replay: 'api.idempotency.reserve.replay.count',
  reserve_in_progress: 'api.idempotency.reserve.in_progress.count',
  reserve_key_misuse: 'api.idempotency.reserve.key_misuse.count',
  reserve_failed_retry: 'api.idempotency.reserve.failed_retry.count',
  reserve_unknown: 'api.idempotency.reserve.unknown.count',
  reserve_expired: 'api.idempotency.reserve.expired.count',
  store_error: 'api.idempotency.store.error.count',
  breaker_changed: 'api.idempotency.breaker.transition.count',
  claim_refused: 'api.idempotency.claim.refused.count',
  request_refused: 'api.idempotency.request.refused.count',
  limiter_failed: 'api.idempotency.limiter.failed.count',
  zombie_key: 'api.idempotency.zombie_key.count',
  ttl_pruned: 'api.idempotency.ttl_pruned.count',
  reconcile_scheduled: 'api.idempotency.reconcile.scheduled.count',
  reconcile_resolved: 'api.idempotency.reconcile.resolved.count',
  reconcile_failed: 'api.idempotency.reconcile.failed.count',
  lease_lost: 'api.idempotency.lease.lost.count',
  settle_fenced: 'api.idempotency.settle.fenced.count',
  settle_late: 'api.idempotency.settle.late.count',
  settle_abandoned: 'api.idempotency.settle.abandoned.count',
  operation_accepted: 'api.idempotency.operation.accepted.count',
  operation_resumed: 'api.idempotency.operation.resumed.count',
  operation_failed: 'api.idempotency.operation.failed.count',
  operation_orphaned: 'api.idempotency.operation.orphaned.count',
  value_unreadable: 'api.idempotency.value.unreadable.count',
  operation_abandoned: 'api.idempotency.operation.abandoned.count',
  effect_found: 'api.idempotency.effect.found.count',
  effect_without_key: 'api.idempotency.effect.without_key.count',
  reconcile_given_up: 'api.idempotency.reconcile.given_up.count',
  message_relayed: 'api.idempotency.outbox.relayed.count',
  message_retried: 'api.idempotency.outbox.retried.count',
  message_dead: 'api.idempotency.outbox.dead.count',
  message_unrelayed: 'api.idempotency.outbox.unrelayed.count',
  message_lost: 'api.idempotency.outbox.lost.count',
  outbox_pruned: 'api.idempotency.outbox.pruned.count',
  operator_acted: 'api.idempotency.operator.acted.count',
  ledger_compared: 'api.idempotency.ledger.compared.count',
  work_overdue: 'api.idempotency.work.overdue.count',
  work_paused: 'api.idempotency.work.paused.count',
  work_resumed: 'api.idempotency.work.resumed.count',
  maintenance_failed: 'api.idempotency.maintenance.failed.count',
  encryption_failed: 'api.idempotency.encryption.failed.count',
  reply_unreadable: 'api.idempotency.reply.unreadable.count',
  unprotected_run: 'api.idempotency.unprotected_run.count',
} as const satisfies Record<EngineEvent['kind'], string>
