import assert from 'node:assert/strict'
import type { DueUnknown } from '../../core/store/operator-store.ts'
import type { ClaimRequest } from '../../core/store/store.ts'
import {
  claim,
  claimRequest,
  doubtOf,
  hold,
  LEASE_MS,
  ofKind,
  only,
  race,
  releaseOf,
  settle,
  viewOf,
} from '../store-cases/store-case.ts'
import {
  begin,
  intentOf,
  recordOf,
  textOf,
  type DurableCase,
  type DurableFixture,
} from './durable-case.ts'

const AGAIN_MS = 1000

function takeUnknown({ store }: DurableFixture, limit = 100): Promise<DueUnknown[]> {
  return store.durable.operator.takeUnknown({ limit, againMs: AGAIN_MS })
}

async function takeKeys(fixture: DurableFixture, limit?: number): Promise<string[]> {
  return (await takeUnknown(fixture, limit)).map(({ record }) => record.key)
}

/** Creates an `unknown` record that is due in `reconcileAfterMs`. Returns its id. */
async function makeUnknown(
  { store }: DurableFixture,
  overrides: Partial<ClaimRequest> = {},
  reconcileAfterMs = 0,
): Promise<string> {
  const lease = await hold(store, overrides)
  ofKind(await settle(store, doubtOf(lease, reconcileAfterMs)), 'settled')
  return (await viewOf(store, lease)).recordId
}

export const unknownCases: readonly DurableCase[] = [
  {
    name: 'takes an unknown record that is due, and counts the try',
    async run(fixture) {
      const { clock } = fixture
      const recordId = await makeUnknown(fixture, {}, 500)
      clock.advance(499)
      assert.deepEqual(await takeUnknown(fixture), [])
      clock.advance(1)
      const { record, operation } = only(await takeUnknown(fixture))
      assert.equal(operation, undefined)
      assert.deepEqual(record, await recordOf(fixture, recordId))
      assert.deepEqual([record.state, record.tries], ['unknown', 1])
      assert.deepEqual(record.reconcileAt, new Date(clock.nowMs() + AGAIN_MS))
    },
  },
  {
    name: 'takes an unknown record only once until it is due again',
    async run(fixture) {
      const { clock } = fixture
      await makeUnknown(fixture)
      assert.deepEqual(await takeKeys(fixture), ['key-1'])
      clock.advance(AGAIN_MS - 1)
      assert.deepEqual(await takeKeys(fixture), [])
      clock.advance(1)
      assert.equal(only(await takeUnknown(fixture)).record.tries, 2)
    },
  },
  {
    name: 'takes an unknown record with its operation and phases',
    async run(fixture) {
      const { store } = fixture
      const { lease } = await begin(fixture, {}, { phase: intentOf() })
      ofKind(await settle(store, doubtOf(lease)), 'settled')
      const { operation } = only(await takeUnknown(fixture))
      assert.deepEqual(
        [operation?.name, operation?.version, textOf(operation?.input)],
        ['pay', 1, 'input'],
      )
      const phase = only(operation?.phases ?? [])
      assert.deepEqual([phase.name, textOf(phase.request)], ['charge', 'request'])
    },
  },
  {
    name: 'takes unknown records of one tenant in the order they are due, at most `limit`',
    async run(fixture) {
      const { clock } = fixture
      for (const [key, afterMs] of [
        ['third', 30],
        ['first', 10],
        ['later', 9000],
        ['second', 20],
      ] as const) {
        await makeUnknown(fixture, { key }, afterMs)
      }
      clock.advance(40)
      assert.deepEqual(await takeKeys(fixture, 2), ['first', 'second'])
      assert.deepEqual(await takeKeys(fixture, 2), ['third'])
    },
  },
  {
    name: 'gives each unknown record to one of many concurrent calls',
    async run(fixture) {
      const keys = Array.from({ length: 12 }, (_, n) => `key-${n}`)
      for (const key of keys) await makeUnknown(fixture, { key })
      const taken = await race(6, () => takeKeys(fixture, 5))
      const left = await takeKeys(fixture)
      assert.deepEqual([...taken.flat(), ...left].toSorted(), keys.toSorted())
    },
  },
  {
    name: 'makes a record due for the reconciler as soon as its lease lapses',
    async run(fixture) {
      const { store, clock } = fixture
      await hold(store, { onLapse: 'unknown' })
      clock.advance(LEASE_MS)
      assert.deepEqual(await takeKeys(fixture), [])
      only(await store.sweep({ limit: 10 }))
      assert.deepEqual(await takeKeys(fixture), ['key-1'])
    },
  },
  {
    name: 'gives the reconciler nothing but unknown records',
    async run(fixture) {
      const { store, clock } = fixture
      const released = await begin(fixture, { key: 'released' })
      ofKind(await settle(store, releaseOf(released.lease)), 'settled')
      await begin(fixture, { key: 'handed over' }, { end: { kind: 'hand_over', afterMs: 0 } })
      await hold(store, { key: 'held' })
      clock.advance(1)
      assert.deepEqual(await takeKeys(fixture), [])
    },
  },
  {
    name: 'resets the count of tries when a record becomes unknown again',
    async run(fixture) {
      const { store } = fixture
      const recordId = await makeUnknown(fixture)
      assert.deepEqual(await takeKeys(fixture), ['key-1'])
      const verdict = { kind: 'failed_retryable' } as const
      const resolved = await store.resolve([{ ref: { recordId }, verdict, retentionMs: 1000 }])
      ofKind(only(resolved), 'resolved')
      assert.equal(await makeUnknown(fixture), recordId)
      assert.equal((await recordOf(fixture, recordId)).tries, 0)
      assert.equal(only(await takeUnknown(fixture)).record.tries, 1)
    },
  },
]

export const postponeCases: readonly DurableCase[] = [
  {
    name: 'postpones the next try on an unknown record',
    async run(fixture) {
      const { store, clock } = fixture
      const recordId = await makeUnknown(fixture)
      const { operator } = store.durable
      assert.equal(await operator.postpone({ recordId, attempt: 1, inMs: 5000 }), true)
      const reconcileAt = new Date(clock.nowMs() + 5000)
      assert.deepEqual((await recordOf(fixture, recordId)).reconcileAt, reconcileAt)
      clock.advance(4999)
      assert.deepEqual(await takeKeys(fixture), [])
      clock.advance(1)
      assert.deepEqual(await takeKeys(fixture), ['key-1'])
    },
  },
  {
    name: 'leaves an unknown record to operators when it is postponed without a time',
    async run(fixture) {
      const { store, clock } = fixture
      const recordId = await makeUnknown(fixture)
      const { operator } = store.durable
      assert.equal(await operator.postpone({ recordId, attempt: 1, inMs: undefined }), true)
      clock.advance(10 * 365 * 24 * 3600 * 1000)
      assert.deepEqual(await takeKeys(fixture), [])
      assert.equal((await recordOf(fixture, recordId)).reconcileAt, undefined)
      ofKind(await claim(store), 'unknown')
    },
  },
  {
    name: 'ignores a postponement from an earlier try once an operator has requeued the record',
    async run(fixture) {
      const { store } = fixture
      const { operator } = store.durable
      const recordId = await makeUnknown(fixture)
      const { tries } = only(await takeUnknown(fixture)).record
      const by = { who: 'ada', why: 'the provider is back' }
      const requeued = await operator.act({ kind: 'requeue', ref: { recordId } }, by)
      assert.equal(requeued.kind, 'done')
      const before = await recordOf(fixture, recordId)
      const target = { recordId, attempt: 1, inMs: undefined }
      assert.equal(await operator.postpone({ ...target, tries }), false)
      assert.deepEqual(await recordOf(fixture, recordId), before)
      const next = only(await takeUnknown(fixture)).record
      assert.equal(await operator.postpone({ ...target, tries: next.tries }), true)
    },
  },
  {
    name: 'postpones only a record that is unknown and in the same attempt',
    async run(fixture) {
      const { store } = fixture
      const { operator } = store.durable
      const recordId = await makeUnknown(fixture)
      const before = await recordOf(fixture, recordId)
      for (const attempt of [0, 2]) {
        assert.equal(await operator.postpone({ recordId, attempt, inMs: 5000 }), false)
      }
      assert.deepEqual(await recordOf(fixture, recordId), before)
      const released = await begin(fixture, { key: 'released' })
      ofKind(await settle(store, releaseOf(released.lease)), 'settled')
      const held = await begin(fixture, { key: 'held' })
      for (const other of [released.recordId, held.recordId, claimRequest().recordId]) {
        assert.equal(await operator.postpone({ recordId: other, attempt: 1, inMs: 5000 }), false)
      }
    },
  },
]
