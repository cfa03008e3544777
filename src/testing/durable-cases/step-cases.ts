import assert from 'node:assert/strict'
import type { Step, StepOutcome } from '../../core/store/durable-store.ts'
import { newToken } from '../../core/record/identity.ts'
import type { Lease } from '../../core/store/store.ts'
import {
  assertBytes,
  bytes,
  claim,
  claimRequest,
  completeOf,
  doubtOf,
  hold,
  LEASE_MS,
  ofKind,
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
  withTextBytes,
  operationIn,
  operationOf,
  phaseIn,
  recordOf,
  resultOf,
  textOf,
  transactionOf,
  type DurableCase,
  type DurableFixture,
} from './durable-case.ts'

function step({ store }: DurableFixture, lease: Lease, what: Step): Promise<StepOutcome> {
  return store.durable.phases.record(lease, what)
}

const COMPLETE = {
  kind: 'complete',
  result: bytes('done'),
  retentionMs: RETENTION_MS,
} as const

export const stepCases: readonly DurableCase[] = [
  {
    name: 'records an operation with its first step, and returns it',
    async run(fixture) {
      const { store } = fixture
      const lease = await hold(store)
      const { recordId, expiresAt } = await viewOf(store, lease)
      assert.equal(await store.durable.phases.load(recordId), undefined)
      const operation = operationOf({ version: 3, input: bytes('{"amount":5}') })
      const outcome = await step(fixture, lease, { operation })
      assert.deepEqual(outcome, { kind: 'advanced', expiresAt })
      const { input, ...rest } = await operationIn(fixture, recordId)
      assert.deepEqual(rest, { name: 'pay', version: 3, phases: [] })
      assertBytes(input, bytes('{"amount":5}'))
      const { state, recoveryPoint, reconcileAt } = await viewOf(store, lease)
      assert.deepEqual([state, recoveryPoint, reconcileAt], ['in_progress', 'started', undefined])
    },
  },
  {
    name: 'finds no operation for an unused record id',
    async run({ store }) {
      const { recordId } = claimRequest()
      assert.equal(await store.durable.phases.load(recordId), undefined)
    },
  },
  {
    name: 'keeps the recorded operation when a later step brings another',
    async run(fixture) {
      const { lease, recordId } = await begin(fixture)
      const operation = operationOf({ name: 'other', version: 9, input: bytes('other') })
      ofKind(await step(fixture, lease, { operation, phase: transactionOf() }), 'advanced')
      const { name, version, input, phases } = await operationIn(fixture, recordId)
      assert.deepEqual([name, version, textOf(input), phases.length], ['pay', 1, 'input', 1])
    },
  },
  {
    name: 'records a transaction phase with its result',
    async run(fixture) {
      const { lease, recordId } = await begin(fixture)
      fixture.clock.advance(100)
      ofKind(await step(fixture, lease, { phase: transactionOf() }), 'advanced')
      const now = new Date(fixture.clock.nowMs())
      assert.deepEqual(withTextBytes(await phaseIn(fixture, recordId)), {
        name: 'book',
        number: 1,
        kind: 'transaction',
        state: 'done',
        request: undefined,
        result: 'booked',
        downstreamKey: undefined,
        providerId: undefined,
        attempt: 1,
        firstSentAt: now,
        sentAt: now,
        doneAt: now,
      })
      assert.equal((await recordOf(fixture, recordId)).recoveryPoint, 'book')
    },
  },
  {
    name: 'records the intent of an effect, and then its result',
    async run(fixture) {
      const { clock } = fixture
      const { lease, recordId } = await begin(fixture)
      ofKind(await step(fixture, lease, { phase: intentOf() }), 'advanced')
      const sent = new Date(clock.nowMs())
      const intended = {
        name: 'charge',
        number: 1,
        kind: 'external',
        state: 'intended',
        request: 'request',
        result: undefined,
        downstreamKey: 'downstream-1',
        providerId: undefined,
        attempt: 1,
        firstSentAt: sent,
        sentAt: sent,
        doneAt: undefined,
      }
      assert.deepEqual(withTextBytes(await phaseIn(fixture, recordId)), intended)
      assert.equal((await recordOf(fixture, recordId)).recoveryPoint, 'started')

      clock.advance(700)
      ofKind(await step(fixture, lease, { phase: resultOf() }), 'advanced')
      const doneAt = new Date(clock.nowMs())
      const done = { state: 'done', result: 'charged', providerId: 'ch_1', doneAt }
      assert.deepEqual(withTextBytes(await phaseIn(fixture, recordId)), { ...intended, ...done })
      assert.equal((await recordOf(fixture, recordId)).recoveryPoint, 'charge')
    },
  },
  {
    name: 'keeps the first request of an effect that is sent again, with the time and attempt',
    async run(fixture) {
      const { store, clock } = fixture
      const { lease, recordId } = await begin(fixture, {}, { phase: intentOf() })
      const firstSentAt = new Date(clock.nowMs())
      ofKind(await settle(store, releaseOf(lease)), 'settled')
      clock.advance(900)
      const again = await hold(store, { mode: 'take' })
      const phase = intentOf({ request: bytes('another'), downstreamKey: 'another' })
      ofKind(await step(fixture, again, { phase }), 'advanced')
      const stored = await phaseIn(fixture, recordId)
      assert.deepEqual(
        [textOf(stored.request), stored.downstreamKey, stored.attempt, stored.state],
        ['request', 'downstream-1', 2, 'intended'],
      )
      assert.deepEqual([stored.firstSentAt, stored.sentAt], [firstSentAt, new Date(clock.nowMs())])
    },
  },
  {
    name: 'records a result whose intent was never recorded',
    async run(fixture) {
      const { lease, recordId } = await begin(fixture)
      const phase = resultOf({ providerId: undefined })
      ofKind(await step(fixture, lease, { phase }), 'advanced')
      const stored = await phaseIn(fixture, recordId)
      assert.deepEqual(
        [stored.kind, stored.state, stored.request, stored.providerId, textOf(stored.result)],
        ['external', 'done', undefined, undefined, 'charged'],
      )
    },
  },
  {
    name: 'clears an effect that did not happen, as if it had no intent',
    async run(fixture) {
      const { lease, recordId } = await begin(fixture, {}, { phase: transactionOf() })
      const clear = { kind: 'clear', name: 'charge', number: 2 } as const
      ofKind(await step(fixture, lease, { phase: clear }), 'advanced')
      ofKind(await step(fixture, lease, { phase: intentOf({ number: 2 }) }), 'advanced')
      ofKind(await step(fixture, lease, { phase: clear }), 'advanced')
      assert.equal((await phaseIn(fixture, recordId)).name, 'book')
      assert.equal((await recordOf(fixture, recordId)).recoveryPoint, 'book')
      const anew = intentOf({ number: 2, request: bytes('anew') })
      ofKind(await step(fixture, lease, { phase: anew }), 'advanced')
      const [, charge] = (await operationIn(fixture, recordId)).phases
      assert.equal(textOf(charge?.request), 'anew')
    },
  },
  {
    name: 'returns the phases of an operation by number, in any recording order',
    async run(fixture) {
      const { lease, recordId } = await begin(fixture)
      for (const number of [10, 2, 1, 3]) {
        const phase = transactionOf({ name: `phase ${number}`, number })
        ofKind(await step(fixture, lease, { phase }), 'advanced')
      }
      const { phases } = await operationIn(fixture, recordId)
      assert.deepEqual(
        phases.map(({ number }) => number),
        [1, 2, 3, 10],
      )
      assert.equal((await recordOf(fixture, recordId)).recoveryPoint, 'phase 3')
    },
  },
  {
    name: 'keeps the operations and phases of different records apart',
    async run(fixture) {
      const one = await begin(fixture, { key: 'one' }, { phase: transactionOf() })
      const phase = transactionOf({ result: bytes('of the other') })
      const other = await begin(fixture, { key: 'other' }, { phase })
      assert.equal(textOf((await phaseIn(fixture, one.recordId)).result), 'booked')
      assert.equal(textOf((await phaseIn(fixture, other.recordId)).result), 'of the other')
    },
  },
  {
    name: 'completes a record with the step that records its last phase',
    async run(fixture) {
      const { store, clock } = fixture
      const { lease, recordId } = await begin(fixture)
      clock.advance(500)
      const outcome = await step(fixture, lease, { phase: transactionOf(), end: COMPLETE })
      const expiresAt = new Date(clock.nowMs() + RETENTION_MS)
      assert.deepEqual(outcome, { kind: 'advanced', expiresAt })
      const { state, reconcileAt, completedAt } = await recordOf(fixture, recordId)
      assert.deepEqual([state, reconcileAt], ['completed', undefined])
      assert.deepEqual(completedAt, new Date(clock.nowMs()))
      assertBytes(ofKind(await claim(store), 'completed').result, bytes('done'))
      assert.equal((await phaseIn(fixture, recordId)).name, 'book')
      assert.deepEqual(await dueKeys(fixture), [])
    },
  },
  {
    name: 'never moves an expiry back with a completing step',
    async run(fixture) {
      const { lease } = await begin(fixture)
      const { expiresAt } = await viewOf(fixture.store, lease)
      const end = { ...COMPLETE, retentionMs: 1 }
      assert.deepEqual(await step(fixture, lease, { end }), { kind: 'advanced', expiresAt })
    },
  },
  {
    name: 'reports the completed record to a holder that repeats its completing step',
    async run(fixture) {
      const { lease } = await begin(fixture)
      ofKind(await step(fixture, lease, { end: COMPLETE }), 'advanced')
      const again = await step(fixture, lease, { end: { ...COMPLETE, result: bytes('other') } })
      assert.deepEqual(again, { kind: 'fenced', own: true, state: 'completed' })
      assertBytes((await viewOf(fixture.store, lease)).result, bytes('done'))
    },
  },
  {
    name: 'hands an operation over as pending and due, and answers a repeated step the same way',
    async run(fixture) {
      const { store, clock } = fixture
      const lease = await hold(store)
      const handOver = { operation: operationOf(), end: { kind: 'hand_over', afterMs: 0 } } as const
      const outcome = await step(fixture, lease, handOver)
      const view = await viewOf(store, lease)
      const now = new Date(clock.nowMs())
      assert.deepEqual([view.state, view.reconcileAt, view.leaseUntil], ['pending', now, now])
      assert.deepEqual(outcome, { kind: 'advanced', expiresAt: view.expiresAt })
      clock.advance(10)
      assert.deepEqual(await step(fixture, lease, handOver), outcome)
      assert.deepEqual(await viewOf(store, lease), view)
      assert.deepEqual(await dueKeys(fixture), ['key-1'])
      ofKind(await claim(store, { mode: 'accept' }), 'pending')
    },
  },
  {
    name: 'stores large and empty inputs, requests and results, and any text',
    async run(fixture) {
      const large = new Uint8Array(1024 * 1024 + 1).fill(0xab)
      const name = `Größe ' " \\ 決済 😀 %_ {table} $1 ?`
      const lease = await hold(fixture.store)
      const { recordId } = await viewOf(fixture.store, lease)
      const operation = operationOf({ name, input: large })
      const intent = intentOf({ name, request: large, downstreamKey: `k'"😀` })
      ofKind(await step(fixture, lease, { operation, phase: intent }), 'advanced')
      const result = resultOf({ name, result: large, downstreamKey: `k'"😀`, providerId: `p'"😀` })
      ofKind(await step(fixture, lease, { phase: result }), 'advanced')
      const empty = transactionOf({ name: 'empty', number: 2, result: new Uint8Array(0) })
      ofKind(await step(fixture, lease, { phase: empty }), 'advanced')

      const stored = await operationIn(fixture, recordId)
      const [first, second] = stored.phases
      assert.deepEqual([stored.name, first?.name, second?.name], [name, name, 'empty'])
      assert.deepEqual([first?.downstreamKey, first?.providerId], [`k'"😀`, `p'"😀`])
      assertBytes(stored.input, large)
      assertBytes(first?.request, large)
      assertBytes(first?.result, large)
      assertBytes(second?.result, new Uint8Array(0))
      ofKind(await settle(fixture.store, releaseOf(lease)), 'settled')
      assert.deepEqual(await dueKeys(fixture, { operations: [{ name, version: 1 }] }), ['key-1'])
    },
  },
]

export const fencedStepCases: readonly DurableCase[] = [
  {
    name: 'refuses a step with any lease but the current one of the record',
    async run(fixture) {
      const { lease, recordId } = await begin(fixture)
      const before = await recordOf(fixture, recordId)
      const fenced = { kind: 'fenced', own: false, state: 'in_progress' }
      for (const other of [
        { ...lease, token: newToken() },
        { ...lease, attempt: 2 },
      ]) {
        for (const what of [{ phase: transactionOf() }, { end: COMPLETE }]) {
          assert.deepEqual(await step(fixture, other, what), fenced)
        }
      }
      const { identity } = claimRequest({ key: 'never claimed' })
      const absent = await step(fixture, { ...lease, identity }, { phase: transactionOf() })
      assert.deepEqual(absent, { kind: 'fenced', own: false, state: 'absent' })
      assert.deepEqual(await recordOf(fixture, recordId), before)
      assert.deepEqual((await operationIn(fixture, recordId)).phases, [])
    },
  },
  {
    name: 'refuses a step from a holder whose record was taken over',
    async run(fixture) {
      const { store, clock } = fixture
      const { lease, recordId } = await begin(fixture)
      clock.advance(LEASE_MS)
      const taken = ofKind(await claim(store, { mode: 'take' }), 'claimed')
      const late = await step(fixture, lease, { phase: transactionOf() })
      assert.deepEqual(late, { kind: 'fenced', own: false, state: 'in_progress' })
      assert.deepEqual((await operationIn(fixture, recordId)).phases, [])
      ofKind(await step(fixture, taken.lease, { phase: transactionOf() }), 'advanced')
      assert.equal((await phaseIn(fixture, recordId)).attempt, 2)
    },
  },
  {
    name: 'accepts a step after the lease ended while no other claim has the record',
    async run(fixture) {
      const { store, clock } = fixture
      const { lease } = await begin(fixture)
      clock.advance(LEASE_MS * 2)
      ofKind(await step(fixture, lease, { phase: transactionOf() }), 'advanced')
      assert.equal((await store.sweep({ limit: 10 })).length, 1)
      const late = await step(fixture, lease, { phase: transactionOf({ name: 'late' }) })
      assert.deepEqual(late, { kind: 'fenced', own: true, state: 'failed_retryable' })
    },
  },
  {
    name: 'refuses a step from a holder that has settled, and reports the state of the record',
    async run(fixture) {
      const { store } = fixture
      const settlements = {
        failed_retryable: releaseOf,
        unknown: doubtOf,
        completed: completeOf,
      } as const
      for (const [state, settlementOf] of Object.entries(settlements)) {
        const { lease, recordId } = await begin(fixture, { key: state })
        ofKind(await settle(store, settlementOf(lease)), 'settled')
        const before = await recordOf(fixture, recordId)
        const handOver = { end: { kind: 'hand_over', afterMs: 0 } as const }
        for (const what of [{ phase: transactionOf() }, handOver]) {
          assert.deepEqual(await step(fixture, lease, what), { kind: 'fenced', own: true, state })
        }
        assert.deepEqual(await recordOf(fixture, recordId), before)
        assert.deepEqual((await operationIn(fixture, recordId)).phases, [])
      }
    },
  },
  {
    name: 'refuses a different step from a holder that has handed over',
    async run(fixture) {
      const { lease } = await begin(fixture, {}, { end: { kind: 'hand_over', afterMs: 0 } })
      const late = await step(fixture, lease, { phase: transactionOf() })
      assert.deepEqual(late, { kind: 'fenced', own: false, state: 'pending' })
    },
  },
  {
    name: 'hands an operation over for later without counting an attempt that ran nothing',
    async run(fixture) {
      const { store, clock } = fixture
      const handOver = { end: { kind: 'hand_over', afterMs: 1_000 } } as const
      const { recordId } = await begin(fixture, {}, handOver)
      assert.equal((await recordOf(fixture, recordId)).attempt, 0)
      assert.deepEqual(await dueKeys(fixture), [])
      clock.advance(1_000)
      assert.deepEqual(await dueKeys(fixture), ['key-1'])
      const taken = ofKind(await claim(store, { mode: 'take' }), 'claimed')
      assert.equal(taken.lease.attempt, 1)
    },
  },
  {
    name: 'does not record a transaction phase twice',
    async run(fixture) {
      const { lease, recordId } = await begin(fixture, {}, { phase: transactionOf() })
      const phase = transactionOf({ result: bytes('again') })
      const again = await step(fixture, lease, { phase })
      assert.deepEqual(again, { kind: 'fenced', own: true, state: 'in_progress' })
      assert.equal(textOf((await phaseIn(fixture, recordId)).result), 'booked')
    },
  },
  {
    name: 'answers every step of an effect that a webhook has concluded with its result',
    async run(fixture) {
      const { lease, recordId } = await begin(fixture, {}, { phase: intentOf() })
      const finding = { kind: 'done', result: bytes('by webhook'), providerId: 'ch_9' } as const
      ofKind(await act(fixture, { kind: 'conclude', phase: { recordId }, finding }), 'done')
      const before = [await recordOf(fixture, recordId), await phaseIn(fixture, recordId)]
      const phases = [intentOf(), resultOf(), { kind: 'clear', name: 'charge', number: 1 } as const]
      for (const phase of phases) {
        const outcome = await step(fixture, lease, { phase, end: COMPLETE })
        assertBytes(ofKind(outcome, 'concluded').result, bytes('by webhook'))
      }
      assert.deepEqual(
        [await recordOf(fixture, recordId), await phaseIn(fixture, recordId)],
        before,
      )
      ofKind(await step(fixture, lease, { end: COMPLETE }), 'advanced')
    },
  },
]
