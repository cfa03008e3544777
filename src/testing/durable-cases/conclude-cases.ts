import assert from 'node:assert/strict'
import type { Act, PhaseRef } from '../../core/store/operator-store.ts'
import {
  bytes,
  claim,
  claimRequest,
  completeOf,
  doubtOf,
  hold,
  ofKind,
  race,
  releaseOf,
  settle,
  tally,
  viewOf,
} from '../store-cases/store-case.ts'
import {
  act,
  assertAudited,
  assertNoAudit,
  auditOf,
  begin,
  dueKeys,
  intentOf,
  operationIn,
  phaseIn,
  recordOf,
  resultOf,
  textOf,
  transactionOf,
  type StartedOperation,
  type DurableCase,
  type DurableFixture,
} from './durable-case.ts'

const DONE = { kind: 'done', result: bytes('found'), providerId: 'ch_7' } as const
const NOT_EXECUTED = { kind: 'not_executed' } as const

function conclude(
  phase: PhaseRef,
  finding: typeof DONE | typeof NOT_EXECUTED = DONE,
  attempt?: number,
): Act {
  return { kind: 'conclude', phase, finding, attempt }
}

/** Starts an operation whose first phase was sent with an unknown outcome. */
async function beginUnknown(fixture: DurableFixture): Promise<StartedOperation> {
  const begun = await begin(fixture, {}, { phase: intentOf() })
  ofKind(await settle(fixture.store, doubtOf(begun.lease, 60_000)), 'settled')
  return begun
}

export const concludeCases: readonly DurableCase[] = [
  {
    name: 'concludes that an effect has happened, so that a worker continues after it',
    async run(fixture) {
      const { store, clock } = fixture
      const { recordId } = await beginUnknown(fixture)
      clock.advance(100)
      const outcome = ofKind(await act(fixture, conclude({ recordId })), 'done')
      const record = await recordOf(fixture, recordId)
      assert.deepEqual(outcome, { kind: 'done', subject: recordId, record })
      const now = new Date(clock.nowMs())
      assert.deepEqual(
        [record.state, record.proof, record.recoveryPoint, record.reconcileAt],
        ['failed_retryable', 'proven', 'charge', now],
      )
      const phase = await phaseIn(fixture, recordId)
      assert.deepEqual(
        [phase.state, textOf(phase.result), textOf(phase.request), phase.providerId, phase.doneAt],
        ['done', 'found', 'request', 'ch_7', now],
      )
      const detail = { phase: 'charge', finding: 'done', from: 'unknown' }
      await assertAudited(fixture, recordId, { act: 'conclude', detail })
      assert.deepEqual(await dueKeys(fixture), ['key-1'])
      const taken = ofKind(await claim(store, { mode: 'take' }), 'claimed')
      assert.equal(taken.recoveryPoint, 'charge')
    },
  },
  {
    name: 'concludes that an effect has not happened, so that a worker sends it again',
    async run(fixture) {
      const { clock } = fixture
      const { recordId } = await beginUnknown(fixture)
      ofKind(await act(fixture, conclude({ recordId }, NOT_EXECUTED)), 'done')
      const record = await recordOf(fixture, recordId)
      assert.deepEqual(
        [record.state, record.proof, record.recoveryPoint, record.reconcileAt],
        ['failed_retryable', 'proven', 'started', new Date(clock.nowMs())],
      )
      assert.deepEqual((await operationIn(fixture, recordId)).phases, [])
      const detail = { phase: 'charge', finding: 'not_executed', from: 'unknown' }
      await assertAudited(fixture, recordId, { act: 'conclude', detail })
    },
  },
  {
    name: 'finds the effect to conclude by its downstream key, byte for byte',
    async run(fixture) {
      const { recordId } = await beginUnknown(fixture)
      for (const downstreamKey of ['DOWNSTREAM-1', 'downstream-1 ', 'downstream', '']) {
        const outcome = await act(fixture, conclude({ downstreamKey }))
        assert.deepEqual(outcome, { kind: 'not_found' })
      }
      const outcome = await act(fixture, conclude({ downstreamKey: 'downstream-1' }))
      assert.equal(ofKind(outcome, 'done').subject, recordId)
    },
  },
  {
    name: "finds the effect to conclude by the provider's id",
    async run(fixture) {
      const { lease, recordId } = await begin(fixture, {}, { phase: intentOf() })
      assert.deepEqual(await act(fixture, conclude({ providerId: 'ch_1' })), { kind: 'not_found' })
      const phase = resultOf({ providerId: 'ch_1' })
      ofKind(await fixture.store.durable.phases.record(lease, { phase }), 'advanced')
      const again = await act(fixture, conclude({ providerId: 'ch_1' }))
      assert.deepEqual(again, { kind: 'already', subject: recordId })
      assert.deepEqual(await act(fixture, conclude({ providerId: 'CH_1' })), { kind: 'not_found' })
      await assertNoAudit(fixture)
    },
  },
  {
    name: 'concludes the effect that is in progress, not an earlier one',
    async run(fixture) {
      const { lease, recordId } = await begin(fixture, {}, { phase: resultOf() })
      const phase = intentOf({ name: 'notify', number: 2, downstreamKey: 'downstream-2' })
      ofKind(await fixture.store.durable.phases.record(lease, { phase }), 'advanced')
      ofKind(await act(fixture, conclude({ recordId })), 'done')
      const { phases } = await operationIn(fixture, recordId)
      assert.deepEqual(
        phases.map(({ state, result }) => [state, textOf(result)]),
        [
          ['done', 'charged'],
          ['done', 'found'],
        ],
      )
      assert.equal((await recordOf(fixture, recordId)).recoveryPoint, 'notify')
    },
  },
  {
    name: 'concludes that an effect happened, but not that it did not, while the record is held',
    async run(fixture) {
      const { lease, recordId } = await begin(fixture, {}, { phase: intentOf() })
      const refused = await act(fixture, conclude({ recordId }, NOT_EXECUTED))
      assert.deepEqual(refused, { kind: 'refused', subject: recordId, reason: 'in_progress' })
      assert.equal((await phaseIn(fixture, recordId)).state, 'intended')
      await assertNoAudit(fixture)
      const { record } = ofKind(await act(fixture, conclude({ recordId })), 'done')
      assert.deepEqual([record?.state, record?.recoveryPoint], ['in_progress', 'charge'])
      const detail = { phase: 'charge', finding: 'done', from: 'in_progress' }
      await assertAudited(fixture, recordId, { act: 'conclude', detail })
      ofKind(await settle(fixture.store, completeOf(lease)), 'settled')
    },
  },
  {
    name: 'concludes the effect of a released record without changing its state',
    async run(fixture) {
      const { lease, recordId } = await begin(fixture, {}, { phase: intentOf() })
      const release = { ...releaseOf(lease, 'declared'), resumeAfterMs: 5000 }
      ofKind(await settle(fixture.store, release), 'settled')
      const before = await recordOf(fixture, recordId)
      const { record } = ofKind(await act(fixture, conclude({ recordId })), 'done')
      assert.deepEqual(record, { ...before, recoveryPoint: 'charge' })
    },
  },
  {
    name: 'concludes an effect once when a webhook arrives several times',
    async run(fixture) {
      const { recordId } = await beginUnknown(fixture)
      const outcomes = await race(5, () => act(fixture, conclude({ recordId })))
      assert.deepEqual(tally(outcomes), { done: 1, already: 4 })
      const late = await act(fixture, conclude({ recordId }, NOT_EXECUTED))
      assert.deepEqual(late, { kind: 'already', subject: recordId })
      assert.equal(textOf((await phaseIn(fixture, recordId)).result), 'found')
      assert.equal((await auditOf(fixture, recordId)).length, 1)
    },
  },
  {
    name: 'refuses to conclude an attempt that did not send the effect last',
    async run(fixture) {
      const { recordId } = await beginUnknown(fixture)
      const before = await recordOf(fixture, recordId)
      const outcome = await act(fixture, conclude({ recordId }, NOT_EXECUTED, 2))
      assert.deepEqual(outcome, { kind: 'refused', subject: recordId, reason: 'other_attempt' })
      assert.deepEqual(await recordOf(fixture, recordId), before)
      await assertNoAudit(fixture)
      ofKind(await act(fixture, conclude({ recordId }, NOT_EXECUTED, 1)), 'done')
    },
  },
  {
    name: 'refuses to conclude without an effect, without a record, or on a completed record',
    async run(fixture) {
      const { store } = fixture
      const plain = (await viewOf(store, await hold(store, { key: 'plain' }))).recordId
      const booked = await begin(fixture, { key: 'booked' }, { phase: transactionOf() })
      for (const recordId of [plain, booked.recordId]) {
        const outcome = await act(fixture, conclude({ recordId }))
        assert.deepEqual(outcome, { kind: 'refused', subject: recordId, reason: 'no_phase' })
      }
      const { recordId } = claimRequest()
      assert.deepEqual(await act(fixture, conclude({ recordId })), { kind: 'not_found' })

      const over = await begin(fixture, { key: 'over' }, { phase: intentOf() })
      ofKind(await settle(store, completeOf(over.lease)), 'settled')
      const late = await act(fixture, conclude({ recordId: over.recordId }))
      assert.deepEqual(late, { kind: 'refused', subject: over.recordId, reason: 'completed' })
      await assertNoAudit(fixture)
    },
  },
]
