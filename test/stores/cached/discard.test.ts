/** A discarded reply, behind a cached store whose durable store has no durable part. */
import { expect, it, vi } from 'vitest'
import { cachedStore, type CachedStoreOptions } from '../../../src/stores/cached/index.ts'
import {
  assertBytes,
  bytes,
  claim,
  claimRequest,
  completeOf,
  finish,
  hold,
  ofKind,
  settle,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { never, setupCached } from './setup.ts'

const { identity } = claimRequest()
const DISCARD = { ref: { identity }, attempt: 1 } as const

/** Two nodes with one database and one cache, and a reply in both. */
async function setup(options: Partial<CachedStoreOptions> = {}) {
  const world = setupCached(options)
  const { store, durable, cache, clock, advance } = world
  const other = cachedStore({ durable: durable.store, cache, clock })
  for (const node of [store, other]) await claim(node, { mode: 'find', key: 'other' })
  await advance(0)
  await finish(store, {}, bytes('wrong'))
  await advance(0)
  ofKind(await claim(other), 'completed')
  await advance(0)
  expect((await cache.inner.get([identity]))[0]).toBeDefined()
  return { ...world, other }
}

it.each(['identity', 'recordId'] as const)(
  'forgets a discarded reply on every node at once, by %s',
  async (name) => {
    const { store, other, advance } = await setup()
    const { recordId } = await viewOf(store, { identity })
    const ref = name === 'identity' ? { identity } : { recordId }
    const outcome = ofKind(await store.discard!({ ref, attempt: 1 }), 'discarded')
    expect([outcome.repeated, outcome.record.recordId]).toEqual([false, recordId])
    expect(ofKind(await claim(other, { mode: 'find' }), 'free').from).toBe('retry')
    const { lease } = ofKind(await claim(other), 'claimed')
    ofKind(await settle(other, completeOf(lease, bytes('right'))), 'settled')
    await advance(0)
    for (const node of [store, other]) {
      for (const mode of ['hold', 'find'] as const) {
        assertBytes(ofKind(await claim(node, { mode }), 'completed').result, bytes('right'))
      }
    }
  },
)

// A node reads the reply from the database, and its fill of the cache is delayed.
it.each(['hold', 'find'] as const)(
  'does not restore a discarded reply with a fill that a %s has sent before',
  async (mode) => {
    const { store, other, cache, advance } = await setup()
    await cache.inner.forget(identity, 1)
    await advance(1)
    const late: (() => Promise<void>)[] = []
    cache.fill = async (...values) => void late.push(() => cache.inner.fill(...values))
    ofKind(await claim(other, { mode }), 'completed')
    await advance(0)
    expect(late).toHaveLength(1)
    ofKind(await store.discard!(DISCARD), 'discarded')
    await late[0]!()
    ofKind(await claim(store), 'claimed')
  },
)

// The process crashes between the write of the record and the end of the call. The tombstone in the
// cache was written first.
it('forgets a discarded reply even if the process crashes after the write', async () => {
  const { store, other, durable, advance } = await setup()
  const written = durable.store.discard!
  durable.store.discard = async (...values) => {
    await written(...values)
    return never()
  }
  void store.discard!(DISCARD)
  await advance(0)
  const state = async () => (await viewOf(durable.store, { identity })).state
  await expect.poll(state).toBe('failed_retryable')
  ofKind(await claim(other), 'claimed')
})

// The first call was made on the durable store, without the cache.
it('forgets the reply again when the discard is repeated', async () => {
  const { store, durable, cache, advance } = await setup()
  const [old] = await cache.inner.get([identity])
  ofKind(await durable.store.discard!(DISCARD), 'discarded')
  ofKind(await claim(store), 'completed')
  expect(ofKind(await store.discard!(DISCARD), 'discarded').repeated).toBe(true)
  await cache.inner.fill(identity, { bytes: old!, expiresAtMs: Infinity, ttlMs: 1000 })
  await advance(0)
  ofKind(await claim(store), 'claimed')
})

it('discards nothing if the cache cannot be reached', async () => {
  const { store, durable, cache } = await setup()
  cache.forget = () => Promise.reject(new Error('no route to the cache'))
  await expect(store.discard!(DISCARD)).rejects.toThrow('no route to the cache')
  expect((await viewOf(durable.store, { identity })).state).toBe('completed')
  ofKind(await claim(store), 'completed')
})

it('reports a failure of the cache after the write, and the reply is gone', async () => {
  const { store, cache, failures } = await setup()
  let calls = 0
  cache.forget = (...values) => {
    if (++calls > 1) return Promise.reject(new Error('gone'))
    return cache.inner.forget(...values)
  }
  ofKind(await store.discard!(DISCARD), 'discarded')
  expect(failures).toMatchObject([{ operation: 'forget' }])
  ofKind(await claim(store), 'claimed')
})

it('returns the same as the durable store for a record without such a result', async () => {
  const { store, durable, cache } = await setup()
  const held = await hold(store, { key: 'held' })
  const absent = { recordId: '00000000-0000-7000-8000-000000000000' }
  for (const discard of [
    { ref: { identity }, attempt: 2 },
    { ref: { identity: held.identity }, attempt: 1 },
    { ref: { identity: 'f'.repeat(32) }, attempt: 1 },
    { ref: absent, attempt: 1 },
  ]) {
    expect(await store.discard!(discard)).toEqual(await durable.store.discard!(discard))
  }
  assertBytes(ofKind(await claim(store), 'completed').result, bytes('wrong'))
  const forget = vi.spyOn(cache, 'forget')
  expect(await store.discard!({ ref: absent, attempt: 1 })).toEqual({ kind: 'not_found' })
  expect(forget).not.toHaveBeenCalled()
})
