import assert from 'node:assert/strict'
import type { Act } from '../../core/store/operator-store.ts'
import {
  assertBytes,
  bytes,
  claim,
  completeOf,
  finish,
  ofKind,
  only,
  RETENTION_MS,
  settle,
  viewOf,
} from '../store-cases/store-case.ts'
import {
  act,
  assertAudited,
  assertNoAudit,
  begin,
  BY,
  dueKeys,
  intentOf,
  operationOf,
  recordOf,
  resultOf,
  textOf,
  transactionOf,
  withTextBytes,
  type DurableCase,
  type DurableFixture,
} from './durable-case.ts'

const [SEED, FRESH] = ['0123456789abcdef0123456789abcdef', 'f'.repeat(32)]

type DiscardAct = Extract<Act, { kind: 'discard_reply' }>

function discardOf(recordId: string, overrides: Partial<DiscardAct> = {}): Act {
  const rest = { attempt: 1, despiteEffects: false }
  return { kind: 'discard_reply', ref: { recordId }, ...rest, ...overrides }
}

function discardedOf({ store }: DurableFixture, recordId: string) {
  return store.durable.operator.discarded({ recordId, limit: 10 })
}

/** Completes an operation with a transaction phase and, if `effect`, an external phase. */
async function completedOperation(
  fixture: DurableFixture,
  effect: 'none' | 'intended' | 'done',
): Promise<string> {
  const { store } = fixture
  const { lease, recordId } = await begin(fixture, { idSeed: SEED }, { phase: transactionOf() })
  const external = { none: undefined, intended: intentOf, done: resultOf }[effect]
  if (external !== undefined) {
    const phase = external({ number: 2 })
    ofKind(await store.durable.phases.record(lease, { phase }), 'advanced')
  }
  ofKind(await settle(store, completeOf(lease, bytes('reply'))), 'settled')
  return recordId
}

export const discardActCases: readonly DurableCase[] = [
  {
    name: 'discards the reply of a plain record, which runs again under the same record and ids',
    async run(fixture) {
      const { store, clock } = fixture
      const lease = await finish(store, { idSeed: SEED }, bytes('reply'))
      const { recordId } = await viewOf(store, lease)
      clock.advance(100)
      const outcome = ofKind(await act(fixture, discardOf(recordId)), 'done')
      const record = await recordOf(fixture, recordId)
      assert.deepEqual(outcome, { kind: 'done', subject: recordId, record })
      assert.deepEqual(
        [record.state, record.errorCode, record.result],
        ['failed_retryable', 'reply_discarded', undefined],
      )
      const detail = { from: 'completed', ids: 'same', effects: 'none' }
      await assertAudited(fixture, recordId, { act: 'discard_reply', detail })
      const [kept, ...more] = await discardedOf(fixture, recordId)
      assert.equal(more.length, 0)
      assertBytes(kept?.result, bytes('reply'))
      const at = new Date(clock.nowMs())
      assert.deepEqual([kept?.attempt, kept?.discardedAt, kept?.operation], [1, at, undefined])
      const again = ofKind(await claim(store), 'claimed')
      assert.deepEqual([again.recordId, again.idSeed], [recordId, SEED])
    },
  },
  {
    name: 'starts an operation from the beginning after a discard, and keeps its earlier phases',
    async run(fixture) {
      const { store } = fixture
      const recordId = await completedOperation(fixture, 'none')
      const before = await store.durable.phases.load(recordId)
      ofKind(await act(fixture, discardOf(recordId)), 'done')
      assert.equal(await store.durable.phases.load(recordId), undefined)
      assert.deepEqual(await dueKeys(fixture), [])
      const kept = only(await discardedOf(fixture, recordId))
      const { name, version, input } = kept.operation!
      assert.deepEqual([name, version, textOf(input)], ['pay', 1, 'input'])
      assert.deepEqual(kept.operation!.phases.map(withTextBytes), before!.phases.map(withTextBytes))
      const again = ofKind(await claim(store, { onLapse: 'resume' }), 'claimed')
      assert.deepEqual([again.from, again.recoveryPoint], ['retry', undefined])
      const step = { operation: operationOf({ version: 2 }), phase: transactionOf() }
      ofKind(await store.durable.phases.record(again.lease, step), 'advanced')
      assert.equal((await store.durable.phases.load(recordId))?.version, 2)
      // A worker finds the new operation, not the discarded one.
      const { lease } = again
      ofKind(await settle(store, { ...releaseForWorker, lease }), 'settled')
      assert.deepEqual(await dueKeys(fixture, { operations: [{ name: 'pay', version: 1 }] }), [])
      assert.deepEqual(await dueKeys(fixture, { operations: [{ name: 'pay', version: 2 }] }), [
        'key-1',
      ])
    },
  },
  {
    name: 'refuses to discard a reply after an outside effect, unless the act accepts that',
    async run(fixture) {
      const { store } = fixture
      const recordId = await completedOperation(fixture, 'done')
      const before = await recordOf(fixture, recordId)
      const refused = { kind: 'refused', subject: recordId, reason: 'effect_done' }
      assert.deepEqual(await act(fixture, discardOf(recordId)), refused)
      assert.deepEqual(await recordOf(fixture, recordId), before)
      await assertNoAudit(fixture)
      const accepted = discardOf(recordId, { despiteEffects: true, idSeed: FRESH })
      ofKind(await act(fixture, accepted), 'done')
      const detail = { from: 'completed', ids: 'fresh', effects: 'done' }
      await assertAudited(fixture, recordId, { act: 'discard_reply', detail })
      const kept = only(await discardedOf(fixture, recordId))
      assert.equal(kept.operation?.phases[1]?.providerId, 'ch_1')
      assert.equal(ofKind(await claim(store, { onLapse: 'resume' }), 'claimed').idSeed, FRESH)
    },
  },
  {
    name: 'refuses to discard a reply while an outside effect is in doubt',
    async run(fixture) {
      const recordId = await completedOperation(fixture, 'intended')
      const refused = { kind: 'refused', subject: recordId, reason: 'effect_in_doubt' }
      assert.deepEqual(await act(fixture, discardOf(recordId)), refused)
      ofKind(await act(fixture, discardOf(recordId, { despiteEffects: true })), 'done')
    },
  },
  {
    name: 'gives the effect of a new run its downstream key again, after a discard',
    async run(fixture) {
      const { store } = fixture
      const recordId = await completedOperation(fixture, 'done')
      ofKind(await act(fixture, discardOf(recordId, { despiteEffects: true })), 'done')
      const { lease } = ofKind(await claim(store, { onLapse: 'resume' }), 'claimed')
      const phase = intentOf({ number: 1 })
      const step = { operation: operationOf(), phase }
      ofKind(await store.durable.phases.record(lease, step), 'advanced')
      // The verdict reaches the new phase: the discarded one has the same downstream key.
      const finding = { kind: 'done', result: bytes('again'), providerId: 'ch_2' } as const
      const ref = { downstreamKey: phase.downstreamKey }
      ofKind(await act(fixture, { kind: 'conclude', phase: ref, finding }), 'done')
      const operation = await store.durable.phases.load(recordId)
      assert.deepEqual([only(operation!.phases).providerId], ['ch_2'])
    },
  },
  {
    name: 'answers a repeated discard with already, and writes it once',
    async run(fixture) {
      const { store } = fixture
      const { recordId } = await viewOf(store, await finish(store))
      ofKind(await act(fixture, discardOf(recordId)), 'done')
      const repeated = await act(fixture, discardOf(recordId))
      assert.deepEqual(repeated, { kind: 'already', subject: recordId })
      assert.equal((await discardedOf(fixture, recordId)).length, 1)
    },
  },
  {
    name: 'discards no reply of another attempt',
    async run(fixture) {
      const { store } = fixture
      const { recordId } = await viewOf(store, await finish(store))
      const outcome = await act(fixture, discardOf(recordId, { attempt: 2 }))
      assert.deepEqual(outcome, { kind: 'refused', subject: recordId, reason: 'other_attempt' })
      ofKind(await claim(store), 'completed')
    },
  },
  {
    name: 'keeps each discarded reply of a record, newest first, also after the record is reaped',
    async run(fixture) {
      const { store, clock } = fixture
      const { recordId } = await viewOf(store, await finish(store, {}, bytes('one')))
      ofKind(await act(fixture, discardOf(recordId)), 'done')
      const { lease } = ofKind(await claim(store), 'claimed')
      ofKind(await settle(store, completeOf(lease, bytes('two'))), 'settled')
      clock.advance(1)
      ofKind(await act(fixture, discardOf(recordId, { attempt: 2 })), 'done')
      clock.advance(RETENTION_MS)
      assert.equal((await store.reap({ limit: 10 })).removed, 1)
      const kept = await discardedOf(fixture, recordId)
      assert.deepEqual(
        kept.map(({ attempt, result }) => [attempt, textOf(result)]),
        [
          [2, 'two'],
          [1, 'one'],
        ],
      )
      const { operator } = store.durable
      assert.equal((await operator.discarded({ recordId, limit: 1 })).length, 1)
      assert.equal((await operator.audit({ subject: recordId, limit: 10 }))[0]?.who, BY.who)
    },
  },
]

const releaseForWorker = {
  kind: 'release',
  proof: 'proven',
  errorCode: 'refused',
  retentionMs: RETENTION_MS,
} as const

export const tombstoneOperationCases: readonly DurableCase[] = [
  {
    name: 'removes the operation of a record that is kept only to refuse its key',
    async run(fixture) {
      const { store, clock } = fixture
      const refuse = { afterExpiry: 'refuse', refuseForMs: 1000 } as const
      const { lease, recordId } = await begin(fixture, refuse, { phase: transactionOf() })
      ofKind(await settle(store, completeOf(lease)), 'settled')
      clock.advance(RETENTION_MS)
      assert.equal((await store.reap({ limit: 10 })).expired, 1)
      assert.equal(await store.durable.phases.load(recordId), undefined)
      assert.equal((await recordOf(fixture, recordId)).recoveryPoint, undefined)
      clock.advance(1000)
      assert.equal((await store.reap({ limit: 10 })).removed, 1)
    },
  },
]
