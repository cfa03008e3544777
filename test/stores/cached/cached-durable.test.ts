import { describe, expect, it, vi } from 'vitest'
import type { DurableStore } from '../../../src/core/store/durable-store.ts'
import type { Act } from '../../../src/core/store/operator-store.ts'
import type { Store } from '../../../src/core/store/store.ts'
import { cachedStore, type CacheFailure } from '../../../src/stores/cached/index.ts'
import {
  assertBytes,
  bytes,
  claim,
  claimRequest,
  completeOf,
  finish,
  hold,
  ofKind,
  RETENTION_MS,
  settle,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { setup as setupSqlite } from '../sqlite/setup.ts'
import { never, TestCache } from './setup.ts'

const BY = { who: 'ada', why: 'the reply is wrong' }
const { identity } = claimRequest()
const DISCARD = {
  kind: 'discard_reply',
  ref: { identity },
  attempt: 1,
  despiteEffects: false,
} as const satisfies Act

/** Two nodes with one database and one cache, and a reply in both. */
async function setup() {
  const { store: durable, clock } = setupSqlite()
  const cache = new TestCache(clock)
  const failures: CacheFailure[] = []
  const open = () =>
    cachedStore({
      durable,
      cache,
      clock,
      onError: (failure) => void failures.push(failure),
    })
  const [store, other] = [open(), open()]
  await hold(store, { key: 'first' }) // starts the query for the time of the database
  await clock.advanceAsync(0)
  await finish(store)
  await clock.advanceAsync(0)
  ofKind(await claim(other), 'completed')
  await clock.advanceAsync(0)
  expect((await cache.inner.get([identity]))[0]).toBeDefined()
  return { store, other, durable, cache, clock, failures }
}

const operatorOf = (store: Store): DurableStore['operator'] => store.durable!.operator

describe('a discarded reply behind a cached store', () => {
  it.each(['identity', 'recordId'] as const)(
    'is gone on every node at once, by %s',
    async (name) => {
      const { store, other, durable } = await setup()
      const { recordId } = (await durable.read({ identity }))!
      const ref = name === 'identity' ? { identity } : { recordId }
      const outcome = await operatorOf(store).act({ ...DISCARD, ref }, BY)
      expect(outcome).toMatchObject({ kind: 'done', subject: recordId })
      const { lease } = ofKind(await claim(other), 'claimed')
      ofKind(await settle(other, completeOf(lease, bytes('right'))), 'settled')
      for (const node of [store, other]) {
        assertBytes(ofKind(await claim(node), 'completed').result, bytes('right'))
      }
    },
  )

  // A node reads the reply from the database, and its fill of the cache is delayed.
  it('does not come back with a fill that was sent before', async () => {
    const { store, other, cache, clock } = await setup()
    await cache.inner.forget(identity, 1)
    await clock.advanceAsync(1)
    const late: (() => Promise<void>)[] = []
    const { fill } = cache
    cache.fill = async (...values) => void late.push(() => fill(...values))
    ofKind(await claim(other), 'completed')
    await clock.advanceAsync(0)
    expect(late).toHaveLength(1)
    await operatorOf(store).act(DISCARD, BY)
    await late[0]!()
    ofKind(await claim(store), 'claimed')
  })

  // The process crashes between the commit and the end of the call; the tombstone was written
  // before the commit.
  it('is gone even if the process of the act crashes after the commit', async () => {
    const { store, other, durable, clock } = await setup()
    const { act } = durable.durable.operator
    vi.spyOn(durable.durable.operator, 'act').mockImplementation(async (...values) => {
      await act(...values)
      return never()
    })
    void operatorOf(store).act(DISCARD, BY)
    await clock.advanceAsync(0)
    const state = async () => (await durable.read({ identity }))!.state
    await expect.poll(state).toBe('failed_retryable')
    ofKind(await claim(other), 'claimed')
  })

  it('stays if the cache cannot be reached', async () => {
    const { store, durable, cache } = await setup()
    cache.forget = async () => {
      throw new Error('no route to the cache')
    }
    await expect(operatorOf(store).act(DISCARD, BY)).rejects.toThrow(/no route to the cache/)
    expect((await durable.read({ identity }))!.state).toBe('completed')
    expect(await operatorOf(store).audit({ limit: 10 })).toEqual([])
  })

  it('is gone, and a failure is reported, if the cache fails after the commit', async () => {
    const { store, cache, failures } = await setup()
    const { forget } = cache
    let calls = 0
    cache.forget = async (...values) => {
      if (++calls > 1) throw new Error('gone')
      return forget(...values)
    }
    expect(await operatorOf(store).act(DISCARD, BY)).toMatchObject({ kind: 'done' })
    expect(failures).toMatchObject([{ operation: 'forget' }])
    ofKind(await claim(store), 'claimed')
  })

  it('does not touch the cache if there is no such record', async () => {
    const { store, cache } = await setup()
    const forget = vi.spyOn(cache, 'forget')
    const ref = { recordId: '00000000-0000-7000-8000-000000000000' }
    expect(await operatorOf(store).act({ ...DISCARD, ref }, BY)).toEqual({ kind: 'not_found' })
    expect(forget).not.toHaveBeenCalled()
  })
})

describe('the durable part of a cached store', () => {
  it('a cached store passes durable calls to the durable store', async () => {
    const { store, durable } = await setup()
    const lease = await hold(store, { key: 'op' })
    const { recordId } = await viewOf(store, lease)
    const operation = { name: 'pay', version: 1, input: bytes('{}') }
    const { phases } = store.durable!
    const phase = {
      kind: 'intent',
      name: 'charge',
      number: 1,
      request: bytes('5'),
      downstreamKey: 'd',
    } as const
    ofKind(await phases.record(lease, { operation, phase }), 'advanced')
    expect(await phases.load(recordId)).toEqual(await durable.durable.phases.load(recordId))
    expect(await phases.due({ operations: [operation], limit: 1 })).toEqual([])
    expect(await phases.orphans({ operations: [], limit: 1 })).toEqual([])
    ofKind(
      await settle(store, { kind: 'doubt', lease, errorCode: 'x', reconcileAfterMs: 0 }),
      'settled',
    )
    const [due] = await operatorOf(store).takeUnknown({ limit: 1, againMs: 1_000 })
    expect(due!.operation).toMatchObject({ name: 'pay' })
    const { attempt } = lease
    expect(await operatorOf(store).postpone({ recordId, attempt, inMs: undefined })).toBe(true)
    expect(store.durable!.outbox).toBe(durable.durable.outbox)
  })

  it('a cached store has no durable part if the durable store has none', () => {
    const { clock } = setupSqlite()
    const bare = Object.assign(Object.create(null) as Store, {
      name: 'bare',
      claim: never,
      settle: never,
      reap: never,
      read: never,
    })
    expect(cachedStore({ durable: bare, cache: new TestCache(clock) }).durable).toBeUndefined()
  })

  // The step completed the record with "first", and its answer was lost. A settlement with
  // "second" then gets `settled`, because the record is completed.
  it.each(['record', 'advance'] as const)(
    'a settlement after %s completed the record does not cache its result',
    async (how) => {
      const { store, clock } = await setup()
      const request = { key: 'op' }
      const lease = await hold(store, request)
      const operation = { name: 'pay', version: 1, input: bytes('{}') }
      const result = bytes('first')
      const step = {
        operation,
        end: { kind: 'complete', result, retentionMs: RETENTION_MS },
      } as const
      const { phases } = store.durable!
      const ended =
        how === 'record' ? phases.record(lease, step) : phases.advance(lease, () => step)
      ofKind(await ended, 'advanced')
      ofKind(await settle(store, completeOf(lease, bytes('second'))), 'settled')
      await clock.advanceAsync(0)
      for (let n = 0; n < 2; n++) {
        assertBytes(ofKind(await claim(store, request), 'completed').result, result)
        await clock.advanceAsync(0)
      }
    },
  )
})
