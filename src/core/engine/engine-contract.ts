import type { BreakerOptions } from '../health/breaker-options.ts'
import type { Encryption } from '../encryption.ts'
import type { Clock } from '../time/clock.ts'
import type { EngineEvent, EventListener } from '../events.ts'
import type { RunOutcome } from '../attempt/run-outcome.ts'
import type { Work } from '../attempt/run-context.ts'
import type { Scope } from '../record/identity.ts'
import type { Policy, PolicyOptions } from './policy.ts'
import type { RecordState } from '../record/record.ts'
import type { HashKeysOptions } from '../record/stored-keys.ts'
import type { EngineHealth } from '../health/store-health.ts'
import type { Completion, RecordView, ResolveOutcome, Store } from '../store/store.ts'

/** The options of `createEngine`, and the policy of work that has no other policy. */
export interface EngineOptions extends PolicyOptions {
  /** Where records are kept, such as `postgresStore({ pool })`. */
  store: Store

  /**
   * Called synchronously for each event. Must not throw: an error is ignored, with a warning. With
   * a listener, nothing is printed.
   *
   * @default none: store failures, records that become `unknown` and other failures that an
   * operator must see are printed as warnings
   */
  onEvent?: EventListener

  /**
   * How long a store call may take before it counts as failed and the request is refused, at most a
   * week. A shorter timeout frees callers sooner; a timeout that is too short turns a busy store
   * into refused requests.
   *
   * @default 5_000
   */
  storeTimeoutMs?: number

  /**
   * Refuses claims at once while the store fails, instead of letting each of them wait for
   * `storeTimeoutMs`. Results and renewals of leases are always sent. `false`: every claim is sent.
   *
   * @default on: `failures` is 3, and `pauseMsMax` is half of `storeTimeoutMs`, at most 15_000
   */
  breaker?: BreakerOptions | false

  /**
   * How often the engine looks for lapsed leases, at most a week. Only keys without further
   * requests need it: a claim that finds a lapsed lease makes the move itself. Shorter intervals
   * find crashed work sooner and cost more store calls. `0`: never, because another process does
   * it.
   *
   * @default 60_000
   */
  sweepEveryMs?: number

  /**
   * How often expired records are removed, at most a week. The interval affects space only: an
   * expired record counts as expired at once. `0`: never, because another process does it.
   *
   * @default 3_600_000 (one hour)
   */
  reapEveryMs?: number

  /**
   * Encrypts what is stored: replies of guards; inputs, requests and results of operations;
   * payloads of messages. The default of every guard, status handler, operation, outbox, relay,
   * reconciler and operator on this engine. The results of `engine.run` itself are stored as they
   * are.
   *
   * @default none: data is stored as it is
   */
  encryption?: Encryption

  /**
   * Refuses stored data that is not encrypted: only code with the encryption key can then make a
   * reply or a payload. Needs `encryption`. Switch it on when the last plain data has expired.
   *
   * @default false
   */
  requireEncryption?: boolean

  /**
   * Stores an HMAC of each client's key instead of the key. Records stay the same records when this
   * is switched on or a secret changes, because `identity`, a hash without a secret, names them. A
   * key that can be guessed can therefore still be found by trying; a random key cannot. A worker
   * sees the stored text as `context.key`.
   *
   * @default none: keys are stored as the client sent them
   */
  hashKeys?: HashKeysOptions

  /** The source of time, for tests. @default the system's clock */
  clock?: Clock
}

/** One request: its key, and the policy to run it under. */
export interface RunRequest {
  /** The tenant, at most 255 characters, and the operation, at most 1024. */
  readonly scope: Scope
  /** The key of the client, at most 1024 characters. */
  readonly key: string
  /**
   * Distinguishes a retry from another request under the same key: usually a hash of the request.
   * At most 255 characters.
   */
  readonly fingerprint: string
  /**
   * Computes the fingerprint in the way in which `stored` was made: with an older version or an
   * older secret. Returns `undefined` if that is not possible.
   *
   * @default none: a request with a different fingerprint is a mismatch
   */
  readonly recompute?: (stored: string) => string | undefined
  /**
   * Sends the claim even while the breaker is open. For callers that run their work unprotected
   * when the store fails: an open breaker alone then never makes them do so.
   *
   * @default false
   */
  readonly ignoresBreaker?: boolean
  /**
   * Looks the key up instead of claiming it: the work never runs, and nothing is recorded. A key
   * whose work would run gets the outcome `free`.
   *
   * @default false
   */
  readonly findOnly?: boolean
  /**
   * The encryption of the work. It is prepared before the key is claimed; if that fails, the key is
   * only looked up, as with `findOnly`. `false`: the work stores nothing encrypted, or the caller
   * has prepared it.
   *
   * @default the encryption of the engine
   */
  readonly encryption?: Encryption | false
  /** From `engine.policy(…)`. @default the policy of the engine */
  readonly policy?: Policy
}

/** A record by its opaque id, or by its scope and key. */
export type ResolveTarget =
  | { readonly recordId: string }
  | { readonly scope: Scope; readonly key: string }

/** The verdict on an `unknown` record. */
export type ResolveVerdict =
  /** The work took effect, or failed permanently: retries get these bytes. */
  | { readonly kind: 'completed'; readonly result: Uint8Array }
  /** The work certainly had no effect: the next request with its key runs it. */
  | { readonly kind: 'failed_retryable' }

/** The outcome of `engine.resolve()`. Only `resolved` changed the record. */
export type ResolveResult = ResolveOutcome

/** The options of `engine.reap()`. */
export interface ReapOptions {
  /**
   * The result that completes accepted work which no worker has taken by its expiry, and how long
   * that result is kept.
   *
   * @default none: such records are not changed
   */
  readonly abandoned?: Completion
}

/** The outcome of `engine.close()`. */
export interface CloseReport {
  /** Work that still ran, and results that were not recorded, when `graceMs` was over. */
  readonly abandoned: number
}

/** Claims, runs, renews and settles on one store. Create one for each store and process. */
export interface Engine {
  /** The store of the engine. */
  readonly store: Store

  /** The clock of the engine, for workers, relays and other parts that share it. */
  readonly clock: Clock

  /** The encryption of every part on this engine that has no other. */
  readonly encryption: Encryption | undefined

  /** Whether these parts refuse stored data that is not encrypted. */
  readonly requireEncryption: boolean

  /** Whether `close()` was called. The engine then takes no new work. */
  readonly isClosed: boolean

  /**
   * Runs `work` at most once for each key, and returns its result to every retry. Rethrows an error
   * of the work after its record was settled. `STORE_FAILED` means that the work did not run,
   * unless the work itself threw it (from its transaction).
   */
  run(request: RunRequest, work: Work): Promise<RunOutcome>

  /**
   * Claims a record whose operation waits (accepted, released or lapsed) and runs `work`. If the
   * operation no longer waits, nothing runs, and the outcome says why.
   *
   * @default policy: the policy of the engine
   */
  resume(record: RecordView, work: Work, policy?: Policy): Promise<RunOutcome>

  /** Returns the policy of the engine with these options changed. Throws on wrong values. */
  policy(options: PolicyOptions): Policy

  /**
   * Gives an `unknown` record its verdict. Pass the `attempt` that the verdict is about: a verdict
   * that arrives late, or twice, then never decides about a later attempt.
   *
   * @default attempt: the current one
   */
  resolve(
    target: ResolveTarget & { readonly attempt?: number },
    verdict: ResolveVerdict,
  ): Promise<ResolveResult>

  /**
   * Whether this principal is part of the scope of the record, whose key may be plain or hashed.
   * `false` for a record whose key is no longer kept, or was hashed with a secret that the engine
   * does not have.
   */
  isOwnedBy(record: RecordView, principal: string): boolean

  /** Returns one record, or `undefined` if there is none. */
  read(target: ResolveTarget): Promise<RecordView | undefined>

  /**
   * Whether this process should get requests, for readiness probes. Sends the store a write that
   * changes nothing, at most one a second. Never rejects, and takes at most half of
   * `storeTimeoutMs`.
   */
  health(): Promise<EngineHealth>

  /**
   * Resolves at once while claims may be sent. While the breaker is open, resolves when it closes,
   * `signal` aborts or the engine is closed. Workers, relays and other background work wait for it.
   */
  untilStoreAnswers(signal?: AbortSignal): Promise<void>

  /**
   * Lists the records in one state: `completed` by expiry, others by last run, oldest first.
   * Without their results: `read` has them. `limit` is at most 10_000.
   *
   * @default limit 100
   */
  list(query: { state: RecordState; limit?: number }): Promise<RecordView[]>

  /** Makes one limited pass over lapsed leases. Returns the number of records that it moved. */
  sweep(): Promise<number>

  /** Makes one limited pass over expired records. Returns how many it removed or completed. */
  reap(options?: ReapOptions): Promise<number>

  /**
   * Takes no new work, and waits until running work has ended and its results are recorded, at most
   * `graceMs`. Call it after the server has answered its last request, and before you close the
   * store: a request whose body still arrives during the call gets 503. A longer grace period, up
   * to a day, abandons less work; a shorter one, down to 0, ends the process sooner.
   *
   * @default graceMs 10_000
   */
  close(options?: { graceMs?: number }): Promise<CloseReport>

  /** Passes an event to the listener of the engine. For adapters and tools. */
  emit(event: EngineEvent): void
}
