import type { StoreBatching } from './batching.ts'
import type { DurableStore } from './durable-store.ts'
import type { AfterExpiry, OnLapse, Proof, RecordState, StoredRecord } from '../record/record.ts'

/**
 * Where records are kept. A store keeps opaque bytes: it never interprets a result.
 *
 * **Batches.** Calls take several requests, because a durable write costs the same for one row as
 * for fifty. Return the outcomes in the order of the requests.
 *
 * **Failures.** Ordinary outcomes are returned, not thrown. A call that throws says nothing about
 * what it wrote, unless its `StoreFailedError` has `failure: 'rejected'` or `wroteNothing: true`.
 * The engine may therefore repeat every call with the same tokens, and the store must recognise a
 * repeat instead of applying it twice.
 *
 * **Timeouts.** Each call takes an `AbortSignal` as its last argument. The engine aborts it when it
 * stops waiting for the call (`storeTimeoutMs`). The store then destroys the connection that the
 * call uses, and rejects: a connection whose network went silent would otherwise stay in use for
 * ever. Never cancel the statement in the database: a commit that waits for a synchronous standby
 * would become visible without being replicated.
 *
 * This interface gives only the types. The `storeCases` of `oncekey/testing` define the behaviour,
 * and every store must pass them.
 */
export interface Store {
  /** Short and stable, for error messages, events and test names: `memory`, `sqlite`. */
  readonly name: string

  /**
   * How the engine divides its requests into calls of this store.
   *
   * @default the defaults of `StoreBatching`
   */
  readonly batching?: StoreBatching

  /**
   * Takes each key for one attempt, or returns why that is not possible. Of any number of racing
   * claims of one key, exactly one gets `claimed`; the same holds for two claims of one key in one
   * batch. A claim commits alone, never inside a transaction of the caller.
   *
   * A claim that finds a lapsed lease makes the move that `onLapse` of the record requires. A claim
   * that finds a lease from before the clock was set back restarts that lease. A claim that returns
   * `completed` or `mismatch`, or that has the mode `find`, writes nothing.
   */
  claim(requests: readonly ClaimRequest[], signal?: AbortSignal): Promise<ClaimOutcome[]>

  /**
   * Ends attempts. A settlement is written only while the record carries the token and the attempt
   * of its lease; otherwise the outcome is `fenced`. The settlements of a batch are independent: a
   * fenced one does not stop the others.
   */
  settle(settlements: readonly Settlement[], signal?: AbortSignal): Promise<SettleOutcome[]>

  /**
   * Extends leases by `leaseMs` from now. Returns `false` for a record that is no longer
   * `in_progress` under this lease.
   */
  renew(renewals: readonly Renewal[], signal?: AbortSignal): Promise<boolean[]>

  /**
   * Makes a write that changes nothing, to find out whether the store accepts writes. Required only
   * if `renew` reads first, and therefore writes nothing for a lease without a record. No record
   * has this `identity`. If the store has lanes, probe the lane of `identity`.
   *
   * @default the engine probes with `renew`
   */
  probe?(identity: string, signal?: AbortSignal): Promise<void>

  /** Gives `unknown` records their verdict. The first verdict on an attempt wins. */
  resolve(verdicts: readonly Verdict[], signal?: AbortSignal): Promise<ResolveOutcome[]>

  /**
   * Makes the move of `onLapse` for at most `limit` records whose lease has ended, and restarts
   * leases from before the clock was set back. Several nodes may sweep at the same time: each
   * lapsed record is returned once.
   */
  sweep(request: { readonly limit: number }, signal?: AbortSignal): Promise<SweptRecord[]>

  /**
   * Ends at most `limit` records that are past their expiry. Removes completed and released
   * records; under `afterExpiry: 'refuse'` it makes them `expired` (`toTombstone`), and removes
   * their operation. Removes `expired` records whose time of refusal is over.
   * Completes accepted records that no worker has taken. Never ends a record that is `unknown` or
   * `in_progress`, or an operation that has begun. Several nodes may reap at the same time: skip a
   * record that another transaction has locked, and leave it for the next call.
   */
  reap(request: ReapRequest, signal?: AbortSignal): Promise<ReapReport>

  /** Reads one record with its result; `undefined` if it does not exist. */
  read(ref: RecordRef, signal?: AbortSignal): Promise<RecordView | undefined>

  /**
   * Lists records in one state: `completed` records by their expiry, others by their last run, the
   * oldest first. The records have no `result`, which may be large; `read` returns it.
   */
  list(query: ListQuery, signal?: AbortSignal): Promise<RecordView[]>

  /**
   * Completes a key in one transaction with rows of the caller. Omit it if the database cannot.
   *
   * Begin a transaction, pass it to `work`, write the result that `work` returns as the last
   * statement, and commit.
   *
   * - If `work` throws, roll back and throw the same error.
   * - If the lease is lost, roll back and return `fenced`.
   * - If `work` has ended the transaction itself, throw `OutcomeUnknownError`, whether `work`
   *   returned or threw: its rows may be kept or lost.
   *
   * The signal aborts if the transaction does not begin in time, or does not commit or roll back in
   * time after `work` has ended. The store itself limits the time of `work`.
   */
  transaction?(
    lease: Lease,
    work: (tx: unknown) => Completion | Promise<Completion>,
    signal?: AbortSignal,
  ): Promise<SettleOutcome>

  /**
   * Completes a key inside a transaction that the caller has begun, on a client of the database of
   * the store. Omit it if the database cannot. The caller calls it last, then commits, or rolls
   * back if the outcome is `fenced`.
   *
   * Return `settled` only if this call itself has written. If an earlier transaction of the same
   * lease has committed, return `fenced` with `own: true` and the state `completed`: the second
   * transaction must roll back. Throw `InvalidOptionsError` if `tx` is not an open transaction.
   * There is no signal, because the connection belongs to the caller.
   */
  settleIn?(tx: unknown, lease: Lease, completion: Completion): Promise<SettleOutcome>

  /**
   * Reads the expired records of one key or of one record id, newest first. Omit it if the store
   * removes expired records instead of keeping them for audit.
   */
  history?(query: HistoryQuery, signal?: AbortSignal): Promise<RecordView[]>

  /**
   * Notifies a request that waits for a record which another process holds. Call `wake` when the
   * record has left `in_progress`, or at once if it already has. A notification may be missed or
   * needless, because waiting requests also poll. Returns a function that ends the watch.
   *
   * @default waiting requests only poll
   */
  watch?(identity: string, wake: () => void): () => void

  /**
   * Reads the clock that decides about leases and expiry. Omit it if that is the clock of this
   * process.
   */
  now?(signal?: AbortSignal): Promise<Date>

  /**
   * Takes the result from a `completed` record: the record becomes `failed_retryable`, so that the
   * next request with its key runs the work again, with the same ids. If the store has a history,
   * it keeps the record as it was. Omit it if the store has `durable`, which does it with an audit
   * (`Act`, `discard_reply`).
   */
  discard?(discard: Discard, signal?: AbortSignal): Promise<DiscardOutcome>

  /** Operations, outbox and audit. Omit it if the database has no transactions for them. */
  readonly durable?: DurableStore

  /** Closes what the store has opened itself. Calls after it fail. */
  close?(): Promise<void>
}

/** Proof of holding a key. A record is changed only under its own token and attempt: the fence. */
export interface Lease {
  readonly identity: string
  readonly token: string
  readonly attempt: number
}

/**
 * The purpose of a claim.
 *
 * - `hold`: run the work now.
 * - `accept`: run the work later. A key that is free becomes `pending`, without a holder.
 * - `take`: a worker runs work that waits: accepted, released or lapsed. Never creates a record.
 * - `find`: answers like `hold`, and creates, takes and moves nothing. A key that `hold` would get
 *   is
 *   `free`.
 */
export type ClaimMode = 'hold' | 'accept' | 'take' | 'find'

export interface ClaimRequest {
  readonly mode: ClaimMode
  /** Hash of tenant, operation and key, as 32 hexadecimal characters: the primary key. */
  readonly identity: string
  readonly tenant: string
  readonly operation: string
  readonly key: string
  /** Hash of the request. Another fingerprint on record means another request: `mismatch`. */
  readonly fingerprint: string
  /** The id of the record if this claim creates it. */
  readonly recordId: string
  /** The seed of the ids of the record if this claim creates it. See `StoredRecord.idSeed`. */
  readonly idSeed: string | undefined
  /** 128 random bits, new for each claim. A repeated claim recognises its own success by it. */
  readonly token: string
  /** Length of the lease that the claim takes. */
  readonly leaseMs: number
  /** How long the record is kept at least, from now. */
  readonly retentionMs: number
  readonly onLapse: OnLapse
  /** The lapse with this number makes the record `unknown`, with any `onLapse`. */
  readonly maxLapses: number
  /** `new` is the stored form of the option `rerun`. */
  readonly afterExpiry: AfterExpiry
  /** How long after its expiry the key is refused. `undefined`: for ever. See `afterExpiry`. */
  readonly refuseForMs: number | undefined
}

/**
 * The situation that a successful claim found.
 *
 * - `new`: no record.
 * - `retry`: a released record.
 * - `lapsed`: a record whose lease had ended. The claim has taken it over.
 * - `expired`: an expired record. A new record has replaced it.
 * - `accepted`: a `pending` record, which a worker has taken.
 */
export type ClaimedFrom = 'new' | 'retry' | 'lapsed' | 'expired' | 'accepted'

export type ClaimOutcome =
  /** The caller holds the key, and runs the work. */
  | {
      readonly kind: 'claimed'
      readonly lease: Lease
      readonly recordId: string
      /** The seed on record, which may differ from that of the request. */
      readonly idSeed: string | undefined
      readonly from: ClaimedFrom
      /** Where the operation of the record continues, if it has one. */
      readonly recoveryPoint: string | undefined
      readonly expiresAt: Date
    }
  /** The work was done before: replay this result. */
  | {
      readonly kind: 'completed'
      readonly recordId: string
      readonly result: Uint8Array
      readonly expiresAt: Date
    }
  /** Another attempt holds the key. */
  | {
      readonly kind: 'in_progress'
      readonly recordId: string
      /** Time until the lease of the holder ends. */
      readonly leaseLeftMs: number
      readonly expiresAt: Date
    }
  /** The work is accepted, and waits for a worker. */
  | {
      readonly kind: 'pending'
      readonly recordId: string
      /** This claim itself has accepted the work; `false` if an earlier one has. */
      readonly accepted: boolean
      readonly expiresAt: Date
    }
  /** The work may have had an effect. It must not run until a verdict. */
  | {
      readonly kind: 'unknown'
      readonly recordId: string
      /** The attempt whose outcome is unknown. */
      readonly attempt: number
      /** Time until the next reconciliation; 0 if it is due or not scheduled. */
      readonly reconcileInMs: number
      /** This claim itself found the lapsed lease and made the record `unknown`. */
      readonly lapsed: boolean
    }
  /** The key was used for another request, whose `fingerprint` is on record. */
  | { readonly kind: 'mismatch'; readonly recordId: string; readonly fingerprint: string }
  /**
   * The record has expired, and the claim has the mode `take`, or `afterExpiry: 'refuse'` whose
   * `refuseForMs` is not over. Also: a claim with the mode `take` found no record.
   */
  | { readonly kind: 'expired'; readonly recordId: string }
  /**
   * A claim with the mode `find` has found a key that `hold` would get. `recordId` is the id of the
   * request if there is no record.
   */
  | { readonly kind: 'free'; readonly recordId: string; readonly from: ClaimedFrom }

export interface Completion {
  /** The bytes that retries get. The store must keep a copy: the caller may reuse its buffer. */
  readonly result: Uint8Array
  /** How long the result is kept, from now. A later expiry that is already on record stays. */
  readonly retentionMs: number
}

/** How an attempt ends. */
export type Settlement =
  /** The work is done: the record becomes `completed`. */
  | ({ readonly kind: 'complete'; readonly lease: Lease } & Completion)
  /** The work had no effect: the record becomes `failed_retryable`. */
  | {
      readonly kind: 'release'
      /** `attempt: 0` matches any attempt of the token, for a claim whose answer was lost. */
      readonly lease: Lease
      readonly proof: Proof
      readonly errorCode: string | undefined
      readonly retentionMs: number
      /**
       * Delay until a worker may resume the operation of the record, if it has one.
       *
       * @default 0
       */
      readonly resumeAfterMs?: number | undefined
    }
  /** The work may have had an effect: the record becomes `unknown`. */
  | {
      readonly kind: 'doubt'
      readonly lease: Lease
      readonly errorCode: string | undefined
      /** Delay until the first reconciliation. */
      readonly reconcileAfterMs: number
    }

export type SettleOutcome =
  /** The record is in the requested state: by this call, or by an earlier one of the same lease. */
  | { readonly kind: 'settled'; readonly expiresAt: Date }
  /**
   * Nothing was written. `own`: the record still carries the token and attempt of this lease, but
   * is in another state. A `release` that follows its own `complete` thereby learns that the
   * completion was committed.
   */
  | { readonly kind: 'fenced'; readonly own: boolean; readonly state: RecordState | 'absent' }

export interface Renewal extends Lease {
  /** New length of the lease, from now. */
  readonly leaseMs: number
}

/** Names a record by its id or by its identity. */
export type RecordRef =
  | { readonly recordId: string; readonly identity?: never }
  | { readonly identity: string; readonly recordId?: never }

export interface Verdict {
  readonly ref: RecordRef
  /**
   * The attempt that was investigated. The verdict does not apply to any other.
   *
   * @default the current attempt
   */
  readonly attempt?: number | undefined
  readonly verdict:
    /** The work took effect: retries get this result. */
    | { readonly kind: 'completed'; readonly result: Uint8Array }
    /** The work had no effect: the key may be claimed again. */
    | { readonly kind: 'failed_retryable' }
  /** How long the record is kept, from now. A later expiry that is already on record stays. */
  readonly retentionMs: number
}

export type ResolveOutcome =
  /** The record as the verdict has made it. */
  | { readonly kind: 'resolved'; readonly record: RecordView }
  /** Nothing was written: the record has this other state. */
  | { readonly kind: 'not_unknown'; readonly state: RecordState }
  /** Nothing was written: the record is `unknown` because of this other attempt. */
  | { readonly kind: 'other_attempt'; readonly attempt: number }
  /** Nothing was written: there is no such record. */
  | { readonly kind: 'not_found' }

/** Names a result that is to be discarded. */
export interface Discard {
  readonly ref: RecordRef
  /** The attempt that has made the result. The result of any other attempt stays. */
  readonly attempt: number
  /**
   * A new seed for the ids of later attempts.
   *
   * @default the seed on record stays
   */
  readonly idSeed?: string | undefined
}

export type DiscardOutcome =
  /** The record without its result. A repeated call gets this again. */
  | { readonly kind: 'discarded'; readonly record: RecordView; readonly repeated: boolean }
  /** Nothing was written: the record has this other state. */
  | { readonly kind: 'not_completed'; readonly recordId: string; readonly state: RecordState }
  /** Nothing was written: the result is that of this other attempt. */
  | { readonly kind: 'other_attempt'; readonly recordId: string; readonly attempt: number }
  /** Nothing was written: there is no such record. */
  | { readonly kind: 'not_found' }

/** A lapsed record that a sweep has moved. */
export interface SweptRecord {
  readonly identity: string
  readonly recordId: string
  readonly tenant: string
  readonly operation: string
  /** The attempt whose lease has ended. */
  readonly attempt: number
  readonly to: 'unknown' | 'failed_retryable'
}

export interface ReapRequest {
  readonly limit: number
  /**
   * Completes accepted records that no worker has taken before their expiry with this result, and
   * keeps them for its retention.
   *
   * @default such records stay as they are
   */
  readonly abandoned?: Completion | undefined
}

export interface ReapReport {
  /** Records that were removed, or moved to the history; also `expired` records. */
  readonly removed: number
  /** Records that became `expired`, so that their key stays refused. */
  readonly expired: number
  /** Accepted records that were completed with the result of `ReapRequest.abandoned`. */
  readonly abandoned: number
}

export interface HistoryQuery {
  readonly ref: RecordRef
  readonly limit: number
}

export interface ListQuery {
  readonly state: RecordState
  readonly limit: number
}

/** The fields of a stored record that a view leaves out, or has as a `Date`. */
type HiddenFields =
  | 'token'
  | 'leaseMs'
  | 'leaseUntilMs'
  | 'reconcileAtMs'
  | 'createdAtMs'
  | 'lastRunAtMs'
  | 'completedAtMs'
  | 'expiresAtMs'

/** A record for people and tools: all fields that they may see, and no token. */
export interface RecordView extends Omit<StoredRecord, HiddenFields> {
  /** When the current lease ends, or the last one ended. By the store's clock. */
  readonly leaseUntil: Date
  /** When the record is due for the reconciler or a worker; `undefined` if it is not scheduled. */
  readonly reconcileAt: Date | undefined
  /** When the record was created. By the store's clock. */
  readonly createdAt: Date
  /** When the record was last claimed or accepted. By the store's clock. */
  readonly lastRunAt: Date
  /** When the result was recorded; `undefined` before that. By the store's clock. */
  readonly completedAt: Date | undefined
  /** When the record expires. By the store's clock. */
  readonly expiresAt: Date
}
