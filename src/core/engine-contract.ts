import type { BreakerOptions } from './breaker-options.ts'
import type { Clock } from './clock.ts'
import type { EngineEvent, EventListener } from './events.ts'
import type { RunOutcome, Work } from './execution.ts'
import type { Scope } from './identity.ts'
import type { Policy, PolicyOptions } from './policy.ts'
import type { RecordState } from './record.ts'
import type { EngineHealth } from './store-health.ts'
import type { Completion, RecordView, Store } from './store.ts'

/** What an engine needs, and the policy of the work that brings none of its own. */
export interface EngineOptions extends PolicyOptions {
  store: Store

  /** Hears everything the engine does. It must not throw; if it does, it is warned about. */
  onEvent?: EventListener

  /**
   * How long a store call may take before it counts as failed and the request is refused.
   *
   * @default 5_000
   */
  storeTimeoutMs?: number

  /**
   * Refuses claims at once while the store fails, instead of letting each wait for
   * `storeTimeoutMs`. Recording results and renewing leases always try. `false`: every claim is
   * sent.
   *
   * @default on, with the defaults of its options
   */
  breaker?: BreakerOptions | false

  /**
   * How often silent holders are looked for, for keys that nobody asks for. `0`: never, because
   * another process does it.
   *
   * @default 60_000
   */
  sweepEveryMs?: number

  /**
   * How often expired records are removed. `0`: never, because another process does it.
   *
   * @default 3_600_000 (one hour)
   */
  reapEveryMs?: number

  /** For tests. @default the system's clock */
  clock?: Clock
}

/** One piece of work, as its caller identifies it. */
export interface RunRequest {
  readonly scope: Scope
  readonly key: string
  /** What makes two requests under one key the same request: usually a hash. */
  readonly fingerprint: string
  /**
   * Computes the fingerprint the way a stored one was made (an older version, an older secret);
   * `undefined` where that is not possible.
   */
  readonly recompute?: (stored: string) => string | undefined
  /**
   * Sends the claim also while the breaker is open: for callers that run their work unprotected
   * when the store fails, so that an open breaker alone never makes them do so.
   */
  readonly ignoresBreaker?: boolean
  /** From `engine.policy(...)`. @default the engine's own */
  readonly policy?: Policy
}

/** A record by its opaque id, or by what its client would send. */
export type ResolveTarget =
  | { readonly recordId: string }
  | { readonly scope: Scope; readonly key: string }

/** What is now known about an `unknown` record. */
export type ResolveVerdict =
  /** It took effect (or failed for good): retries get these bytes. */
  | { readonly kind: 'completed'; readonly result: Uint8Array }
  /** It provably had no effect: the next request with its key may run it. */
  | { readonly kind: 'failed_retryable' }

export type ResolveResult =
  | { readonly kind: 'resolved'; readonly record: RecordView }
  | { readonly kind: 'not_unknown'; readonly state: RecordState }
  /** It is unknown, but by another attempt than the one that was looked into. */
  | { readonly kind: 'other_attempt'; readonly attempt: number }
  | { readonly kind: 'not_found' }

export interface ReapOptions {
  /**
   * What accepted work that nobody has taken by its expiry is completed with, and for how long
   * that is kept. Without it such records are left alone.
   */
  readonly abandoned?: Completion
}

export interface CloseReport {
  /** Work that was still running, and results still unrecorded, when the grace was over. */
  readonly abandoned: number
}

export interface Engine {
  readonly store: Store

  /** The time it goes by, for whatever works beside it. */
  readonly clock: Clock

  /** `close()` was called: it takes no more work. */
  readonly isClosed: boolean

  /**
   * Runs `work` at most once per key and gives its result to every retry. An error of the work is
   * thrown on, after its record was settled. `STORE_FAILED` means that the work did not run, unless
   * the work itself has thrown it (from its transaction).
   */
  run(request: RunRequest, work: Work): Promise<RunOutcome>

  /**
   * Takes a record whose operation waits (accepted, released or lapsed) and runs `work` under it.
   * Runs nothing, and says so, where it waits no more.
   */
  resume(record: RecordView, work: Work, policy?: Policy): Promise<RunOutcome>

  /** A policy to run under: the engine's own, with these changes. Throws on wrong values. */
  policy(options: PolicyOptions): Policy

  /**
   * Gives an `unknown` record its verdict. Say which `attempt` was looked into, so that a verdict
   * that comes late, or twice, never decides about a later one.
   */
  resolve(
    target: ResolveTarget & { readonly attempt?: number },
    verdict: ResolveVerdict,
  ): Promise<ResolveResult>

  read(target: ResolveTarget): Promise<RecordView | undefined>

  /**
   * Whether this process should get requests, for readiness probes. Asks the store by a write
   * that changes nothing, unless it was asked within the last second. Never rejects, and takes at
   * most half of `storeTimeoutMs`.
   */
  health(): Promise<EngineHealth>

  /**
   * Resolves at once while claims may be sent; while the breaker is open, once it closes, `signal`
   * aborts or the engine is closed. For what works beside requests: it pauses meanwhile.
   */
  untilStoreAnswers(signal?: AbortSignal): Promise<void>

  /** Records in one state, oldest run first. @default limit 100 */
  list(query: { state: RecordState; limit?: number }): Promise<RecordView[]>

  /** One bounded pass over silent holders; returns how many records it moved on. */
  sweep(): Promise<number>

  /** One bounded pass over expired records; returns how many it removed or completed. */
  reap(options?: ReapOptions): Promise<number>

  /**
   * Takes no new work, waits for what runs (at most `graceMs`) and for its results to be
   * recorded. Call it once the server has answered its last request, and before the store is
   * closed: a request whose body is still arriving when this is called gets 503.
   *
   * @default graceMs 10_000
   */
  close(options?: { graceMs?: number }): Promise<CloseReport>

  /** For adapters and tools: reports an event as if the engine had seen it. */
  emit(event: EngineEvent): void
}
