/**
 * Runs a cached store and a bare store through the same history. Both must give the same answers in
 * spite of faults of the cache, of its fills and of the clocks.
 */
import assert from 'node:assert/strict'
import type {
  ClaimOutcome,
  ClaimRequest,
  Discard,
  DiscardOutcome,
  Lease,
  Store,
} from '../../../src/core/store/store.ts'
import {
  memoryCache,
  type CachedStore,
  type CachedStoreOptions,
  type CacheFill,
  type ReplyCache,
} from '../../../src/stores/cached/index.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { bytes, claimRequest } from '../../../src/testing/store-cases/store-case.ts'

const HOUR_MS = 3_600_000
export const TIMEOUT_MS = 50

export type Step =
  | { readonly kind: 'claim'; readonly claims: readonly ClaimStep[] }
  | { readonly kind: 'again' }
  | {
      readonly kind: 'settle'
      readonly pick: number
      readonly how: SettleKind
      readonly text: string
    }
  | { readonly kind: 'settle_twice'; readonly pick: number; readonly text: string }
  | { readonly kind: 'resolve'; readonly key: number; readonly text: string }
  | { readonly kind: 'sweep' }
  | { readonly kind: 'reap' }
  | { readonly kind: 'advance'; readonly ms: number }
  | { readonly kind: 'set_wall'; readonly hours: number }
  | { readonly kind: 'cache'; readonly mode: CacheMode }
  | { readonly kind: 'clock'; readonly mode: 'ok' | 'failing' | 'hanging' }
  | { readonly kind: 'hold_fills'; readonly held: boolean }
  | { readonly kind: 'deliver' | 'lose_fill'; readonly pick: number }
  | { readonly kind: 'lose_cache' }
  | { readonly kind: 'resurrect' | 'swap' | 'corrupt'; readonly pick: number; readonly at: number }
  | { readonly kind: 'bust'; readonly key: number }
  | { readonly kind: 'discard'; readonly key: number; readonly attempt: number }

export interface ClaimStep {
  readonly key: number
  readonly fingerprint: number
  readonly mode: ClaimRequest['mode']
  readonly retentionMs: number
  readonly afterExpiry: ClaimRequest['afterExpiry']
  readonly onLapse: ClaimRequest['onLapse']
}

type SettleKind = 'complete' | 'release' | 'doubt'
type CacheMode = 'ok' | 'slow' | 'hanging' | 'failing'

export interface WorldOptions {
  readonly cachedStore: (options: CachedStoreOptions) => CachedStore
  /** How much slower the clock of this process runs than the clock of the database. */
  readonly slowness: number
  /** `false` plants a bug: a fill may restore a forgotten reply. */
  readonly hasTombstones?: boolean
}

export class World {
  readonly #node = new FakeClock()
  readonly #database = new FakeClock(Date.UTC(2026, 0, 1) + HOUR_MS)
  readonly #options: WorldOptions
  readonly #cache: FaultyCache
  readonly #durable: BustableStore
  readonly #twin: BustableStore
  readonly #store: CachedStore
  readonly #leases: Lease[] = []
  #last: ClaimRequest[] = []
  #asked = 0

  constructor(options: WorldOptions) {
    this.#options = options
    this.#cache = new FaultyCache(this.#node, options.hasTombstones ?? true)
    this.#durable = new BustableStore(this.#database)
    this.#twin = new BustableStore(this.#database)
    this.#store = options.cachedStore({
      durable: this.#durable,
      cache: this.#cache,
      clock: this.#node,
      timeoutMs: TIMEOUT_MS,
      onError: () => {},
    })
  }

  /** Claims that were answered without the durable store. */
  get hits(): number {
    return this.#asked - this.#durable.claims
  }

  async run(step: Step): Promise<void> {
    await this.#take(step)
    await turn()
  }

  async #take(step: Step): Promise<unknown> {
    switch (step.kind) {
      case 'claim':
        this.#last = step.claims.map(toRequest)
        return this.#claim()
      case 'again':
        return this.#claim()
      case 'settle':
        return this.#settle(step.pick, [{ how: step.how, text: step.text }])
      case 'settle_twice':
        return this.#settle(step.pick, [
          { how: 'complete', text: step.text },
          { how: 'complete', text: `${step.text}, again` },
        ])
      case 'resolve':
        return this.#both((store) => store.resolve([toVerdict(step)]))
      case 'sweep':
        return this.#both((store) => store.sweep({ limit: 10 }))
      case 'reap':
        return this.#both((store) => store.reap({ limit: 10, abandoned: ABANDONED }))
      case 'advance':
        return this.#advance(step.ms)
      case 'set_wall':
        return this.#node.jumpWallTime(step.hours * HOUR_MS)
      case 'clock':
        this.#durable.clockMode = step.mode
        return
      case 'bust':
        return this.#bust(identityOf(step.key))
      case 'discard':
        return this.#discard(identityOf(step.key), step.attempt)
      default:
        return this.#cache.applyFault(step)
    }
  }

  async #claim(): Promise<void> {
    this.#asked += this.#last.length
    const outcomes = await this.#answerOf(this.#store.claim(this.#last))
    const expected = await this.#twin.claim(this.#last)
    assertSame(outcomes, expected)
    for (const outcome of outcomes) if (outcome.kind === 'claimed') this.#leases.push(outcome.lease)
  }

  async #settle(pick: number, calls: readonly { how: SettleKind; text: string }[]) {
    const lease = this.#leases[pick % this.#leases.length]
    if (lease === undefined) return
    const settlements = calls.map(({ how, text }) => toSettlement(lease, how, text))
    // Concurrent.
    const outcomes = await Promise.all(settlements.map((one) => this.#store.settle([one])))
    const expected = await Promise.all(settlements.map((one) => this.#twin.settle([one])))
    assertSame(outcomes, expected)
  }

  async #both(call: (store: Store) => Promise<unknown>): Promise<void> {
    assertSame(await call(this.#store), await call(this.#twin))
  }

  /** First in the database, then in the cache. */
  async #bust(identity: string): Promise<void> {
    this.#durable.bust(identity)
    this.#twin.bust(identity)
    this.#cache.forgetHistoryOf(identity)
    await this.#store.forget(identity)
  }

  async #discard(identity: string, attempt: number): Promise<void> {
    await this.#both((store) => store.discard!({ ref: { identity }, attempt }))
    this.#cache.forgetHistoryOf(identity)
  }

  /** Advances time while the cache delays the claim, up to the timeout. */
  async #answerOf<Answer>(answer: Promise<Answer>): Promise<Answer> {
    let isDone = false
    const done = () => {
      isDone = true
    }
    answer.then(done, done)
    for (let waitedMs = 0; waitedMs <= TIMEOUT_MS; waitedMs += 10) {
      await turn()
      if (isDone) return answer
      await this.#advance(10)
    }
    assert.ok(isDone, 'a claim waited for the cache longer than timeoutMs')
    return answer
  }

  async #advance(ms: number): Promise<void> {
    this.#database.advance(ms)
    await this.#node.advanceAsync(ms / this.#options.slowness)
  }
}

const ABANDONED = { result: bytes('abandoned'), retentionMs: 5000 }

function toRequest(step: ClaimStep): ClaimRequest {
  const { key, fingerprint, ...rest } = step
  return claimRequest({ ...rest, key: `key-${key}`, fingerprint: `print-${fingerprint}` })
}

function identityOf(key: number): string {
  return claimRequest({ key: `key-${key}` }).identity
}

function toSettlement(lease: Lease, kind: SettleKind, text: string) {
  const retentionMs = 4000
  if (kind === 'complete') return { kind, lease, result: bytes(text), retentionMs }
  if (kind === 'doubt') return { kind, lease, errorCode: undefined, reconcileAfterMs: 0 }
  return { kind, lease, proof: 'proven' as const, errorCode: undefined, retentionMs }
}

function toVerdict({ key, text }: { readonly key: number; readonly text: string }) {
  const verdict = { kind: 'completed', result: bytes(text) } as const
  return { ref: { identity: identityOf(key) }, verdict, retentionMs: 4000 }
}

function assertSame(actual: unknown, expected: unknown): void {
  assert.deepEqual(actual, expected, 'the cached store answers differently from the bare store')
}

/** A memory store with records that can be removed and a clock that can fail. */
class BustableStore implements Store {
  readonly name = 'bustable'
  readonly #inner: Store
  readonly #clock: FakeClock
  readonly #generations = new Map<string, number>()
  clockMode: 'ok' | 'failing' | 'hanging' = 'ok'
  claims = 0

  constructor(clock: FakeClock) {
    this.#clock = clock
    this.#inner = memoryStore({ clock })
  }

  /** Acts like a deleted row: later calls use another row. */
  bust(identity: string): void {
    this.#generations.set(identity, (this.#generations.get(identity) ?? 0) + 1)
  }

  async now(): Promise<Date> {
    if (this.clockMode === 'failing') throw new Error('no time')
    if (this.clockMode === 'hanging') await new Promise<never>(() => {})
    return new Date(this.#clock.nowMs())
  }

  async claim(requests: readonly ClaimRequest[]): Promise<ClaimOutcome[]> {
    this.claims += requests.length
    const outcomes = await this.#inner.claim(requests.map((one) => this.#moved(one)))
    return outcomes.map((outcome, n) => {
      if (outcome.kind !== 'claimed') return outcome
      return { ...outcome, lease: { ...outcome.lease, identity: requests[n]!.identity } }
    })
  }

  settle(settlements: Parameters<Store['settle']>[0]): ReturnType<Store['settle']> {
    return this.#inner.settle(settlements.map((one) => ({ ...one, lease: this.#moved(one.lease) })))
  }

  resolve(verdicts: Parameters<Store['resolve']>[0]): ReturnType<Store['resolve']> {
    return this.#inner.resolve(
      verdicts.map((one) => ({ ...one, ref: this.#moved({ identity: one.ref.identity! }) })),
    )
  }

  discard(discard: Discard): Promise<DiscardOutcome> {
    const ref = this.#moved({ identity: discard.ref.identity! })
    return this.#inner.discard!({ ...discard, ref })
  }

  renew: Store['renew'] = (renewals) => this.#inner.renew(renewals)
  sweep: Store['sweep'] = (request) => this.#inner.sweep(request)
  reap: Store['reap'] = (request) => this.#inner.reap(request)
  read: Store['read'] = (ref) => this.#inner.read(ref)
  list: Store['list'] = (query) => this.#inner.list(query)

  #moved<Item extends { readonly identity: string }>(item: Item): Item {
    const generation = this.#generations.get(item.identity) ?? 0
    return { ...item, identity: `${item.identity}-${generation}` }
  }
}

interface LateFill {
  readonly identity: string
  readonly fill: CacheFill
  readonly settle: (error?: Error) => void
}

type FaultStep = Extract<
  Step,
  {
    kind:
      | 'cache'
      | 'hold_fills'
      | 'deliver'
      | 'lose_fill'
      | 'lose_cache'
      | 'resurrect'
      | 'swap'
      | 'corrupt'
  }
>

/** A cache with every fault that may happen, except a lost tombstone. */
class FaultyCache implements ReplyCache {
  readonly #clock: FakeClock
  readonly #hasTombstones: boolean
  readonly #forgotten = new Map<string, number>()
  #inner: ReplyCache
  #mode: CacheMode = 'ok'
  #holdsFills = false
  #late: LateFill[] = []
  /** Every entry that was ever kept, to be returned again later. */
  #history: { readonly identity: string; readonly bytes: Uint8Array }[] = []
  /** Wrong bytes that `get` returns instead of the kept entry. */
  readonly #wrong = new Map<string, Uint8Array>()

  constructor(clock: FakeClock, hasTombstones: boolean) {
    this.#clock = clock
    this.#hasTombstones = hasTombstones
    this.#inner = memoryCache({ clock })
  }

  async get(identities: readonly string[]): Promise<(Uint8Array | undefined)[]> {
    if (this.#mode === 'failing') throw new Error('the cache fails')
    if (this.#mode === 'hanging') await new Promise<never>(() => {})
    if (this.#mode === 'slow') {
      await new Promise<void>((resolve) => void this.#clock.after(TIMEOUT_MS - 15, resolve))
    }
    const kept = await this.#inner.get(identities)
    return identities.map((identity, n) => this.#wrong.get(identity) ?? kept[n])
  }

  async fill(identity: string, fill: CacheFill): Promise<void> {
    return new Promise((resolve, reject) => {
      const settle = (error?: Error) => (error === undefined ? resolve() : reject(error))
      this.#late.push({ identity, fill, settle })
      if (!this.#holdsFills) this.#deliver(this.#late.length - 1)
    })
  }

  async forget(identity: string, tombstoneMs: number): Promise<void> {
    this.#forgotten.set(identity, tombstoneMs)
    await this.#inner.forget(identity, this.#hasTombstones ? tombstoneMs : 0)
  }

  /** Earlier entries are not returned again from here on. A delayed fill may still arrive. */
  forgetHistoryOf(identity: string): void {
    this.#history = this.#history.filter((one) => one.identity !== identity)
    this.#wrong.delete(identity)
  }

  applyFault(step: FaultStep): unknown {
    switch (step.kind) {
      case 'cache':
        this.#mode = step.mode
        return
      case 'hold_fills':
        this.#holdsFills = step.held
        return
      case 'deliver':
        return this.#deliver(step.pick)
      case 'lose_fill':
        return this.#take(step.pick)?.settle(new Error('the fill is lost'))
      case 'lose_cache':
        return this.#lose()
      case 'resurrect':
      case 'swap':
      case 'corrupt':
        return this.#corrupt(step)
    }
  }

  #take(pick: number): LateFill | undefined {
    return this.#late.splice(pick % Math.max(1, this.#late.length), 1)[0]
  }

  /** Keeps the entry far longer than `ttlMs`, because the store must not rely on it. */
  #deliver(pick: number): void {
    const late = this.#take(pick)
    if (late === undefined) return
    const { identity, fill, settle } = late
    const ttlMs = fill.ttlMs * 1000
    void this.#inner.fill(identity, { ...fill, ttlMs }).then(async () => {
      const [kept] = await this.#inner.get([identity])
      const isKept = kept !== undefined && Buffer.from(kept).equals(fill.bytes)
      if (isKept) this.#history.push({ identity, bytes: kept })
      this.#wrong.delete(identity)
      settle()
    })
  }

  async #lose(): Promise<void> {
    this.#inner = memoryCache({ clock: this.#clock })
    this.#wrong.clear()
    for (const [identity, ms] of this.#forgotten) await this.forget(identity, ms)
  }

  #corrupt({ kind, pick, at }: { kind: string; pick: number; at: number }): void {
    const one = this.#history[pick % Math.max(1, this.#history.length)]
    if (one === undefined) return
    const changed = Uint8Array.from(one.bytes)
    const position = at % changed.length
    if (kind === 'corrupt') changed[position] = changed[position]! ^ (1 << (at % 8))
    this.#wrong.set(kind === 'swap' ? identityOf(at % 2) : one.identity, changed)
  }
}

function turn(): Promise<void> {
  return new Promise((resolve) => {
    setImmediate(resolve)
  })
}
