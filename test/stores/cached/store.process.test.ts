import { expect, it, vi } from 'vitest'
import type { Store } from '../../../src/core/store/store.ts'
import { cachedStore, memoryCache } from '../../../src/stores/cached/index.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import {
  assertBytes,
  bytes,
  claim,
  claimRequest,
  claimRequests,
  completeOf,
  finish,
  hold,
  ofKind,
  RETENTION_MS,
  settle,
  tally,
} from '../../../src/testing/store-cases/store-case.ts'
import { never, setupCached } from './setup.ts'

/** With a reply in the cache, and a known time of the database. */
async function setupFilled(options: Parameters<typeof setupCached>[0] = {}) {
  const world = setupCached(options)
  await finish(world.store)
  await world.advance(0)
  ofKind(await claim(world.store), 'completed')
  await world.advance(0)
  return world
}

it('answers a replay from the cache without the durable store', async () => {
  const { store, durable, isHit } = await setupFilled()
  const replay = ofKind(await claim(store), 'completed')
  assertBytes(replay.result, bytes('done'))
  expect(replay).toEqual(ofKind(await claim(durable.store), 'completed'))
  expect(await isHit(() => claim(store))).toBe(true)
  expect(await isHit(() => claim(store, { mode: 'accept' }))).toBe(true)
  expect(await isHit(() => claim(store, { mode: 'take' }))).toBe(false)
})

it('answers a look-up of a reply from the cache as the durable store does', async () => {
  const { store, durable, isHit } = await setupFilled()
  const found = ofKind(await claim(store, { mode: 'find' }), 'completed')
  expect(found).toEqual(ofKind(await claim(durable.store, { mode: 'find' }), 'completed'))
  expect(await isHit(() => claim(store, { mode: 'find' }))).toBe(true)
  for (const [request, kind] of [
    [{ fingerprint: 'other' }, 'mismatch'],
    [{ key: 'new' }, 'free'],
  ] as const) {
    const find = async () => void ofKind(await claim(store, { mode: 'find', ...request }), kind)
    expect(await isHit(find)).toBe(false)
  }
})

it('fills the cache with the reply that a look-up has found', async () => {
  const { store, cache, advance, isHit } = setupCached({ fillOnSettle: false })
  await hold(store, { key: 'first' }) // starts the query for the time of the database
  await finish(store)
  await advance(0)
  ofKind(await claim(store, { mode: 'find' }), 'completed')
  await advance(0)
  expect(cache.fills).toBe(1)
  expect(await isHit(() => claim(store))).toBe(true)
})

it('asks the durable store about a request with another fingerprint', async () => {
  const { store, isHit } = await setupFilled()
  const isCacheHit = await isHit(async () => {
    ofKind(await claim(store, { fingerprint: 'other' }), 'mismatch')
  })
  expect(isCacheHit).toBe(false)
})

it('fills the cache when a reply is recorded, or without fillOnSettle at its replay', async () => {
  const { store, cache, advance } = setupCached()
  await hold(store, { key: 'first' }) // starts the query for the time of the database
  await finish(store)
  await advance(0)
  expect(cache.fills).toBe(1)

  const lazy = setupCached({ fillOnSettle: false })
  await hold(lazy.store, { key: 'first' })
  await finish(lazy.store)
  await lazy.advance(0)
  expect(lazy.cache.fills).toBe(0)
  await claim(lazy.store)
  await lazy.advance(0)
  expect(lazy.cache.fills).toBe(1)
})

it('answers a batch in its order with one call each to cache and durable store', async () => {
  const { store, durable, cache, advance } = setupCached()
  await hold(store, { key: 'first' })
  for (const n of [1, 3]) await finish(store, { key: `key-${n}` }, bytes(`reply ${n}`))
  await advance(0)
  const [reads, claims] = [cache.reads, durable.claims]
  const durableClaim = vi.spyOn(durable.store, 'claim')
  const outcomes = await store.claim(claimRequests(5))
  expect(outcomes.map(({ kind }) => kind)).toEqual([
    'claimed',
    'completed',
    'claimed',
    'completed',
    'claimed',
  ])
  const texts = outcomes.map((one) => ('result' in one ? String(Buffer.from(one.result)) : ''))
  expect(texts).toEqual(['', 'reply 1', '', 'reply 3', ''])
  expect([cache.reads - reads, durable.claims - claims]).toEqual([1, 3])
  expect(durableClaim).toHaveBeenCalledTimes(1)
})

it('gives every caller a separate copy of the result', async () => {
  const { store } = await setupFilled()
  const outcomes = await store.claim([claimRequest(), claimRequest()])
  ofKind(outcomes[0]!, 'completed').result.fill(0)
  assertBytes(ofKind(outcomes[1]!, 'completed').result, bytes('done'))
  assertBytes(ofKind(await claim(store), 'completed').result, bytes('done'))
})

it('asks the durable store in the last second before an expiry', async () => {
  const { store, advance, isHit, clock } = await setupFilled()
  await advance(RETENTION_MS - 1200)
  expect(await isHit(() => claim(store))).toBe(true)
  await advance(200)
  expect(await isHit(() => claim(store))).toBe(false)
  expect(clock.pendingTimers).toBe(0)
})

it('answers correctly if its wall clock is an hour off or is changed', async () => {
  const { store, clock, durable, advance, isHit } = await setupFilled()
  expect(durable.clock.nowMs() - clock.nowMs()).toBe(3_600_000)
  clock.jumpWallTime(7_200_000)
  // The cache is not used until the database has returned its time: the machine may have slept.
  await advance(5000)
  expect(await isHit(() => claim(store))).toBe(false)
  expect(await isHit(() => claim(store))).toBe(true)
  await advance(RETENTION_MS)
  expect(ofKind(await claim(store), 'claimed').from).toBe('expired')
})

// The clock of the database and the wall clock advance; the monotonic clock stands still.
it('detects that its machine was suspended', async () => {
  const { store, clock, durable } = await setupFilled()
  durable.clock.advance(RETENTION_MS)
  clock.jumpWallTime(RETENTION_MS)
  expect(ofKind(await claim(store), 'claimed').from).toBe('expired')
})

it('does not use a reply that expired before the clock was set back', async () => {
  const { store, durable, cache, clock, advance } = await setupFilled()
  const [kept] = await cache.inner.get([claimRequest().identity])
  cache.get = async (identities) => identities.map(() => kept)
  await advance(RETENTION_MS)
  const { lease } = ofKind(await claim(store, { retentionMs: 1000 }), 'claimed')
  durable.clock.jumpWallTime(-RETENTION_MS)
  clock.jumpWallTime(10_000)
  await advance(5000)
  await claim(store, { key: 'other' }) // starts another query for the time
  await advance(0)
  ofKind(await claim(store), 'in_progress')
  ofKind(await settle(store, completeOf(lease)), 'settled')
})

it('does not use the cache until the time of the database is known', async () => {
  const { store, durable, cache, failures, advance, isHit } = setupCached()
  durable.readTime = () => Promise.reject(new Error('no connection'))
  await finish(store)
  await claim(store)
  await advance(0)
  expect([cache.reads, cache.fills]).toEqual([0, 0])
  expect(failures.map(({ operation }) => operation)).toEqual(['clock'])

  durable.readTime = async () => new Date(NaN)
  await advance(5000)
  await claim(store)
  await advance(5000)
  expect(failures.map(({ error }) => String(error))).toEqual([
    'Error: no connection',
    'Error: now() of the durable store returned an invalid date',
  ])
  durable.readTime = async () => new Date(durable.clock.nowMs())
  await claim(store)
  await advance(0)
  await claim(store)
  await advance(0)
  expect(await isHit(() => claim(store))).toBe(true)
})

it('uses the last known time of the database for five minutes', async () => {
  const { store, durable, advance, isHit } = setupCached()
  const lasting = { retentionMs: 3_600_000 }
  await hold(store, { key: 'first' })
  const lease = await hold(store, lasting)
  await settle(store, { ...completeOf(lease), ...lasting })
  durable.readTime = () => never()
  await advance(300_000)
  expect(await isHit(() => claim(store))).toBe(true)
  await advance(1)
  expect(await isHit(() => claim(store))).toBe(false)
})

it('waits timeoutMs for a hanging cache, and pauses its use after three failures', async () => {
  const { store, cache, clock, failures, advance } = await setupFilled({ timeoutMs: 40 })
  const working = cache.get
  cache.get = () => never()
  for (let n = 0; n < 3; n++) {
    const answer = claim(store)
    await advance(39)
    expect(clock.pendingTimers).toBe(1)
    await advance(1)
    ofKind(await answer, 'completed')
  }
  expect(failures.map(({ operation }) => operation)).toEqual(['read', 'read', 'read'])
  expect(String(failures[0]!.error)).toContain('no answer within 40 ms')

  const reads = cache.reads
  cache.get = working
  await claim(store)
  expect([cache.reads, clock.pendingTimers]).toEqual([reads, 0])
  await advance(5000)
  await claim(store)
  await claim(store)
  expect(cache.reads).toBe(reads + 2)
})

it('tries a failing cache once after each pause', async () => {
  const { store, cache, failures, advance } = await setupFilled()
  let tries = 0
  cache.get = () => {
    tries++
    throw new Error('broken')
  }
  for (let n = 0; n < 10; n++) ofKind(await claim(store), 'completed')
  expect([tries, failures.length]).toEqual([3, 3])
  await advance(5000)
  for (let n = 0; n < 10; n++) await claim(store)
  expect([tries, failures.length]).toEqual([4, 3])

  // The other claims do not use the cache while the outcome of the trial is unknown.
  cache.get = () => {
    tries++
    return never()
  }
  await advance(5000)
  const waiting = claim(store)
  for (let n = 0; n < 10; n++) await claim(store)
  expect(tries).toBe(5)
  await advance(50)
  await waiting
})

it('takes invalid answers of a cache for a miss', async () => {
  const { store, cache, isHit } = await setupFilled()
  const [kept] = await cache.inner.get([claimRequest().identity])
  const newer = Uint8Array.from(kept!)
  newer[0] = 2
  const invalid: unknown[] = [
    [new Uint8Array()],
    [bytes('x'.repeat(100))],
    [newer],
    [kept!.subarray(0, -1)],
    ['text'],
    [],
    undefined,
    'text',
  ]
  for (const answer of invalid) {
    cache.get = async () => answer as never
    expect([answer, await isHit(() => claim(store))]).toEqual([answer, false])
  }
})

it('drops fills beyond its limits while the cache hangs', async () => {
  const { store, cache, failures, advance } = setupCached()
  await hold(store, { key: 'first' })
  let fills = 0
  cache.fill = () => {
    fills++
    return never()
  }
  for (let n = 0; n < 2000; n++) await finish(store, { key: `key-${n}` })
  await advance(0)
  expect(fills).toBe(64)
  // The sent fills count as lost, and the waiting ones are too old to be sent.
  await advance(30_001)
  await finish(store, { key: 'last' })
  await advance(0)
  expect(fills).toBe(64)
  expect(failures.map(({ operation }) => operation)).toEqual(['fill', 'fill', 'fill'])
})

it('does not send a fill that has waited longer than 30 s', async () => {
  const { store, cache, advance } = setupCached()
  await hold(store, { key: 'first' })
  const taken: (() => void)[] = []
  cache.fill = () => new Promise((resolve) => taken.push(resolve))
  for (let n = 0; n < 100; n++) await finish(store, { key: `key-${n}` })
  await advance(0)
  expect(taken.length).toBe(64)
  for (const resolve of taken.slice(0, 20)) resolve()
  await advance(0)
  expect(taken.length).toBe(84)
  await advance(30_001)
  for (const resolve of taken) resolve()
  await advance(0)
  expect(taken.length).toBe(84)
})

// The first settlement is recorded after the second, which began later.
it('does not cache a result if another settlement of the lease was recorded first', async () => {
  const { store, durable, advance } = setupCached()
  const lease = await hold(store)
  const recorded = durable.store.settle
  const second = Promise.withResolvers<void>()
  let calls = 0
  durable.store.settle = async (settlements) => {
    if (calls++ === 0) await second.promise
    return recorded(settlements)
  }
  const first = settle(store, completeOf(lease, bytes('first')))
  ofKind(await settle(store, completeOf(lease, bytes('second'))), 'settled')
  second.resolve()
  ofKind(await first, 'settled')
  await advance(0)
  assertBytes(ofKind(await claim(store), 'completed').result, bytes('second'))
})

it('does not cache a result if a transaction completed the key first', async () => {
  const { durable, cache, clock, advance } = setupCached()
  const transaction: Store['transaction'] = async (lease, work) => {
    await durable.store.settle([{ kind: 'complete', lease, ...(await work({})) }])
    throw new Error('the answer is lost')
  }
  const store = cachedStore({
    durable: Object.assign(durable.store, { transaction }),
    cache,
    clock,
  })
  const lease = await hold(store)
  const completion = { result: bytes('committed'), retentionMs: RETENTION_MS }
  await expect(store.transaction!(lease, () => completion)).rejects.toThrow('lost')
  ofKind(await settle(store, completeOf(lease, bytes('other'))), 'settled')
  await advance(0)
  assertBytes(ofKind(await claim(store), 'completed').result, bytes('committed'))
})

it('answers when fills fail, and reports only three failures', async () => {
  const { store, cache, failures, advance } = setupCached()
  await hold(store, { key: 'first' })
  let fills = 0
  cache.fill = () => {
    if (fills++ % 2 === 0) throw new Error('at once')
    return Promise.reject(new Error('later'))
  }
  for (let n = 0; n < 10; n++) {
    await finish(store, { key: `key-${n}` })
    await advance(0)
  }
  expect([fills, failures.length]).toEqual([3, 3])
  await advance(5000)
  await finish(store, { key: 'trial' })
  await advance(0)
  expect([fills, failures.length]).toEqual([4, 3])
})

it('does not cache results above resultBytesMax or about to expire', async () => {
  const { store, cache, advance } = setupCached({ resultBytesMax: 10 })
  await hold(store, { key: 'first' })
  await finish(store, { key: 'long' }, bytes('eleven char'))
  const soon = await hold(store, { key: 'soon', retentionMs: 900 })
  const done = { kind: 'complete', lease: soon, result: bytes('soon'), retentionMs: 900 } as const
  await settle(store, done)
  await advance(0)
  expect(cache.fills).toBe(0)
  await finish(store, { key: 'short' }, bytes('ten chars.'))
  await advance(0)
  expect(cache.fills).toBe(1)
})

// A claim has read the record, and its fill reaches the cache after `forget`.
it('a late fill does not restore a forgotten reply', async () => {
  const { store, cache, advance, isHit } = setupCached()
  await hold(store, { key: 'first' })
  const late: (() => Promise<void>)[] = []
  cache.fill = async (identity, fill) => void late.push(() => cache.inner.fill(identity, fill))
  await finish(store)
  await advance(0)
  await store.forget(claimRequest().identity)
  expect(late.length).toBe(1)
  for (const fill of late) await fill()
  expect(await isHit(() => claim(store))).toBe(false)
})

it('forget rejects if the cache fails or does not answer', async () => {
  const { store, cache, clock } = setupCached()
  cache.forget = () => Promise.reject(new Error('no connection'))
  await expect(store.forget('identity')).rejects.toMatchObject({ code: 'STORE_FAILED' })
  cache.forget = () => never()
  const forgotten = store.forget('identity').catch(String)
  await clock.advanceAsync(5000)
  expect(await forgotten).toContain('no answer within 5000 ms')
})

it('a newer record of a key replaces the older one, but not the reverse', async () => {
  const { store, cache, advance, isHit } = await setupFilled()
  const { identity } = claimRequest()
  const [old] = await cache.inner.get([identity])
  await advance(RETENTION_MS)
  await finish(store, {}, bytes('reborn'))
  await advance(0)
  const again = async () => {
    assertBytes(ofKind(await claim(store), 'completed').result, bytes('reborn'))
  }
  expect(await isHit(again)).toBe(true)
  await cache.inner.fill(identity, { bytes: old!, expiresAtMs: 1, ttlMs: 1000 })
  expect(await isHit(again)).toBe(true)
})

it('warns once without onError, and ignores an onError that throws', async () => {
  const warned = vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
  const cache = { ...memoryCache(), get: () => Promise.reject(new Error('broken')) }
  const clock = setupCached().clock
  const durable = memoryStore({ clock })
  const store = cachedStore({ durable, cache: { ...cache, ...rejecting }, clock })
  for (let n = 0; n < 3; n++) ofKind(await claim(store, { key: `key-${n}` }), 'claimed')
  const messages = warned.mock.calls.map(([message]) => String(message))
  expect(messages).toHaveLength(1)
  expect(messages[0]).toMatch(/^cached\(memory\) read failed: .*broken; the durable store answers/)

  const onError = () => {
    throw new Error('a bug')
  }
  const other = cachedStore({ durable, cache: { ...cache, ...rejecting }, clock, onError })
  ofKind(await claim(other, { key: 'other' }), 'claimed')
  expect(warned).toHaveBeenCalledTimes(2)
  warned.mockRestore()
})

const rejecting = {
  get: () => Promise.reject(new Error('broken')),
  fill: () => Promise.reject(new Error('broken')),
  forget: () => Promise.reject(new Error('broken')),
}

it('has the same optional methods as the durable store, and calls them on it', async () => {
  const calls: string[] = []
  class Full {
    readonly name = 'full'
    readonly batching = { rowsMax: 7 }
    readonly #secret = 'kept'
    async #note(call: string) {
      calls.push(`${call} ${this.#secret}`)
      return [] as never
    }
    claim = () => this.#note('claim')
    renew() {
      return this.#note('renew')
    }
    settle() {
      return this.#note('settle')
    }
    resolve() {
      return this.#note('resolve')
    }
    sweep() {
      return this.#note('sweep')
    }
    reap() {
      return this.#note('reap')
    }
    read() {
      return this.#note('read')
    }
    list() {
      return this.#note('list')
    }
    transaction() {
      return this.#note('transaction')
    }
    settleIn() {
      return this.#note('settleIn')
    }
    history() {
      return this.#note('history')
    }
    discard() {
      return this.#note('discard')
    }
    watch(_: string, wake: () => void) {
      calls.push(`watch ${this.#secret}`)
      return wake
    }
    now() {
      return this.#note('now')
    }
    close() {
      return this.#note('close')
    }
  }
  const store = cachedStore({ durable: new Full(), cache: memoryCache() })
  expect([store.name, store.batching]).toEqual(['cached(full)', { rowsMax: 7 }])
  const lease = { identity: 'i', token: 't', attempt: 1 }
  const completion = { result: bytes(''), retentionMs: 1 }
  const wake = () => {}
  await store.claim([])
  await store.settle([])
  await store.renew([])
  await store.resolve([])
  await store.sweep({ limit: 1 })
  await store.reap({ limit: 1 })
  await store.read({ identity: 'i' })
  await store.list({ state: 'unknown', limit: 1 })
  await store.transaction!(lease, () => completion)
  await store.settleIn!({}, lease, completion)
  await store.history!({ ref: { identity: 'i' }, limit: 1 })
  await store.discard!({ ref: { identity: 'i' }, attempt: 1 })
  expect(store.watch!('i', wake)).toBe(wake)
  await store.now!()
  await store.close!()
  const names = 'claim settle renew resolve sweep reap read list transaction settleIn history'
  const last = ['discard', 'watch', 'now', 'close']
  expect(calls).toEqual([...names.split(' '), ...last].map((name) => `${name} kept`))

  const bare: Store = cachedStore({ durable: memoryStore(), cache: memoryCache() })
  const optional = ['batching', 'transaction', 'settleIn', 'history', 'watch', 'now', 'close']
  expect(optional.filter((name) => name in bare && bare[name as keyof Store])).toEqual([])
})

it('does not use the cache after close', async () => {
  const { store, isHit } = await setupFilled()
  expect(await isHit(() => claim(store))).toBe(true)
  await store.close!()
  expect(await isHit(() => claim(store))).toBe(false)
})

it('several nodes with one cache claim each key once', async () => {
  const { durable, cache, clock } = setupCached()
  const nodes = Array.from({ length: 4 }, () =>
    cachedStore({ durable: durable.store, cache, clock }),
  )
  const outcomes = await Promise.all(nodes.map((node) => node.claim(claimRequests(20))))
  expect(tally(outcomes.flat())).toEqual({ claimed: 20, in_progress: 60 })
})

const fit = { durable: memoryStore(), cache: memoryCache() }

it.each([
  [undefined, /cachedStore takes an options object/],
  [{ ...fit, cahce: 1 }, /no option "cahce"/],
  [{ cache: fit.cache }, /durable must have the methods claim, settle, reap, read, got undefined/],
  [{ ...fit, cache: {} }, /cache must have the methods get, fill, forget, got an object/],
  [{ ...fit, timeoutMs: 0 }, /timeoutMs must be a whole number/],
  [{ ...fit, resultBytesMax: -1 }, /resultBytesMax must be a whole number/],
  [{ ...fit, tombstoneMs: 1000 }, /tombstoneMs must be a whole number from 60000/],
  [{ ...fit, fillOnSettle: 1 }, /fillOnSettle must be true or false/],
  [{ ...fit, onError: 'log' }, /onError must be a function/],
])('cachedStore refuses the options %j', (options, message) => {
  expect(() => cachedStore(options as never)).toThrow(message)
})
