import type { ClaimRequest, Store } from '../../../src/core/store/store.ts'
import {
  cachedStore,
  memoryCache,
  type CachedStoreOptions,
  type CacheFailure,
  type ReplyCache,
} from '../../../src/stores/cached/index.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'

const HOUR_MS = 3_600_000

/** A durable store that counts its claims and has a separate clock. */
export class CountedStore {
  readonly clock = new FakeClock(Date.UTC(2026, 0, 1) + HOUR_MS)
  readonly store: Store
  claims = 0
  /** The implementation of `now`; tests replace it. */
  readTime = async (): Promise<Date> => new Date(this.clock.nowMs())

  constructor() {
    const inner = memoryStore({ clock: this.clock })
    this.store = Object.assign(Object.create(inner) as Store, {
      name: 'counted',
      claim: (requests: readonly ClaimRequest[]) => {
        this.claims += requests.length
        return inner.claim(requests)
      },
      settle: inner.settle.bind(inner),
      renew: inner.renew.bind(inner),
      resolve: inner.resolve.bind(inner),
      sweep: inner.sweep.bind(inner),
      reap: inner.reap.bind(inner),
      read: inner.read.bind(inner),
      list: inner.list.bind(inner),
      discard: inner.discard!.bind(inner),
      now: () => this.readTime(),
      close: async () => {},
    })
  }
}

/** A cache with methods that a test can replace. */
export class TestCache implements ReplyCache {
  readonly inner: ReplyCache
  reads = 0
  fills = 0
  get: ReplyCache['get']
  fill: ReplyCache['fill']
  forget: ReplyCache['forget']

  constructor(clock: FakeClock) {
    this.inner = memoryCache({ clock })
    this.get = (identities) => {
      this.reads++
      return this.inner.get(identities)
    }
    this.fill = (identity, fill) => {
      this.fills++
      return this.inner.fill(identity, fill)
    }
    this.forget = (identity, ms) => this.inner.forget(identity, ms)
  }
}

/** The wall clock of this process is an hour behind the clock of the database. */
export function setupCached(options: Partial<CachedStoreOptions> = {}) {
  const clock = new FakeClock()
  const durable = new CountedStore()
  const cache = new TestCache(clock)
  const failures: CacheFailure[] = []
  const store = cachedStore({
    durable: durable.store,
    cache,
    clock,
    onError: (failure) => void failures.push(failure),
    ...options,
  })
  const advance = async (ms: number) => {
    durable.clock.advance(ms)
    await clock.advanceAsync(ms)
  }
  /** Whether the call was answered without a claim on the durable store. */
  const isHit = async (call: () => Promise<unknown>) => {
    const before = durable.claims
    await call()
    await advance(0)
    return durable.claims === before
  }
  return { clock, durable, cache, store, failures, advance, isHit }
}

export function never<Answer>(): Promise<Answer> {
  return new Promise(() => {})
}
