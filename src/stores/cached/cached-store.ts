import { answerWithin } from '../../core/answer-within.ts'
import type { Breaker } from '../../core/breaker.ts'
import type { DurableStore } from '../../core/durable-store.ts'
import type {
  ClaimOutcome,
  ClaimRequest,
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
  StoreBatching,
  SweptRecord,
  Verdict,
} from '../../core/store.ts'
import { warnOnce } from '../../core/warn.ts'
import { cacheBreaker } from './cache-breaker.ts'
import { cachedDurable } from './cached-durable.ts'
import { DatabaseClock } from './database-clock.ts'
import { decodeEntry } from './entry.ts'
import { Fills } from './fills.ts'
import { HeldClaims, type HeldClaim } from './held-claims.ts'
import { inTime } from './in-time.ts'
import {
  resolveCachedStoreOptions,
  type CachedStoreOptions,
  type CacheTrouble,
  type ResolvedCachedStoreOptions,
} from './options.ts'
import { isSameRequest, isStillKept, mayAskCache } from './serving.ts'

/** An operator waits for it, not a client. */
const FORGET_TIMEOUT_MS = 5000

const CLOCK_TIMEOUT_MS = 5000

export interface CachedStore extends Store {
  /**
   * For a record that was removed, or changed, in the database itself: drops its reply from
   * the cache, and keeps out what other nodes may still be about to put in. Change the database
   * first: until then its reply may come back. It rejects where the cache cannot be reached; the
   * reply may be served until it succeeds.
   */
  forget(identity: string): Promise<void>
}

/**
 * Reads completed replies through a cache. Who may run, and what is true, is decided by the
 * durable store alone: a cache that is lost, stale, slow or wrong never changes an answer.
 */
export function cachedStore(options: CachedStoreOptions): CachedStore {
  return new ReadThroughStore(resolveCachedStoreOptions(options))
}

/** In the order of the requests; `undefined` where the durable store has to be asked. */
type Hits = readonly (ClaimOutcome | undefined)[]

class ReadThroughStore implements CachedStore {
  readonly name: string
  readonly batching?: StoreBatching
  readonly transaction?: NonNullable<Store['transaction']>
  readonly settleIn?: NonNullable<Store['settleIn']>
  readonly history?: NonNullable<Store['history']>
  readonly watch?: NonNullable<Store['watch']>
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
        durable.transaction!(this.#used(lease), work, signal)
    }
    if (durable.settleIn) {
      this.settleIn = (tx, lease, completion) =>
        durable.settleIn!(tx, this.#used(lease), completion)
    }
    if (durable.history) this.history = (query, signal) => durable.history!(query, signal)
    if (durable.watch) this.watch = (identity, wake) => durable.watch!(identity, wake)
    if (durable.probe) this.probe = (identity, signal) => durable.probe!(identity, signal)
    if (durable.now) this.now = (signal) => durable.now!(signal)
    if (durable.durable) {
      this.durable = cachedDurable({
        durable: durable.durable,
        read: (ref, signal) => durable.read(ref, signal),
        forget: (identity) => this.forget(identity),
        onFailure: (error) => this.#report({ operation: 'forget', error }),
        used: (lease) => this.#used(lease),
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

  // What these change is not in the cache: only completed replies are, and those neither get a
  // verdict nor lapse, and are not reaped before the expiry that each entry carries. What an
  // operator busts is forgotten by `cachedDurable`.

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
    return answerWithin(clock, call, (signal) => cache.forget(identity, tombstoneMs, signal))
  }

  /** Nobody waits for it, so that its connection is given back by a limit of its own. */
  #durableNow(): Promise<Date> {
    const { clock } = this.#options
    return inTime(clock, CLOCK_TIMEOUT_MS, (signal) => this.#durable.now!(signal))
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
    const found = await this.#readCache([...new Set(asking.map(({ identity }) => identity))])
    // Asked only now, because the cache may have taken its time.
    const latestMs = this.#databaseClock.latestMs()
    if (latestMs === undefined) return []
    return requests.map((request) => {
      const bytes = mayAskCache(request) ? found.get(request.identity) : undefined
      return bytes && answerFrom(bytes, request, latestMs)
    })
  }

  async #readCache(identities: readonly string[]): Promise<ReadonlyMap<string, Uint8Array>> {
    const found = new Map<string, Uint8Array>()
    if (!this.#reads.mayTry()) return found
    const { cache, clock, timeoutMs } = this.#options
    try {
      const entries = await inTime(clock, timeoutMs, (signal) => cache.get(identities, signal))
      identities.forEach((identity, n) => {
        const bytes = entries[n]
        if (bytes instanceof Uint8Array) found.set(identity, bytes)
      })
      this.#reads.succeeded()
    } catch (error) {
      if (this.#reads.state === 'closed') this.#report({ operation: 'read', error })
      this.#reads.failed()
    }
    return found
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

  #fillSettled(settlement: Settlement, { claim, outcome, askedMs }: SettledCall): void {
    if (settlement.kind !== 'complete' || outcome?.kind !== 'settled') return
    const { lease, result } = settlement
    if (claim === undefined || !this.#held.wasUsedOnce(lease.token)) return
    const expiresAtMs = outcome.expiresAt.getTime()
    this.#fills.add({ identity: lease.identity, ...claim, expiresAtMs, result }, askedMs)
  }

  #used(lease: Lease): Lease {
    this.#held.use(lease.token)
    return lease
  }

  #report(trouble: CacheTrouble): void {
    const { onError } = this.#options
    if (onError === undefined) {
      const why = trouble.error instanceof Error ? `: ${trouble.error.message}` : ''
      const about = `${this.name} ${trouble.operation}`
      warnOnce(`${about} failed${why}; the durable store answers instead`, about)
      return
    }
    try {
      onError(trouble)
    } catch {
      // A listener's bug must not change what happens to a payment.
      warnOnce('cachedStore: onError threw, which is ignored')
    }
  }
}

interface SettledCall {
  readonly claim: HeldClaim | undefined
  readonly outcome: SettleOutcome | undefined
  readonly askedMs: number
}

/** The very outcome that the durable store would give; `undefined` where that is not certain. */
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
