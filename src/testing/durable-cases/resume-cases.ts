import assert from 'node:assert/strict'
import {
  bytes,
  claim,
  completeOf,
  doubtOf,
  finish,
  hold,
  LEASE_MS,
  ofKind,
  only,
  releaseOf,
  RETENTION_MS,
  settle,
  viewOf,
} from '../store-cases/store-case.ts'
import {
  act,
  begin,
  dueKeys,
  intentOf,
  OPERATION,
  operationIn,
  operationOf,
  recordOf,
  transactionOf,
  type DurableCase,
  type DurableFixture,
} from './durable-case.ts'

const HAND_OVER = { end: { kind: 'hand_over', afterMs: 0 } } as const

/** Starts an operation and releases it, due in `resumeAfterMs`. */
async function beginAndRelease(
  fixture: DurableFixture,
  key: string,
  { resumeAfterMs, ...operation }: { resumeAfterMs?: number; name?: string; version?: number } = {},
): Promise<string> {
  const { lease, recordId } = await begin(fixture, { key }, { operation: operationOf(operation) })
  const release = { ...releaseOf(lease), resumeAfterMs }
  ofKind(await settle(fixture.store, release), 'settled')
  return recordId
}

export const resumeCases: readonly DurableCase[] = [
  {
    name: 'makes a released operation due at once, and lists all its fields',
    async run(fixture) {
      const { store, clock } = fixture
      const recordId = await beginAndRelease(fixture, 'key-1')
      const due = await store.durable.phases.due({ operations: [OPERATION], limit: 10 })
      const { record, ...operation } = only(due)
      assert.deepEqual(operation, { name: 'pay', version: 1 })
      assert.deepEqual(record, await recordOf(fixture, recordId))
      assert.deepEqual(record.reconcileAt, new Date(clock.nowMs()))
    },
  },
  {
    name: 'makes a released operation due no sooner than its release requests',
    async run(fixture) {
      const { clock } = fixture
      await beginAndRelease(fixture, 'key-1', { resumeAfterMs: 500 })
      clock.advance(499)
      assert.deepEqual(await dueKeys(fixture), [])
      clock.advance(1)
      assert.deepEqual(await dueKeys(fixture), ['key-1'])
    },
  },
  {
    name: 'lists no record without an operation as due',
    async run(fixture) {
      const { store } = fixture
      const lease = await hold(store)
      const release = { ...releaseOf(lease), resumeAfterMs: 0 }
      ofKind(await settle(store, release), 'settled')
      assert.equal((await viewOf(store, lease)).reconcileAt, undefined)
      ofKind(await claim(store, { mode: 'accept', key: 'accepted' }), 'pending')
      assert.deepEqual(await dueKeys(fixture), [])
      assert.deepEqual(await store.durable.phases.orphans({ operations: [], limit: 10 }), [])
    },
  },
  {
    name: 'makes a lapsed operation due as soon as it is swept',
    async run(fixture) {
      const { store, clock } = fixture
      const { recordId } = await begin(fixture)
      clock.advance(LEASE_MS)
      assert.deepEqual(await dueKeys(fixture), [])
      const swept = only(await store.sweep({ limit: 10 }))
      assert.deepEqual([swept.recordId, swept.to], [recordId, 'failed_retryable'])
      assert.deepEqual(await dueKeys(fixture), ['key-1'])
    },
  },
  {
    name: 'hands a worker an operation at its recovery point, after which it is not due',
    async run(fixture) {
      const { store } = fixture
      const { recordId } = await begin(fixture, {}, { phase: transactionOf(), ...HAND_OVER })
      const taken = ofKind(await claim(store, { mode: 'take' }), 'claimed')
      assert.deepEqual(
        [taken.recordId, taken.from, taken.recoveryPoint, taken.lease.attempt],
        [recordId, 'accepted', 'book', 1],
      )
      assert.deepEqual(await dueKeys(fixture), [])
      assert.equal((await recordOf(fixture, recordId)).reconcileAt, undefined)
    },
  },
  {
    name: 'keeps an expired pending operation due, and does not abandon it, when it has run before',
    async run(fixture) {
      const { store, clock } = fixture
      const abandoned = { result: bytes('timed out'), retentionMs: RETENTION_MS }
      const begun = await begin(fixture, { key: 'begun' }, { phase: transactionOf() })
      ofKind(await settle(store, releaseOf(begun.lease)), 'settled')
      const again = ofKind(await claim(store, { key: 'begun' }), 'claimed')
      ofKind(await store.durable.phases.record(again.lease, HAND_OVER), 'advanced')
      const fresh = await begin(fixture, { key: 'fresh' }, HAND_OVER)
      clock.advance(10 * RETENTION_MS)
      assert.deepEqual(await dueKeys(fixture), ['begun'])
      const report = await store.reap({ limit: 10, abandoned })
      assert.equal(report.abandoned, 1)
      assert.equal((await recordOf(fixture, fresh.recordId)).state, 'completed')
      assert.equal((await recordOf(fixture, begun.recordId)).state, 'pending')
      const taken = ofKind(await claim(store, { key: 'begun', mode: 'take' }), 'claimed')
      assert.equal(taken.recoveryPoint, 'book')
    },
  },
  {
    name: 'gives a released or lapsed operation to the next claim at its recovery point',
    async run(fixture) {
      const { store, clock } = fixture
      const released = await begin(fixture, { key: 'released' }, { phase: transactionOf() })
      ofKind(await settle(store, releaseOf(released.lease)), 'settled')
      const lapsed = await begin(fixture, { key: 'lapsed' })
      clock.advance(LEASE_MS)
      const retry = ofKind(await claim(store, { key: 'released' }), 'claimed')
      assert.deepEqual(
        [retry.recordId, retry.from, retry.recoveryPoint],
        [released.recordId, 'retry', 'book'],
      )
      const takeOver = ofKind(await claim(store, { key: 'lapsed', mode: 'take' }), 'claimed')
      assert.deepEqual(
        [takeOver.recordId, takeOver.from, takeOver.recoveryPoint],
        [lapsed.recordId, 'lapsed', 'started'],
      )
      const again = ofKind(await claim(store, { key: 'new' }), 'claimed')
      assert.equal(again.recoveryPoint, undefined)
    },
  },
  {
    name: 'makes a released operation due at once when a client requests it again in accept mode',
    async run(fixture) {
      const { store, clock } = fixture
      const recordId = await beginAndRelease(fixture, 'key-1', { resumeAfterMs: 5000 })
      clock.advance(100)
      ofKind(await claim(store, { mode: 'accept' }), 'pending')
      const { state, reconcileAt } = await recordOf(fixture, recordId)
      assert.deepEqual([state, reconcileAt], ['pending', new Date(clock.nowMs())])
      assert.deepEqual(await dueKeys(fixture), ['key-1'])
    },
  },
  {
    name: 'lists the operations of one tenant by due time, at most `limit`',
    async run(fixture) {
      const { clock } = fixture
      for (const [key, resumeAfterMs] of [
        ['third', 30],
        ['first', 10],
        ['fourth', 40],
        ['second', 20],
      ] as const) {
        await beginAndRelease(fixture, key, { resumeAfterMs })
      }
      clock.advance(35)
      assert.deepEqual(await dueKeys(fixture), ['first', 'second', 'third'])
      assert.deepEqual(await dueKeys(fixture, { limit: 2 }), ['first', 'second'])
      await begin(fixture, { key: 'handed over' }, HAND_OVER)
      assert.deepEqual(await dueKeys(fixture), ['first', 'second', 'third', 'handed over'])
    },
  },
  {
    name: 'distinguishes operations that a worker knows from those that no worker here runs',
    async run(fixture) {
      const { store, clock } = fixture
      const names = [
        ['a', 'pay', 1],
        ['b', 'pay', 2],
        ['c', 'refund', 1],
        ['d', 'Pay', 1],
        ['e', 'pay ', 1],
      ] as const
      const ids = new Map<string, string>()
      for (const [key, name, version] of names) {
        ids.set(key, await beginAndRelease(fixture, key, { name, version }))
        clock.advance(1)
      }
      await beginAndRelease(fixture, 'later', { name: 'unheard of', resumeAfterMs: 60_000 })

      const known = [
        { name: 'refund', version: 1 },
        { name: 'pay', version: 2 },
        { name: 'other', version: 1 },
      ]
      assert.deepEqual(await dueKeys(fixture), ['a'])
      const found = await dueKeys(fixture, { operations: known })
      assert.deepEqual(found.toSorted(), ['b', 'c'])
      assert.deepEqual(await dueKeys(fixture, { operations: [] }), [])
      const { phases } = store.durable
      assert.deepEqual(await phases.orphans({ operations: known, limit: 10 }), [
        { name: 'pay', version: 1, recordId: ids.get('a') },
        { name: 'Pay', version: 1, recordId: ids.get('d') },
        { name: 'pay ', version: 1, recordId: ids.get('e') },
      ])
      assert.equal((await phases.orphans({ operations: known, limit: 2 })).length, 2)
      assert.equal((await phases.orphans({ operations: [], limit: 10 })).length, names.length)
    },
  },
  {
    name: 'lists no held, unknown or completed operation as due',
    async run(fixture) {
      const { store, clock } = fixture
      const settlements = { held: undefined, unknown: doubtOf, completed: completeOf } as const
      for (const [key, settlementOf] of Object.entries(settlements)) {
        const { lease } = await begin(fixture, { key })
        if (settlementOf !== undefined) ofKind(await settle(store, settlementOf(lease)), 'settled')
      }
      clock.advance(LEASE_MS - 1)
      assert.deepEqual(await dueKeys(fixture), [])
      assert.deepEqual(await store.durable.phases.orphans({ operations: [], limit: 10 }), [])
    },
  },
]

export const keptOperationCases: readonly DurableCase[] = [
  {
    name: 'keeps a released operation for any length of time',
    async run(fixture) {
      const { store, clock } = fixture
      const recordId = await beginAndRelease(fixture, 'key-1')
      clock.advance(RETENTION_MS * 100)
      const reaped = await store.reap({ limit: 10 })
      assert.deepEqual(reaped, { removed: 0, expired: 0, abandoned: 0 })
      assert.deepEqual(await dueKeys(fixture), ['key-1'])
      const mismatch = await claim(store, { fingerprint: 'another' })
      assert.equal(ofKind(mismatch, 'mismatch').recordId, recordId)
      const taken = ofKind(await claim(store), 'claimed')
      assert.deepEqual([taken.recordId, taken.from], [recordId, 'retry'])
    },
  },
  {
    name: 'reaps expired records behind released operations that never expire',
    async run(fixture) {
      const { store, clock } = fixture
      for (const key of ['kept-1', 'kept-2', 'kept-3']) await beginAndRelease(fixture, key)
      clock.advance(1)
      for (const key of ['gone-1', 'gone-2', 'gone-3']) await finish(store, { key })
      clock.advance(RETENTION_MS)
      const once = await store.reap({ limit: 2 })
      assert.deepEqual(once, { removed: 2, expired: 0, abandoned: 0 })
      const twice = await store.reap({ limit: 2 })
      assert.deepEqual(twice, { removed: 1, expired: 0, abandoned: 0 })
      assert.equal((await dueKeys(fixture)).length, 3)
    },
  },
  {
    name: 'removes the operation and its phases when the completed record is reaped',
    async run(fixture) {
      const { store, clock } = fixture
      const { lease, recordId } = await begin(fixture, {}, { phase: intentOf() })
      ofKind(await settle(store, completeOf(lease)), 'settled')
      clock.advance(RETENTION_MS - 1)
      assert.equal((await store.reap({ limit: 10 })).removed, 0)
      assert.equal((await operationIn(fixture, recordId)).phases.length, 1)
      clock.advance(1)
      assert.equal((await store.reap({ limit: 10 })).removed, 1)
      assert.equal(await store.durable.phases.load(recordId), undefined)
      const finding = { kind: 'not_executed' } as const
      for (const phase of [{ recordId }, { downstreamKey: 'downstream-1' }]) {
        const outcome = await act(fixture, { kind: 'conclude', phase, finding })
        assert.deepEqual(outcome, { kind: 'not_found' })
      }
    },
  },
  {
    name: 'starts without the old operation on a key whose record has expired',
    async run(fixture) {
      const { store, clock } = fixture
      const { lease, recordId } = await begin(fixture, {}, { phase: transactionOf() })
      ofKind(await settle(store, completeOf(lease)), 'settled')
      clock.advance(RETENTION_MS)
      const anew = ofKind(await claim(store), 'claimed')
      assert.deepEqual([anew.from, anew.recoveryPoint], ['expired', undefined])
      assert.notEqual(anew.recordId, recordId)
      assert.equal(await store.durable.phases.load(recordId), undefined)
      assert.equal(await store.durable.phases.load(anew.recordId), undefined)
    },
  },
  {
    name: 'lists no handed-over operation as due after its record expired',
    async run(fixture) {
      const { store, clock } = fixture
      await begin(fixture, {}, HAND_OVER)
      clock.advance(RETENTION_MS - 1)
      assert.deepEqual(await dueKeys(fixture), ['key-1'])
      clock.advance(1)
      assert.deepEqual(await dueKeys(fixture), [])
      ofKind(await claim(store, { mode: 'take' }), 'expired')
      const abandoned = { result: bytes('timed out'), retentionMs: RETENTION_MS }
      assert.equal((await store.reap({ limit: 10, abandoned })).abandoned, 1)
      ofKind(await claim(store), 'completed')
    },
  },
]
