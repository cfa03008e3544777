import type { DurableStore } from './durable-store.ts'
import type { AfterExpiry, OnLapse, Proof, RecordState } from './record.ts'

/**
 * Where records live. A store moves opaque bytes: it never learns that a result is an HTTP reply.
 *
 * Calls take batches, because a durable write costs the same for one row as for fifty. The answers
 * come in the order of the requests. A call that throws says nothing about what it wrote, unless
 * its `StoreFailedError` says `rejected`; every call may therefore be repeated with the same
 * tokens, and a repeat recognises itself.
 *
 * Each call takes an `AbortSignal` last. The engine aborts it when it stops waiting for the call
 * (`storeTimeoutMs`). The store then destroys the connection that the call uses and rejects: a
 * connection whose network went silent would otherwise stay with the call for ever. A store never
 * cancels the statement in the database, because a commit that waits for a synchronous standby
 * would become visible without being replicated.
 *
 * Every store must pass the cases in `testing/store-cases.ts`: what is written there is the
 * contract, and this interface is only its shape.
 */
export interface Store {
  /** Short and stable, for logs and test names: `memory`, `sqlite`. */
  readonly name: string

  /** How the engine should batch for this store. */
  readonly batching?: StoreBatching

  /**
   * Takes keys for their callers, or says who has them. Of any number of racing claims on one
   * key, exactly one gets `claimed`. Commits alone, never inside a caller's transaction. A claim
   * that meets a lapsed lease makes the move the record's `onLapse` asks for. A claim that is
   * answered from a finished record writes nothing.
   */
  claim(requests: readonly ClaimRequest[], signal?: AbortSignal): Promise<ClaimOutcome[]>

  /** Ends leases. Writes only while the record still carries the lease's token and attempt. */
  settle(settlements: readonly Settlement[], signal?: AbortSignal): Promise<SettleOutcome[]>

  /** Prolongs leases, from now. `false` where the record has moved on. */
  renew(renewals: readonly Renewal[], signal?: AbortSignal): Promise<boolean[]>

  /**
   * A write that changes nothing, for finding out whether the store takes writes. Present where
   * renewing an absent lease does not write, because it reads first. `identity` is that of no
   * record; where the store has lanes, its lane is the one that is probed.
   */
  probe?(identity: string, signal?: AbortSignal): Promise<void>

  /** Gives `unknown` records their verdict. */
  resolve(verdicts: readonly Verdict[], signal?: AbortSignal): Promise<ResolveOutcome[]>

  /** Moves at most `limit` lapsed records on, by their `onLapse`. Safe on every node at once. */
  sweep(request: { readonly limit: number }, signal?: AbortSignal): Promise<SweptRecord[]>

  /**
   * Ends what is past its retention, at most `limit` records: removes results and releases, and
   * completes what was accepted and never taken. Never one that is `unknown` or in use. Safe on
   * every node at once: what somebody else works on is left for the next time.
   */
  reap(request: ReapRequest, signal?: AbortSignal): Promise<ReapReport>

  read(ref: RecordRef, signal?: AbortSignal): Promise<RecordView | undefined>

  /**
   * Records in one state, oldest first: `completed` by expiry, others by last run. Without their
   * results, which may be large: `read` has them.
   */
  list(query: ListQuery, signal?: AbortSignal): Promise<RecordView[]>

  /**
   * Present where the store can commit a key together with the caller's own rows.
   *
   * Opens a transaction, hands it to `work`, records the result that `work` returns as the last
   * statement, and commits. If `work` throws, everything is rolled back and the error passes
   * through. If the lease is lost, everything is rolled back and the outcome is `fenced`. If `work`
   * has ended the transaction itself, what it wrote may be kept or not, and whether it returns or
   * throws, the call throws `OutcomeUnknownError`.
   *
   * The signal is aborted when the transaction does not begin in time, or does not commit in time
   * after `work` has returned. The time that `work` takes is limited by the store itself.
   */
  transaction?(
    lease: Lease,
    work: (tx: unknown) => Completion | Promise<Completion>,
    signal?: AbortSignal,
  ): Promise<SettleOutcome>

  /**
   * Present where the store can complete a key inside a transaction that the caller has begun, on
   * a client of its own kind. Call it last in the transaction. Nothing is decided until the caller
   * commits, and where the outcome is `fenced`, the caller must roll back. `settled` only where
   * this very call has written: what an earlier transaction of the same lease has committed is
   * `fenced`, `own`, `completed`. Throws `InvalidOptionsError` where no transaction is open. Takes
   * no signal: the connection belongs to the caller.
   */
  settleIn?(tx: unknown, lease: Lease, completion: Completion): Promise<SettleOutcome>

  /**
   * Present where expired records are kept for audit instead of being removed. Those of one key or
   * of one record id, newest first.
   */
  history?(query: HistoryQuery, signal?: AbortSignal): Promise<RecordView[]>

  /**
   * Present where the store can tell that a record which is held elsewhere has moved on. Calls
   * `wake` when that happens, or at once if it has happened already; perhaps never, and perhaps
   * for nothing, so callers look for themselves now and then. Returns what ends the watch.
   */
  watch?(identity: string, wake: () => void): () => void

  /** The clock that the store goes by, where that is not this process's own. */
  now?(signal?: AbortSignal): Promise<Date>

  /** Present where the store keeps operations, an outbox and an audit beside its records. */
  readonly durable?: DurableStore

  /** Frees what the store opened itself. Calls after it fail. */
  close?(): Promise<void>
}

export interface StoreBatching {
  /** Rows in one call at the most. */
  readonly rowsMax?: number
  /** Calls of one kind under way at the same time. */
  readonly flushesMax?: number
  /**
   * Transactions with work of the caller's that it carries at the same time. The engine has the
   * others wait, and lets the tenants take turns.
   *
   * @default no limit: who comes first is served first
   */
  readonly transactionsMax?: number
  /** The same for steps of operations without such work. @default `transactionsMax` */
  readonly stepsMax?: number
  /** Parts of the store that answer and fail apart. @default none: the store is one whole */
  readonly lanes?: StoreLanes
}

/**
 * Parts of a store that answer and fail apart, such as the slots of a cluster. Requests for
 * different lanes never share a call, so that a lane that fails or is silent holds up no other.
 * Calls for several lanes that are sent together share one signal.
 */
export interface StoreLanes {
  /** How many lanes there are: 1 to 256. It bounds the calls under way and the probes. */
  readonly count: number
  /**
   * Calls of one kind under way in each lane at the same time.
   *
   * @default 1; with `rowsMax: 1` the lanes share the calls of the store, and only their failures
   * are told apart
   */
  readonly flushesMax?: number
  /**
   * The lane of a record, from 0. `undefined` while the store is one whole: such requests have
   * `StoreBatching.flushesMax` calls to themselves.
   */
  of(identity: string): number | undefined
}

/** Proof of holding a key: the record takes orders only from its own token and attempt. */
export interface Lease {
  readonly identity: string
  readonly token: string
  readonly attempt: number
}

/**
 * What a claim is after. `hold`: to run the work now. `accept`: to have it run later; a free key
 * becomes `pending`. `take`: to run what was accepted, and only that: it creates nothing.
 */
export type ClaimMode = 'hold' | 'accept' | 'take'

export interface ClaimRequest {
  readonly mode: ClaimMode
  readonly identity: string
  readonly tenant: string
  readonly operation: string
  readonly key: string
  readonly fingerprint: string
  /** Becomes the record's id if this claim creates it. */
  readonly recordId: string
  /** Random, 128 bits, new for every claim: how a repeated claim recognises its own success. */
  readonly token: string
  readonly leaseMs: number
  readonly retentionMs: number
  readonly onLapse: OnLapse
  /** How many attempts may fall silent before the record becomes `unknown` whatever `onLapse`. */
  readonly maxAttempts: number
  readonly afterExpiry: AfterExpiry
}

/** `expired`: in place of an expired record. `lapsed`: taken from a silent holder. */
export type ClaimedFrom = 'new' | 'retry' | 'lapsed' | 'expired' | 'accepted'

export type ClaimOutcome =
  | {
      readonly kind: 'claimed'
      readonly lease: Lease
      readonly recordId: string
      readonly from: ClaimedFrom
      readonly recoveryPoint: string | undefined
      readonly expiresAt: Date
    }
  | {
      readonly kind: 'completed'
      readonly recordId: string
      readonly result: Uint8Array
      readonly expiresAt: Date
    }
  | {
      readonly kind: 'in_progress'
      readonly recordId: string
      readonly leaseLeftMs: number
      readonly expiresAt: Date
    }
  | {
      readonly kind: 'pending'
      readonly recordId: string
      /** By this very claim. */
      readonly accepted: boolean
      readonly expiresAt: Date
    }
  | {
      readonly kind: 'unknown'
      readonly recordId: string
      /** The attempt whose outcome is unknown. */
      readonly attempt: number
      readonly reconcileInMs: number
      /** This very claim found the lease lapsed and moved the record to `unknown`. */
      readonly lapsed: boolean
    }
  /** The key was used for another request. `fingerprint` is the one on record. */
  | { readonly kind: 'mismatch'; readonly recordId: string; readonly fingerprint: string }
  /** The record has expired and the claim asked for `afterExpiry: 'refuse'`, or to take it. */
  | { readonly kind: 'expired'; readonly recordId: string }

export interface Completion {
  readonly result: Uint8Array
  /** Kept this long from now; an expiry published earlier never moves back. */
  readonly retentionMs: number
}

export type Settlement =
  | ({ readonly kind: 'complete'; readonly lease: Lease } & Completion)
  | {
      readonly kind: 'release'
      /** `attempt: 0` matches any attempt of the token: for a claim whose answer never came. */
      readonly lease: Lease
      readonly proof: Proof
      readonly errorCode: string | undefined
      readonly retentionMs: number
      /** When a worker may go on with it, where it has an operation. @default at once */
      readonly resumeAfterMs?: number | undefined
    }
  | {
      readonly kind: 'doubt'
      readonly lease: Lease
      readonly errorCode: string | undefined
      readonly reconcileAfterMs: number
    }

export type SettleOutcome =
  /** The record is as the settlement says: by this call, or by an earlier one of the same lease. */
  | { readonly kind: 'settled'; readonly expiresAt: Date }
  /**
   * Nothing was written. `own` is true where the record still carries this lease's token but has
   * moved on (so a `release` that meets its own `complete` learns that it had committed).
   */
  | { readonly kind: 'fenced'; readonly own: boolean; readonly state: RecordState | 'absent' }

export interface Renewal extends Lease {
  readonly leaseMs: number
}

/** A record by its opaque id, or by its identity hash. */
export type RecordRef =
  | { readonly recordId: string; readonly identity?: never }
  | { readonly identity: string; readonly recordId?: never }

export interface Verdict {
  readonly ref: RecordRef
  /** The attempt that was looked into. A verdict on it must not touch a later one. */
  readonly attempt?: number | undefined
  readonly verdict:
    | { readonly kind: 'completed'; readonly result: Uint8Array }
    | { readonly kind: 'failed_retryable' }
  readonly retentionMs: number
}

export type ResolveOutcome =
  | { readonly kind: 'resolved'; readonly record: RecordView }
  | { readonly kind: 'not_unknown'; readonly state: RecordState }
  /** The record is unknown, but by another attempt than the one the verdict is about. */
  | { readonly kind: 'other_attempt'; readonly attempt: number }
  | { readonly kind: 'not_found' }

export interface SweptRecord {
  readonly identity: string
  readonly recordId: string
  readonly tenant: string
  readonly operation: string
  readonly attempt: number
  readonly to: 'unknown' | 'failed_retryable'
}

export interface ReapRequest {
  readonly limit: number
  /**
   * What becomes of accepted work that nobody has taken by its expiry: this result, kept for its
   * retention. Without it such records are left alone.
   */
  readonly abandoned?: Completion | undefined
}

export interface ReapReport {
  /** Records removed, or moved into the history. */
  readonly removed: number
  /** Records kept without their result, so that their key stays refused. */
  readonly expired: number
  /** Accepted records completed with the result that the request brought. */
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

/** A record as shown to people and tools: everything but the fence. */
export interface RecordView {
  readonly identity: string
  readonly recordId: string
  readonly tenant: string
  readonly operation: string
  readonly key: string
  readonly fingerprint: string
  readonly state: RecordState
  readonly attempt: number
  readonly lapses: number
  readonly onLapse: OnLapse
  readonly afterExpiry: AfterExpiry
  readonly proof: Proof | undefined
  readonly recoveryPoint: string | undefined
  readonly result: Uint8Array | undefined
  readonly errorCode: string | undefined
  readonly leaseUntil: Date
  readonly reconcileAt: Date | undefined
  readonly tries: number
  readonly createdAt: Date
  readonly lastRunAt: Date
  readonly completedAt: Date | undefined
  readonly expiresAt: Date
}
