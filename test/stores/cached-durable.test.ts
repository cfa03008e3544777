import { describe, expect, it, vi } from 'vitest'
import type { Act, DurableStore } from '../../src/core/durable-store.ts'
import type { Store } from '../../src/core/store.ts'
import { cachedStore, type CacheTrouble } from '../../src/stores/cached/index.ts'
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
} from '../../src/testing/store-cases/store-case.ts'
import { setup as setupSqlite } from './sqlite-setup.ts'
import { never, TestCache } from './cached-setup.ts'

const BY = { who: 'ada', why: 'the reply is wrong' }
const { identity } = claimRequest()
const BUST: Act = { kind: 'bust', ref: { identity } }

/** Two nodes on one database and one cache, with a reply in both. */
async function setup() {
  const { store: durable, clock } = setupSqlite()
  const cache = new TestCache(clock)
  const troubles: CacheTrouble[] = []
  const open = () =>
    cachedStore({
      durable,
      cache,
      clock,
      onError: (trouble) => void troubles.push(trouble),
    })
  const [store, other] = [open(), open()]
  await hold(store, { key: 'first' }) // and with it the time of the database is learnt
  await clock.advanceAsync(0)
  await finish(store)
  await clock.advanceAsync(0)
  ofKind(await claim(other), 'completed')
  await clock.advanceAsync(0)
  expect((await cache.inner.get([identity]))[0]).toBeDefined()
  return { store, other, durable, cache, clock, troubles }
}

const desk = (store: Store): DurableStore['desk'] => store.durable!.desk

describe('a bust through a cached store', () => {
  it.each(['identity', 'recordId'] as const)(
    'is seen by every node at once, by its %s',
    async (name) => {
      const { store, other, durable } = await setup()
      const { recordId } = (await durable.read({ identity }))!
      const ref = name === 'identity' ? { identity } : { recordId }
      const outcome = await desk(store).act({ kind: 'bust', ref }, BY)
      expect(outcome).toMatchObject({ kind: 'done', subject: recordId })
      const { lease } = ofKind(await claim(other), 'claimed')
      ofKind(await settle(other, completeOf(lease, bytes('right'))), 'settled')
      for (const node of [store, other]) {
        assertBytes(ofKind(await claim(node), 'completed').result, bytes('right'))
      }
    },
  )

  // A node reads the reply from the database, and is held up before it puts it into the cache.
  it('is not undone by a fill that was under way', async () => {
    const { store, other, cache, clock } = await setup()
    await cache.inner.forget(identity, 1)
    await clock.advanceAsync(1)
    const late: (() => Promise<void>)[] = []
    const { fill } = cache
    cache.fill = async (...filled) => void late.push(() => fill(...filled))
    ofKind(await claim(other), 'completed')
    await clock.advanceAsync(0)
    expect(late).toHaveLength(1)
    await desk(store).act(BUST, BY)
    await late[0]!()
    ofKind(await claim(store), 'claimed')
  })

  // Between the commit and the end of the call: the tombstone was written before it.
  it('holds where its process dies after the commit', async () => {
    const { store, other, durable, clock } = await setup()
    const { act } = durable.durable.desk
    vi.spyOn(durable.durable.desk, 'act').mockImplementation(async (...asked) => {
      await act(...asked)
      return never()
    })
    void desk(store).act(BUST, BY)
    await clock.advanceAsync(0)
    await expect.poll(() => durable.read({ identity })).toBeUndefined()
    ofKind(await claim(other), 'claimed')
  })

  it('is not begun where the cache cannot be told', async () => {
    const { store, durable, cache } = await setup()
    cache.forget = async () => {
      throw new Error('no route to the cache')
    }
    await expect(desk(store).act(BUST, BY)).rejects.toThrow(/no route to the cache/)
    expect((await durable.read({ identity }))!.state).toBe('completed')
    expect(await desk(store).audit({ limit: 10 })).toEqual([])
  })

  it('is done, and says so, where the cache is lost right after it', async () => {
    const { store, cache, troubles } = await setup()
    const { forget } = cache
    let calls = 0
    cache.forget = async (...asked) => {
      if (++calls > 1) throw new Error('gone')
      return forget(...asked)
    }
    expect(await desk(store).act(BUST, BY)).toMatchObject({ kind: 'done' })
    expect(troubles).toMatchObject([{ operation: 'forget' }])
    ofKind(await claim(store), 'claimed')
  })

  it('of nothing leaves the cache alone', async () => {
    const { store, cache } = await setup()
    const forget = vi.spyOn(cache, 'forget')
    const ref = { recordId: '00000000-0000-7000-8000-000000000000' }
    expect(await desk(store).act({ kind: 'bust', ref }, BY)).toEqual({ kind: 'not_found' })
    expect(forget).not.toHaveBeenCalled()
  })
})

describe('what is kept beside the records', () => {
  it('is that of the durable store', async () => {
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
    const [due] = await desk(store).takeUnknown({ limit: 1, againMs: 1_000 })
    expect(due!.operation).toMatchObject({ name: 'pay' })
    const { attempt } = lease
    expect(await desk(store).postpone({ recordId, attempt, inMs: undefined })).toBe(true)
    expect(store.durable!.outbox).toBe(durable.durable.outbox)
  })

  it('is absent where the durable store has none', () => {
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

  // The step has completed the record with "first", and its answer was lost; a settlement that
  // says "second" is then told "settled", because it is.
  it.each(['record', 'advance'] as const)(
    'does not let a later settlement put another result into the cache: %s',
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
