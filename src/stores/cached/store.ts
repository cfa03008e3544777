import { withTimeLimit } from '../../core/time/time-limit.ts'
import { callStore } from '../../core/store/store-call.ts'
import { Breaker } from '../../core/health/breaker.ts'
import type { DurableStore } from '../../core/store/durable-store.ts'
import type { StoreBatching } from '../../core/store/batching.ts'
import type {
  ClaimOutcome,
  ClaimRequest,
  Discard,
  DiscardOutcome,
  Lease,
  ListQuery,
  ReapReport,
  ReapRequest,
  RecordRef,
  RecordView,
  Renewal,
  ResolveOutcome,
  SettleOutcome,
  Settlement,
  Store,
  SweptRecord,
  Verdict,
} from '../../core/store/store.ts'
import type { Clock } from '../../core/time/clock.ts'
import { warnOnce } from '../../core/warn.ts'
import { cachedDurable } from './cached-durable.ts'
import { DatabaseClock } from './database-clock.ts'
import { decodeEntry } from './entry.ts'
import { Fills } from './fills.ts'
import { HeldClaims, type HeldClaim } from './held-claims.ts'
import {
  resolveCachedStoreOptions,
  type CachedStoreOptions,
  type CacheFailure,
  type ResolvedCachedStoreOptions,
} from './options.ts'
import { isSameRequest, isStillKept, mayAskCache } from './serving.ts'

/** Longer than the timeout of a read, because an operator waits for it, not a client. */
const FORGET_TIMEOUT_MS = 5000

const CLOCK_TIMEOUT_MS = 5000

/** Failures in a row before the cache is not used for a while. One failure may be an accident. */
const FAILURES_MAX = 3
const BREAK_MS = 5000

export interface CachedStore extends Store {
  /**
   * For a record that was removed or changed with SQL: drops its reply from the cache, and blocks
   * fills that other nodes may still send. Change the database first, or the old reply may return.
   * Rejects if the cache cannot be reached; until a call succeeds, the old reply may be replayed.
   */
  forget(identity: string): Promise<void>
}

/**
 * Reads completed replies through a cache. Only the durable store decides which request runs and
 * with which result: a cache that is lost, stale, slow or wrong never changes an answer.
 */
export function cachedStore(options: CachedStoreOptions): CachedStore {
  return new ReadThroughStore(resolveCachedStoreOptions(options))
}

/** In the order of the requests; `undefined` if the durable store must be asked. */
type Hits = readonly (ClaimOutcome | undefined)[]

class ReadThroughStore implements CachedStore {
  readonly name: string
  readonly batching?: StoreBatching
  readonly transaction?: NonNullable<Store['transaction']>
  readonly settleIn?: NonNullable<Store['settleIn']>
  readonly history?: NonNullable<Store['history']>
  readonly watch?: NonNullable<Store['watch']>
  readonly discard?: NonNullable<Store['discard']>
  readonly now?: NonNullable<Store['now']>
  readonly probe?: NonNullable<Store['probe']>
  readonly durable?: DurableStore
  readonly close?: NonNullable<Store['close']>
  readonly #options: ResolvedCachedStoreOptions
  readonly #durable: Store
  readonly #databaseClock: DatabaseClock
  readonly #reads: Breaker
  readonly #fills: Fills
  readonly #held = new HeldClaims()
  #isClosed = false

  constructor(options: ResolvedCachedStoreOptions) {
    const { durable, cache, clock, resultBytesMax } = options
    this.#options = options
    this.#durable = durable
    this.#databaseClock = new DatabaseClock({
      clock,
      now: durable.now && (() => this.#durableNow()),
      onFailure: (error) => this.#report({ operation: 'clock', error }),
    })
    this.#reads = cacheBreaker(clock)
    this.#fills = new Fills({
      cache,
      clock,
      resultBytesMax,
      databaseClock: this.#databaseClock,
      breaker: cacheBreaker(clock),
      onFailure: (error) => this.#report({ operation: 'fill', error }),
    })

    this.name = `cached(${durable.name})`
    if (durable.batching) this.batching = durable.batching
    if (durable.transaction) {
      this.transaction = (lease, work, signal) =>
        durable.transaction!(this.#markUsed(lease), work, signal)
    }
    if (durable.settleIn) {
      this.settleIn = (tx, lease, completion) =>
        durable.settleIn!(tx, this.#markUsed(lease), completion)
    }
    if (durable.history) this.history = (query, signal) => durable.history!(query, signal)
    if (durable.watch) this.watch = (identity, wake) => durable.watch!(identity, wake)
    if (durable.probe) this.probe = (identity, signal) => durable.probe!(identity, signal)
    if (durable.discard) this.discard = (discard, signal) => this.#discard(discard, signal)
    if (durable.now) this.now = (signal) => durable.now!(signal)
    if (durable.durable) {
      this.durable = cachedDurable({
        durable: durable.durable,
        read: (ref, signal) => durable.read(ref, signal),
        forget: (identity) => this.forget(identity),
        onFailure: (error) => this.#report({ operation: 'forget', error }),
        markUsed: (lease) => this.#markUsed(lease),
      })
    }
    if (durable.close) this.close = () => this.#close()
  }

  async claim(requests: readonly ClaimRequest[], signal?: AbortSignal): Promise<ClaimOutcome[]> {
    const hits = await this.#lookUp(requests)
    const rest = requests.filter((_, n) => hits[n] === undefined)
    const outcomes =
      rest.length === 0 && hits.length > 0 ? [] : await this.#claimDurably(rest, signal)
    let next = 0
    return requests.map((_, n) => hits[n] ?? outcomes[next++]!)
  }

  async settle(settlements: readonly Settlement[], signal?: AbortSignal): Promise<SettleOutcome[]> {
    const askedMs = this.#options.clock.monotonicMs()
    const claims = settlements.map(({ lease }) => this.#held.use(lease.token))
    const outcomes = await this.#durable.settle(settlements, signal)
    settlements.forEach((settlement, n) => {
      this.#fillSettled(settlement, { claim: claims[n], outcome: outcomes[n], askedMs })
    })
    return outcomes
  }

  renew(renewals: readonly Renewal[], signal?: AbortSignal): Promise<boolean[]> {
    return this.#durable.renew(renewals, signal)
  }

  // The next calls change nothing in the cache: it has only completed replies, which get no
  // verdict, do not lapse, and are not reaped before the expiry in their entry. `cachedDurable`
  // and `discard` handle replies that an operator discards.

  resolve(verdicts: readonly Verdict[], signal?: AbortSignal): Promise<ResolveOutcome[]> {
    return this.#durable.resolve(verdicts, signal)
  }

  sweep(request: { readonly limit: number }, signal?: AbortSignal): Promise<SweptRecord[]> {
    return this.#durable.sweep(request, signal)
  }

  reap(request: ReapRequest, signal?: AbortSignal): Promise<ReapReport> {
    return this.#durable.reap(request, signal)
  }

  read(ref: RecordRef, signal?: AbortSignal): Promise<RecordView | undefined> {
    return this.#durable.read(ref, signal)
  }

  list(query: ListQuery, signal?: AbortSignal): Promise<RecordView[]> {
    return this.#durable.list(query, signal)
  }

  forget(identity: string): Promise<void> {
    const { cache, clock, tombstoneMs } = this.#options
    const call = { store: this.name, call: 'forget', timeoutMs: FORGET_TIMEOUT_MS }
    return callStore(clock, call, (signal) => cache.forget(identity, tombstoneMs, signal))
  }

  /** Forgets the reply before and after, for the reasons that `cachedDurable` gives. */
  async #discard(discard: Discard, signal: AbortSignal | undefined): Promise<DiscardOutcome> {
    const { ref } = discard
    const identity = ref.identity ?? (await this.#durable.read(ref, signal))?.identity
    if (identity === undefined) return { kind: 'not_found' }
    await this.forget(identity)
    const outcome = await this.#durable.discard!(discard, signal)
    if (outcome.kind === 'discarded') {
      await this.forget(identity).catch((error: unknown) =>
        this.#report({ operation: 'forget', error }),
      )
    }
    return outcome
  }

  /** No caller awaits this query, so it has its timeout here, which releases its connection. */
  #durableNow(): Promise<Date> {
    const { clock } = this.#options
    return withTimeLimit({ clock, limitMs: CLOCK_TIMEOUT_MS, afterInput: true }, async (signal) =>
      this.#durable.now!(signal),
    )
  }

  #close(): Promise<void> {
    this.#isClosed = true
    this.#fills.stop()
    return this.#durable.close!()
  }

  async #lookUp(requests: readonly ClaimRequest[]): Promise<Hits> {
    const asking = requests.filter(mayAskCache)
    const isUseless = asking.length === 0 || this.#databaseClock.latestMs() === undefined
    if (isUseless || this.#isClosed) return []
    const entries = await this.#readCache([...new Set(asking.map(({ identity }) => identity))])
    // Read after the cache has answered, because the answer may have taken long.
    const latestMs = this.#databaseClock.latestMs()
    if (latestMs === undefined) return []
    return requests.map((request) => {
      const bytes = mayAskCache(request) ? entries.get(request.identity) : undefined
      return bytes && answerFrom(bytes, request, latestMs)
    })
  }

  async #readCache(identities: readonly string[]): Promise<ReadonlyMap<string, Uint8Array>> {
    const hits = new Map<string, Uint8Array>()
    if (!this.#reads.mayTry()) return hits
    const { cache, clock, timeoutMs } = this.#options
    try {
      // A busy process must not count as a failure of the cache: the database would get its load.
      const limit = { clock, limitMs: timeoutMs, afterInput: true }
      const entries = await withTimeLimit(limit, async (signal) => cache.get(identities, signal))
      identities.forEach((identity, n) => {
        const bytes = entries[n]
        if (bytes instanceof Uint8Array) hits.set(identity, bytes)
      })
      this.#reads.succeeded()
    } catch (error) {
      if (this.#reads.state === 'closed') this.#report({ operation: 'read', error })
      this.#reads.failed()
    }
    return hits
  }

  async #claimDurably(
    requests: readonly ClaimRequest[],
    signal: AbortSignal | undefined,
  ): Promise<ClaimOutcome[]> {
    const askedMs = this.#options.clock.monotonicMs()
    const outcomes = await this.#durable.claim(requests, signal)
    requests.forEach((request, n) => {
      const outcome = outcomes[n]
      if (outcome === undefined) return
      if (this.#options.fillOnSettle) this.#held.note(request, outcome)
      if (outcome.kind !== 'completed') return
      const { identity, fingerprint } = request
      const { recordId, result, expiresAt } = outcome
      const expiresAtMs = expiresAt.getTime()
      this.#fills.add({ identity, recordId, fingerprint, expiresAtMs, result }, askedMs)
    })
    return outcomes
  }

  #fillSettled(settlement: Settlement, { claim, outcome, askedMs }: SettleCall): void {
    if (settlement.kind !== 'complete' || outcome?.kind !== 'settled') return
    const { lease, result } = settlement
    if (claim === undefined || !this.#held.wasUsedOnce(lease.token)) return
    const expiresAtMs = outcome.expiresAt.getTime()
    this.#fills.add({ identity: lease.identity, ...claim, expiresAtMs, result }, askedMs)
  }

  #markUsed(lease: Lease): Lease {
    this.#held.use(lease.token)
    return lease
  }

  #report(failure: CacheFailure): void {
    const { onError } = this.#options
    if (onError === undefined) {
      const why = failure.error instanceof Error ? `: ${failure.error.message}` : ''
      const about = `${this.name} ${failure.operation}`
      warnOnce(`${about} failed${why}; the durable store answers instead`, about)
      return
    }
    try {
      onError(failure)
    } catch {
      // A bug in the callback must not change the outcome of a payment.
      warnOnce('cachedStore: onError threw an error, which is ignored')
    }
  }
}

/** Stops using a cache that keeps failing, so that it costs almost no time. */
function cacheBreaker(clock: Clock): Breaker {
  return new Breaker(clock, { failuresMax: FAILURES_MAX, breakMs: () => BREAK_MS })
}

interface SettleCall {
  readonly claim: HeldClaim | undefined
  readonly outcome: SettleOutcome | undefined
  readonly askedMs: number
}

/** The outcome that the durable store would return; `undefined` if that is not certain. */
function answerFrom(
  bytes: Uint8Array,
  request: ClaimRequest,
  latestMs: number,
): ClaimOutcome | undefined {
  const entry = decodeEntry(request.identity, bytes)
  if (entry === undefined) return undefined
  if (!isSameRequest(entry, request) || !isStillKept(entry, latestMs)) return undefined
  const { recordId, result, expiresAtMs } = entry
  return { kind: 'completed', recordId, result, expiresAt: new Date(expiresAtMs) }
}
