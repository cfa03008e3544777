import assert from 'node:assert/strict'
import { isOncekeyError } from '../../core/errors.ts'
import { newToken } from '../../core/record/identity.ts'
import {
  bytes,
  claimRequest,
  hold,
  ofKind,
  releaseOf,
  RETENTION_MS,
  settle,
  viewOf,
} from '../store-cases/store-case.ts'
import {
  act,
  begin,
  intentOf,
  messageOf,
  operationIn,
  operationOf,
  phaseIn,
  recordOf,
  resultOf,
  takeIds,
  textOf,
  transactionOf,
  type DurableCase,
} from './durable-case.ts'

export const advanceCases: readonly DurableCase[] = [
  {
    name: 'commits the writes of the work together with its step',
    async run(fixture) {
      const { store, note, notes } = fixture
      const lease = await hold(store)
      const { recordId, expiresAt } = await viewOf(store, lease)
      const message = messageOf()
      const outcome = await store.durable.phases.advance(lease, async (tx) => {
        await note(tx, 'booked')
        await store.durable.outbox.add(tx, message)
        return { operation: operationOf(), phase: transactionOf() }
      })
      assert.deepEqual(outcome, { kind: 'advanced', expiresAt })
      assert.deepEqual(await notes(), ['booked'])
      assert.equal(textOf((await phaseIn(fixture, recordId)).result), 'booked')
      assert.deepEqual(await takeIds(fixture), [message.id])
    },
  },
  {
    name: 'completes a record together with the writes of the work',
    async run(fixture) {
      const { store, note, notes } = fixture
      const { lease, recordId } = await begin(fixture)
      const end = { kind: 'complete', result: bytes('done'), retentionMs: RETENTION_MS } as const
      const outcome = await store.durable.phases.advance(lease, async (tx) => {
        await note(tx, 'last')
        return { phase: transactionOf(), end }
      })
      ofKind(outcome, 'advanced')
      const { state, result } = await recordOf(fixture, recordId)
      assert.deepEqual([state, textOf(result), await notes()], ['completed', 'done', ['last']])
    },
  },
  {
    name: 'passes the error of the work on, and rolls back everything except the lease',
    async run(fixture) {
      const { store, note, notes } = fixture
      const { lease, recordId } = await begin(fixture)
      const before = await recordOf(fixture, recordId)
      const error = new Error('card declined')
      const failing = store.durable.phases.advance(lease, async (tx) => {
        await note(tx, 'lost')
        await store.durable.outbox.add(tx, messageOf())
        throw error
      })
      await assert.rejects(failing, (thrown) => thrown === error)
      const throwing = store.durable.phases.advance(lease, () => {
        throw error
      })
      await assert.rejects(throwing, (thrown) => thrown === error)
      assert.deepEqual(await recordOf(fixture, recordId), before)
      assert.deepEqual([await notes(), await takeIds(fixture)], [[], []])
      const phase = transactionOf()
      ofKind(await store.durable.phases.advance(lease, () => ({ phase })), 'advanced')
    },
  },
  {
    name: 'rolls back the work of a caller that does not hold the record',
    async run(fixture) {
      const { store, note, notes } = fixture
      const { lease, recordId } = await begin(fixture)
      const { identity } = claimRequest({ key: 'never claimed' })
      const held = { kind: 'fenced', own: false, state: 'in_progress' }
      const cases = [
        [{ ...lease, token: newToken() }, held],
        [{ ...lease, attempt: 2 }, held],
        [
          { ...lease, identity },
          { ...held, state: 'absent' },
        ],
      ] as const
      for (const [other, expected] of cases) {
        const outcome = await store.durable.phases.advance(other, async (tx) => {
          await note(tx, 'lost')
          await store.durable.outbox.add(tx, messageOf())
          return { phase: transactionOf() }
        })
        assert.deepEqual(outcome, expected)
      }
      assert.deepEqual([await notes(), await takeIds(fixture)], [[], []])
      assert.deepEqual((await operationIn(fixture, recordId)).phases, [])
    },
  },
  {
    name: 'rolls back the work of a holder that has released the record',
    async run(fixture) {
      const { store, note, notes } = fixture
      const { lease } = await begin(fixture)
      ofKind(await settle(store, releaseOf(lease)), 'settled')
      const outcome = await store.durable.phases.advance(lease, async (tx) => {
        await note(tx, 'lost')
        return { phase: transactionOf() }
      })
      assert.deepEqual(outcome, { kind: 'fenced', own: true, state: 'failed_retryable' })
      assert.deepEqual(await notes(), [])
    },
  },
  {
    name: 'rolls back work whose transaction phase is already on record',
    async run(fixture) {
      const { store, note, notes } = fixture
      const { lease } = await begin(fixture, {}, { phase: transactionOf() })
      const outcome = await store.durable.phases.advance(lease, async (tx) => {
        await note(tx, 'twice')
        return { phase: transactionOf() }
      })
      assert.deepEqual(outcome, { kind: 'fenced', own: true, state: 'in_progress' })
      assert.deepEqual(await notes(), [])
    },
  },
  {
    name: 'rolls back work whose effect an operator has already concluded',
    async run(fixture) {
      const { store, note, notes } = fixture
      const { lease, recordId } = await begin(fixture, {}, { phase: intentOf() })
      const finding = { kind: 'done', result: bytes('first'), providerId: undefined } as const
      ofKind(await act(fixture, { kind: 'conclude', phase: { recordId }, finding }), 'done')
      const outcome = await store.durable.phases.advance(lease, async (tx) => {
        await note(tx, 'second')
        return { phase: resultOf() }
      })
      assert.equal(textOf(ofKind(outcome, 'concluded').result), 'first')
      assert.deepEqual(await notes(), [])
    },
  },
  {
    name: 'hands an operation over once, together with the writes of the work',
    async run(fixture) {
      const { store, note, notes } = fixture
      const lease = await hold(store)
      const handOver = () =>
        store.durable.phases.advance(lease, async (tx) => {
          await note(tx, 'accepted')
          return { operation: operationOf(), end: { kind: 'hand_over', afterMs: 0 } }
        })
      const outcome = ofKind(await handOver(), 'advanced')
      assert.deepEqual(await handOver(), outcome)
      assert.deepEqual(await notes(), ['accepted'])
      assert.equal((await viewOf(store, lease)).state, 'pending')
    },
  },
  {
    name: 'throws OUTCOME_UNKNOWN when the work ended the transaction itself',
    async run(fixture) {
      const { store, commitInside, note } = fixture
      const { lease, recordId } = await begin(fixture)
      const returning = store.durable.phases.advance(lease, async (tx) => {
        await note(tx, 'kept or not')
        await commitInside(tx)
        return { phase: transactionOf() }
      })
      await assert.rejects(returning, isOutcomeUnknown)
      const throwing = store.durable.phases.advance(lease, async (tx) => {
        await commitInside(tx)
        throw new Error('and then it failed')
      })
      await assert.rejects(throwing, isOutcomeUnknown)
      assert.deepEqual((await operationIn(fixture, recordId)).phases, [])
    },
  },
  {
    name: 'refuses to add a message to a transaction that has ended',
    async run(fixture) {
      const { store } = fixture
      const { lease } = await begin(fixture)
      let kept: unknown
      await store.durable.phases.advance(lease, (tx) => {
        kept = tx
        return { phase: transactionOf() }
      })
      const late = async () => store.durable.outbox.add(kept, messageOf())
      await assert.rejects(late, isOncekeyError)
      assert.deepEqual(await takeIds(fixture), [])
    },
  },
  {
    name: 'advances several records at once, each with its own rows',
    async run(fixture) {
      const { store, note, notes } = fixture
      const keys = Array.from({ length: 8 }, (_, n) => `key-${n}`)
      const begun = await Promise.all(keys.map((key) => begin(fixture, { key })))
      const outcomes = await Promise.all(
        begun.map(({ lease }, n) =>
          store.durable.phases.advance(lease, async (tx) => {
            await note(tx, keys[n]!)
            return { phase: transactionOf({ result: bytes(keys[n]!) }) }
          }),
        ),
      )
      for (const outcome of outcomes) ofKind(outcome, 'advanced')
      assert.deepEqual((await notes()).toSorted(), keys)
      for (const [n, { recordId }] of begun.entries()) {
        assert.equal(textOf((await phaseIn(fixture, recordId)).result), keys[n])
      }
    },
  },
  {
    name: 'adds messages in a transaction that completes a key without an operation',
    async run(fixture) {
      const { store } = fixture
      assert.ok(store.transaction !== undefined, `${store.name} store has no transaction() method`)
      const lease = await hold(store)
      const message = messageOf()
      const outcome = await store.transaction(lease, async (tx) => {
        await store.durable.outbox.add(tx, message)
        return { result: bytes('done'), retentionMs: RETENTION_MS }
      })
      ofKind(outcome, 'settled')
      assert.deepEqual(await takeIds(fixture), [message.id])
    },
  },
]

function isOutcomeUnknown(error: unknown): boolean {
  return isOncekeyError(error) && error.code === 'OUTCOME_UNKNOWN'
}
