import type { RecordState } from './record.ts'

/** What an event is about. The raw key is never part of it; its hash (`identity`) is. */
export interface EventSubject {
  readonly identity: string
  readonly tenant: string
  readonly operation: string
  readonly recordId: string
}

/** Everything the engine reports. A closed union: the compiler checks a `switch` over `kind`. */
export type EngineEvent =
  /** A key was taken for the first time (or again after its record had expired). */
  | (EventSubject & { readonly kind: 'reserve_created'; readonly attempt: number })
  /** A stored result was given to a retry. */
  | (EventSubject & { readonly kind: 'reserve_replay' })
  /** A duplicate came while the first request runs. */
  | (EventSubject & { readonly kind: 'reserve_in_progress' })
  /** A key was used for another request: a client's bug, or an attack. */
  | (EventSubject & { readonly kind: 'reserve_key_misuse' })
  /** A key whose earlier attempt had no effect was taken again. */
  | (EventSubject & { readonly kind: 'reserve_failed_retry'; readonly attempt: number })
  /** A retry met a record whose outcome is unknown. */
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
  /** A holder fell silent. `to` is what became of its record. */
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
  /** A holder learnt that its lease is gone while its work ran. */
  | (EventSubject & { readonly kind: 'lease_lost'; readonly attempt: number })
  /** Work ended after its record had moved on: what it did is not what the record says. */
  | (EventSubject & {
      readonly kind: 'settle_fenced'
      readonly attempt: number
      readonly error: unknown
    })
  /** A result could not be recorded in time; recording goes on in the background. */
  | (EventSubject & { readonly kind: 'settle_late'; readonly attempt: number })
  /** A result could not be recorded at all; the record will lapse. */
  | (EventSubject & { readonly kind: 'settle_abandoned'; readonly attempt: number })
  /** Work ran without protection, because the store failed and the route said `open`. */
  | { readonly kind: 'unprotected_run'; readonly tenant: string; readonly operation: string }

export type EventListener = (event: EngineEvent) => void

/** The counter each event adds to, one to one. */
export const EVENT_COUNTERS = {
  reserve_created: 'api.idempotency.reserve.created.count',
  reserve_replay: 'api.idempotency.reserve.replay.count',
  reserve_in_progress: 'api.idempotency.reserve.in_progress.count',
  reserve_key_misuse: 'api.idempotency.reserve.key_misuse.count',
  reserve_failed_retry: 'api.idempotency.reserve.failed_retry.count',
  reserve_unknown: 'api.idempotency.reserve.unknown.count',
  reserve_expired: 'api.idempotency.reserve.expired.count',
  store_error: 'api.idempotency.store.error.count',
  zombie_key: 'api.idempotency.zombie_key.count',
  ttl_pruned: 'api.idempotency.ttl_pruned.count',
  reconcile_scheduled: 'api.idempotency.reconcile.scheduled.count',
  reconcile_resolved: 'api.idempotency.reconcile.resolved.count',
  reconcile_failed: 'api.idempotency.reconcile.failed.count',
  lease_lost: 'api.idempotency.lease.lost.count',
  settle_fenced: 'api.idempotency.settle.fenced.count',
  settle_late: 'api.idempotency.settle.late.count',
  settle_abandoned: 'api.idempotency.settle.abandoned.count',
  unprotected_run: 'api.idempotency.unprotected_run.count',
} as const satisfies Record<EngineEvent['kind'], string>
