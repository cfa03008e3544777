/** Results that an operator discards: their parts, their copies in the history, lost answers. */
import { expect, it } from 'vitest'
import type { RecordRef, Store } from '../../../src/core/store/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
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
import { around, counting, losingProxy, useDynamodb, type Around } from './setup.ts'

// Like DynamoDB, the server returns the item that a refused write found.
const setup = useDynamodb({ returnsItems: true })

const LARGE = new Uint8Array(500 * 1024).fill(7)

const discard = (store: Store, ref: RecordRef, attempt = 1) => store.discard!({ ref, attempt })

const textOf = (result: Uint8Array | undefined) => new TextDecoder().decode(result)

/** The texts in the history of a record or key, newest first, at most `limit`. */
const pastOf = async (store: Store, ref: RecordRef, limit = 10) =>
  (await store.history!({ ref, limit })).map(({ result }) => textOf(result))

/** The conditional write of a record, which follows its copy in the history. */
const isMove = ({ name, input }: Parameters<Around>[0]) =>
  name === 'putItem' && String(input['ConditionExpression']).includes('version')

it('discards a result with one read and one write, and by its id with a query more', async () => {
  const { open, client } = await setup()
  const clock = new FakeClock()
  const { counted, calls } = counting(client)
  const store = open({ clock, client: counted })
  const one = await finish(store, { key: 'one' })
  const two = await finish(store, { key: 'two' })
  const { recordId } = await viewOf(store, two)
  calls.length = 0
  ofKind(await discard(store, { identity: one.identity }), 'discarded')
  expect(calls.splice(0)).toEqual(['getItem', 'putItem'])
  ofKind(await discard(store, { recordId }), 'discarded')
  expect(calls).toEqual(['query', 'getItem', 'putItem'])
})

it('removes the parts of a discarded result, and keeps them with a history', async () => {
  const { open, items } = await setup()
  const clock = new FakeClock()
  const namesOf = async () => (await items()).map(({ item }) => String(item).split('#')[0])
  const plain = open({ clock })
  const { identity } = await finish(plain, {}, LARGE)
  expect(await namesOf()).toEqual(['record', 'result', 'result'])
  ofKind(await discard(plain, { identity }), 'discarded')
  expect(await namesOf()).toEqual(['record'])

  const kept = open({ clock, history: true })
  await finish(kept, { key: 'kept' }, LARGE)
  const { identity: other } = await finish(kept, { key: 'other' }, LARGE)
  ofKind(await discard(kept, { identity: other }), 'discarded')
  const [view] = await kept.history!({ ref: { identity: other }, limit: 10 })
  assertBytes(view?.result, LARGE)
})

it('keeps each discarded result in the history, newest first, before the last one', async () => {
  const { open } = await setup()
  const clock = new FakeClock()
  const store = open({ clock, history: true })
  const { identity } = await finish(store, {}, bytes('old record'))
  clock.advance(RETENTION_MS)
  for (const attempt of [1, 2, 3]) {
    const { lease } = ofKind(await claim(store), 'claimed')
    ofKind(await settle(store, completeOf(lease, bytes(`attempt ${attempt}`))), 'settled')
    if (attempt < 3) ofKind(await discard(store, { identity }, attempt), 'discarded')
  }
  const { recordId } = await viewOf(store, { identity })
  expect(await pastOf(store, { identity })).toEqual(['attempt 2', 'attempt 1', 'old record'])
  expect(await pastOf(store, { recordId })).toEqual(['attempt 2', 'attempt 1'])
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 10 })).removed).toBe(1)
  const own = ['attempt 3', 'attempt 2', 'attempt 1']
  expect(await pastOf(store, { recordId })).toEqual(own)
  expect(await pastOf(store, { identity })).toEqual([...own, 'old record'])
  for (const limit of [1, 2, 3]) {
    expect(await pastOf(store, { identity }, limit)).toEqual(own.slice(0, limit))
    expect(await pastOf(store, { recordId }, limit)).toEqual(own.slice(0, limit))
  }
  const [newest] = await store.history!({ ref: { recordId }, limit: 1 })
  expect([newest?.state, newest?.attempt]).toEqual(['expired', 3])
})

// Abandoned work is completed without a new attempt.
it('keeps both discarded results of one attempt in the history', async () => {
  const { open } = await setup()
  const clock = new FakeClock()
  const store = open({ clock, history: true })
  const request = claimRequest({ mode: 'accept' })
  const { identity, recordId } = request
  for (const text of ['abandoned', 'abandoned again']) {
    ofKind(await claim(store, request), 'pending')
    clock.advance(RETENTION_MS)
    const abandoned = { result: bytes(text), retentionMs: RETENTION_MS }
    expect((await store.reap({ limit: 10, abandoned })).abandoned).toBe(1)
    ofKind(await discard(store, { identity }, 0), 'discarded')
  }
  expect(await pastOf(store, { identity })).toEqual(['abandoned again', 'abandoned'])
  expect(await pastOf(store, { recordId })).toEqual(['abandoned again', 'abandoned'])
})

// The process crashes after it has written the copy for the history.
it('keeps a discarded result once in the history after repeated crashes', async () => {
  const { open, client } = await setup()
  const clock = new FakeClock()
  const healthy = open({ clock, history: true })
  const dying = open({
    clock,
    history: true,
    client: around(client, (call) =>
      isMove(call) ? Promise.reject(new Error('killed')) : call.go(),
    ),
  })
  const { identity } = await finish(healthy, {}, bytes('first'))
  const { recordId } = await viewOf(healthy, { identity })
  for (let n = 0; n < 3; n++) await expect(discard(dying, { identity })).rejects.toThrow('killed')
  // The result is still in use.
  expect(await pastOf(healthy, { identity })).toEqual([])
  expect(await pastOf(healthy, { recordId })).toEqual([])
  ofKind(await claim(healthy), 'completed')

  expect(ofKind(await discard(healthy, { identity }), 'discarded').repeated).toBe(false)
  expect(await pastOf(healthy, { identity })).toEqual(['first'])
  await settle(healthy, completeOf(await hold(healthy), bytes('second')))
  await expect(discard(dying, { identity }, 2)).rejects.toThrow('killed')
  clock.advance(RETENTION_MS)
  expect((await healthy.reap({ limit: 10 })).removed).toBe(1)
  // The copy of the second discard, which did not happen, would be the same result again.
  expect(await pastOf(healthy, { identity })).toEqual(['second', 'first'])
  expect(await pastOf(healthy, { recordId })).toEqual(['second', 'first'])
})

it('discards a result once when the answer is lost and the SDK sends the write again', async () => {
  const { open, connect, server } = await setup()
  const clock = new FakeClock()
  const healthy = open({ clock, history: true })
  const { identity } = await finish(healthy, {}, LARGE)
  let lost = 0
  const endpoint = await losingProxy(
    server.endpoint,
    (target) => target === 'PutItem' && ++lost % 2 === 1,
  )
  const store = open({ clock, history: true, client: connect({ endpoint, maxAttempts: 3 }) })
  expect(ofKind(await discard(store, { identity }), 'discarded').repeated).toBe(false)
  expect(lost).toBeGreaterThan(2)
  expect(ofKind(await discard(store, { identity }), 'discarded').repeated).toBe(true)
  const views = await healthy.history!({ ref: { identity }, limit: 10 })
  expect(views).toHaveLength(1)
  assertBytes(views[0]?.result, LARGE)
  expect((await viewOf(healthy, { identity })).errorCode).toBe('reply_discarded')
})

// The operator reads the record · another operator discards it and a retry runs · the first writes
it('discards no result that was recorded while the discard was under way', async () => {
  const { open, client } = await setup()
  const clock = new FakeClock()
  const store = open({ clock, history: true })
  const { identity } = await finish(store, {}, bytes('first'))
  const { recordId } = await viewOf(store, { identity })
  let isOvertaken = false
  const slow = around(client, async (call) => {
    if (isMove(call) && !isOvertaken) {
      isOvertaken = true
      ofKind(await discard(store, { identity }), 'discarded')
      await settle(store, completeOf(await hold(store), bytes('second')))
    }
    return call.go()
  })
  const outcome = await discard(open({ clock, history: true, client: slow }), { identity })
  expect(outcome).toEqual({ kind: 'other_attempt', recordId, attempt: 2 })
  assertBytes(ofKind(await claim(store), 'completed').result, bytes('second'))
  expect(await pastOf(store, { identity })).toEqual(['first'])
})

it('discards no newer record of the key when the index still has the id of the older', async () => {
  const { open, client } = await setup()
  const clock = new FakeClock()
  const store = open({ clock })
  const old = await finish(store, {}, bytes('old'))
  const { recordId } = await viewOf(store, old)
  const answers = new Map<string, object>()
  let isBehind = false
  const stale = around(client, async ({ name, input, go }) => {
    if (name !== 'query') return go()
    const query = JSON.stringify(input['ExpressionAttributeValues'])
    if (!isBehind) answers.set(query, await go())
    return answers.get(query) ?? { Items: [] }
  })
  const other = open({ clock, client: stale })
  expect((await other.read({ recordId }))?.recordId).toBe(recordId)
  clock.advance(RETENTION_MS)
  await finish(store, {}, bytes('new'))
  isBehind = true
  expect(await discard(other, { recordId })).toEqual({ kind: 'not_found' })
  assertBytes(ofKind(await claim(store), 'completed').result, bytes('new'))
})

it('answers a claim that reads the parts of a result while it is discarded', async () => {
  const { open, client } = await setup()
  const clock = new FakeClock()
  const store = open({ clock })
  const { identity } = await finish(store, {}, LARGE)
  let isDiscarded = false
  const slow = around(client, async ({ name, input, go }) => {
    const { item } = (input['Key'] ?? {}) as { item?: { S?: string } }
    if (name === 'getItem' && item?.S?.startsWith('result#') === true && !isDiscarded) {
      isDiscarded = true
      ofKind(await discard(store, { identity }), 'discarded')
    }
    return go()
  })
  const other = open({ clock, client: slow })
  const { from, lease } = ofKind(await claim(other), 'claimed')
  expect([from, lease.attempt]).toEqual(['retry', 2])
})

it('rejects a discard that the table cannot hold, and changes nothing', async () => {
  const { open } = await setup()
  const store = open({ clock: new FakeClock() })
  const { identity } = await finish(store)
  for (const bad of [
    { ref: { identity: 'zz' } },
    { ref: { recordId: 'nul\0' } },
    { attempt: Number.NaN },
    { idSeed: 'short' },
  ]) {
    const one = { ref: { identity }, attempt: 1, ...bad }
    await expect(store.discard!(one)).rejects.toMatchObject({
      failure: 'rejected',
      wroteNothing: true,
    })
  }
  ofKind(await claim(store), 'completed')
})
