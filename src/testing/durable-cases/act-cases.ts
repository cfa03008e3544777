import assert from 'node:assert/strict'
import type { Act } from '../../core/store/operator-store.ts'
import type { ClaimRequest, RecordRef } from '../../core/store/store.ts'
import {
  assertBytes,
  bytes,
  claim,
  claimRequest,
  completeOf,
  doubtOf,
  hold,
  ofKind,
  only,
  releaseOf,
  RETENTION_MS,
  settle,
  viewOf,
} from '../store-cases/store-case.ts'
import {
  act,
  assertAudited,
  assertNoAudit,
  auditOf,
  begin,
  BY,
  dueKeys,
  operationOf,
  recordOf,
  transactionOf,
  type DurableCase,
  type DurableFixture,
} from './durable-case.ts'

type State = 'pending' | 'in_progress' | 'completed' | 'failed_retryable' | 'unknown'

/** Creates a record in the given state. The key has the name of the state. */
async function recordIn(
  fixture: DurableFixture,
  state: State,
  overrides: Partial<ClaimRequest> = {},
): Promise<string> {
  const { store } = fixture
  if (state === 'pending') {
    const end = { kind: 'hand_over', afterMs: 0 } as const
    return (await begin(fixture, { key: state, ...overrides }, { end })).recordId
  }
  const { lease, recordId } = await begin(fixture, { key: state, ...overrides })
  const settlementOf = { completed: completeOf, failed_retryable: releaseOf, unknown: doubtOf }
  if (state === 'in_progress') return recordId
  ofKind(await settle(store, settlementOf[state](lease)), 'settled')
  return recordId
}

/** Asserts that an act is refused in these states and changes nothing. */
async function assertRefused(
  fixture: DurableFixture,
  actOn: (ref: RecordRef) => Act,
  states: readonly State[],
): Promise<void> {
  for (const state of states) {
    const recordId = await recordIn(fixture, state, { key: `refused ${state}` })
    const before = await recordOf(fixture, recordId)
    const outcome = await act(fixture, actOn({ recordId }))
    assert.deepEqual(outcome, { kind: 'refused', subject: recordId, reason: state })
    assert.deepEqual(await recordOf(fixture, recordId), before)
    assert.deepEqual(await auditOf(fixture, recordId), [])
  }
  const { recordId, identity } = claimRequest({ key: 'never claimed' })
  for (const ref of [{ recordId }, { identity }]) {
    assert.deepEqual(await act(fixture, actOn(ref)), { kind: 'not_found' })
  }
}

function resolveOf(
  ref: RecordRef,
  verdict: Extract<Act, { kind: 'resolve' }>['verdict'],
  attempt?: number,
): Act {
  return { kind: 'resolve', ref, verdict, attempt, retentionMs: RETENTION_MS }
}

const RETRYABLE = { kind: 'failed_retryable' } as const

export const recordActCases: readonly DurableCase[] = [
  {
    name: "completes an unknown record by an operator's verdict",
    async run(fixture) {
      const { store, clock } = fixture
      const recordId = await recordIn(fixture, 'unknown')
      const verdict = { kind: 'completed', result: bytes('declined') } as const
      const outcome = ofKind(await act(fixture, resolveOf({ recordId }, verdict)), 'done')
      const record = await recordOf(fixture, recordId)
      // Drivers return different byte types, so the result is not compared here.
      assert.deepEqual({ ...outcome.record, result: undefined }, { ...record, result: undefined })
      assert.deepEqual([record.state, record.reconcileAt], ['completed', undefined])
      assert.deepEqual(record.completedAt, new Date(clock.nowMs()))
      const replay = ofKind(await claim(store, { key: 'unknown' }), 'completed')
      assertBytes(replay.result, bytes('declined'))
      const detail = { verdict: 'completed', from: 'unknown' }
      await assertAudited(fixture, recordId, { act: 'resolve', detail })
    },
  },
  {
    name: "releases an unknown record by an operator's verdict, and makes its operation due",
    async run(fixture) {
      const { store } = fixture
      const recordId = await recordIn(fixture, 'unknown')
      const { record } = ofKind(await act(fixture, resolveOf({ recordId }, RETRYABLE)), 'done')
      assert.deepEqual([record?.state, record?.proof], ['failed_retryable', 'proven'])
      assert.deepEqual(await dueKeys(fixture), ['unknown'])
      const detail = { verdict: 'failed_retryable', from: 'unknown' }
      await assertAudited(fixture, recordId, { act: 'resolve', detail })

      const plain = await hold(store, { key: 'plain' })
      ofKind(await settle(store, doubtOf(plain)), 'settled')
      const { identity } = plain
      ofKind(await act(fixture, resolveOf({ identity }, RETRYABLE)), 'done')
      assert.equal((await viewOf(store, plain)).reconcileAt, undefined)
      ofKind(await claim(store, { key: 'plain' }), 'claimed')
    },
  },
  {
    name: 'refuses a verdict on another attempt, or on a record that is not unknown',
    async run(fixture) {
      const recordId = await recordIn(fixture, 'unknown')
      const outcome = await act(fixture, resolveOf({ recordId }, RETRYABLE, 2))
      assert.deepEqual(outcome, { kind: 'refused', subject: recordId, reason: 'other_attempt' })
      const states = ['pending', 'in_progress', 'completed', 'failed_retryable'] as const
      await assertRefused(fixture, (ref) => resolveOf(ref, RETRYABLE), states)
      await assertNoAudit(fixture)
      ofKind(await act(fixture, resolveOf({ recordId }, RETRYABLE, 1)), 'done')
    },
  },
  {
    name: 'releases a held record by an operator, after which the holder can settle nothing',
    async run(fixture) {
      const { store, clock } = fixture
      const { lease, recordId } = await begin(fixture)
      clock.advance(100)
      const { identity } = lease
      const outcome = ofKind(await act(fixture, { kind: 'release', ref: { identity } }), 'done')
      const now = new Date(clock.nowMs())
      const record = await recordOf(fixture, recordId)
      assert.deepEqual(outcome, { kind: 'done', subject: recordId, record })
      assert.deepEqual(
        [record.state, record.proof, record.reconcileAt, record.leaseUntil],
        ['failed_retryable', 'declared', now, now],
      )
      const fenced = { kind: 'fenced', own: false, state: 'failed_retryable' }
      assert.deepEqual(await settle(store, completeOf(lease)), fenced)
      const step = { phase: transactionOf() }
      assert.deepEqual(await store.durable.phases.record(lease, step), fenced)
      await assertAudited(fixture, recordId, { act: 'release', detail: { from: 'in_progress' } })
      assert.deepEqual(await dueKeys(fixture), ['key-1'])
      ofKind(await claim(store), 'claimed')
    },
  },
  {
    name: 'releases an unknown record, with or without an operation, for the next request',
    async run(fixture) {
      const { store } = fixture
      const recordId = await recordIn(fixture, 'unknown')
      ofKind(await act(fixture, { kind: 'release', ref: { recordId } }), 'done')
      await assertAudited(fixture, recordId, { act: 'release', detail: { from: 'unknown' } })
      const { identity } = await hold(store, { key: 'plain' })
      const { record } = ofKind(await act(fixture, { kind: 'release', ref: { identity } }), 'done')
      assert.equal(record?.reconcileAt, undefined)
      ofKind(await claim(store, { key: 'plain' }), 'claimed')
    },
  },
  {
    name: 'refuses to release a record that is neither held nor unknown',
    async run(fixture) {
      const states = ['pending', 'completed', 'failed_retryable'] as const
      await assertRefused(fixture, (ref) => ({ kind: 'release', ref }), states)
      await assertNoAudit(fixture)
    },
  },
  {
    name: 'refuses to discard the reply of a record without a result',
    async run(fixture) {
      const discard = (ref: RecordRef): Act => {
        return { kind: 'discard_reply', ref, attempt: 1, despiteEffects: true }
      }
      await assertRefused(fixture, discard, ['in_progress', 'failed_retryable', 'unknown'])
      await assertNoAudit(fixture)
    },
  },
  {
    name: 'requeues an unknown record: it is due at once, with its count of tries reset',
    async run(fixture) {
      const { store, clock } = fixture
      const recordId = await recordIn(fixture, 'unknown')
      const { operator } = store.durable
      assert.equal((await operator.takeUnknown({ limit: 1, againMs: 1000 })).length, 1)
      assert.equal(await operator.postpone({ recordId, attempt: 1, inMs: undefined }), true)
      clock.advance(5000)
      const { record } = ofKind(await act(fixture, { kind: 'requeue', ref: { recordId } }), 'done')
      const now = new Date(clock.nowMs())
      assert.deepEqual([record?.state, record?.reconcileAt, record?.tries], ['unknown', now, 0])
      await assertAudited(fixture, recordId, { act: 'requeue', detail: { from: 'unknown' } })
      assert.equal((await operator.takeUnknown({ limit: 1, againMs: 1000 })).length, 1)
    },
  },
  {
    name: 'requeues an operation that waits: it is due at once',
    async run(fixture) {
      const { store } = fixture
      const { lease, recordId } = await begin(fixture)
      const release = { ...releaseOf(lease), resumeAfterMs: 5000 }
      ofKind(await settle(store, release), 'settled')
      assert.deepEqual(await dueKeys(fixture), [])
      ofKind(await act(fixture, { kind: 'requeue', ref: { recordId } }), 'done')
      assert.deepEqual(await dueKeys(fixture), ['key-1'])
      const pending = await recordIn(fixture, 'pending')
      ofKind(await act(fixture, { kind: 'requeue', ref: { recordId: pending } }), 'done')
      assert.deepEqual((await dueKeys(fixture)).toSorted(), ['key-1', 'pending'])
    },
  },
  {
    name: 'refuses to requeue a record that waits for neither a worker nor the reconciler',
    async run(fixture) {
      const { store } = fixture
      const requeue = (ref: RecordRef): Act => ({ kind: 'requeue', ref })
      await assertRefused(fixture, requeue, ['in_progress', 'completed'])
      const plain = await hold(store, { key: 'plain' })
      ofKind(await settle(store, releaseOf(plain)), 'settled')
      const { recordId } = await viewOf(store, plain)
      const outcome = await act(fixture, requeue({ recordId }))
      assert.deepEqual(outcome, { kind: 'refused', subject: recordId, reason: 'failed_retryable' })
      await assertNoAudit(fixture)
    },
  },
]

export const auditCases: readonly DurableCase[] = [
  {
    name: 'lists the audit newest first, of one subject or of all, at most `limit` entries',
    async run(fixture) {
      const { store, clock } = fixture
      const { operator } = store.durable
      const first = await recordIn(fixture, 'unknown')
      const second = await recordIn(fixture, 'pending')
      for (const recordId of [first, second, first]) {
        ofKind(await act(fixture, { kind: 'requeue', ref: { recordId } }), 'done')
        clock.advance(10)
      }
      const subjects = (await operator.audit({ limit: 10 })).map(({ subject }) => subject)
      assert.deepEqual(subjects, [first, second, first])
      const times = (await operator.audit({ subject: first, limit: 10 })).map(({ at }) =>
        at.getTime(),
      )
      assert.deepEqual(times, [clock.nowMs() - 10, clock.nowMs() - 30])
      assert.equal((await operator.audit({ subject: first, limit: 1 })).length, 1)
      assert.equal((await operator.audit({ limit: 2 })).length, 2)
      assert.deepEqual(await operator.audit({ subject: 'absent', limit: 10 }), [])
    },
  },
  {
    name: 'stores who and why in the audit exactly as given, and never a result',
    async run(fixture) {
      const { store } = fixture
      const operation = operationOf({ input: bytes('secret input') })
      const { lease, recordId } = await begin(fixture, {}, { operation })
      ofKind(await settle(store, doubtOf(lease)), 'settled')
      const by = { who: `O'Brien "決済" 😀 \\ ?`, why: `line one\nline two ${'x'.repeat(2000)}` }
      const verdict = { kind: 'completed', result: bytes('secret result') } as const
      const outcome = await store.durable.operator.act(resolveOf({ recordId }, verdict), by)
      ofKind(outcome, 'done')
      const entry = only(await auditOf(fixture, recordId))
      assert.deepEqual([entry.who, entry.why], [by.who, by.why])
      assert.ok(!entry.detail.includes('secret'))
    },
  },
  {
    name: 'keeps the audit of a removed record',
    async run(fixture) {
      const { store, clock } = fixture
      const lease = await hold(store)
      ofKind(await settle(store, doubtOf(lease)), 'settled')
      const { recordId } = await viewOf(store, lease)
      ofKind(await act(fixture, resolveOf({ recordId }, RETRYABLE)), 'done')
      clock.advance(RETENTION_MS)
      assert.equal((await store.reap({ limit: 10 })).removed, 1)
      const { who, why } = only(await auditOf(fixture, recordId))
      assert.deepEqual({ who, why }, BY)
    },
  },
]
