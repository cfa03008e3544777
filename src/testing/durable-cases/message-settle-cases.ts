import assert from 'node:assert/strict'
import { MESSAGE_ERROR_LENGTH_MAX, MESSAGE_ERRORS_MAX } from '../../core/store/durable-store.ts'
import { newRecordId, newToken } from '../../core/record/identity.ts'
import { LEASE_MS, only } from '../store-cases/store-case.ts'
import {
  act,
  add,
  assertAudited,
  assertNoAudit,
  claimMessages,
  deadOf,
  DONE,
  messageIn,
  retryOf,
  settleMessage,
  stateOf,
  takeIds,
  takeOne,
  type DurableCase,
  type DurableFixture,
} from './durable-case.ts'

/** Adds a message and settles it as dead. Returns its id. */
async function addDead(fixture: DurableFixture, partition?: string): Promise<string> {
  const [id] = await add(fixture, { partition })
  const held = await takeOne(fixture)
  assert.equal(held.id, id)
  assert.equal(await settleMessage(fixture, held, deadOf(true)), true)
  return id!
}

export const messageSettleCases: readonly DurableCase[] = [
  {
    name: 'marks a relayed message as done, with the id from its provider',
    async run(fixture) {
      const { clock } = fixture
      await add(fixture, {}, {})
      const [first, second] = await claimMessages(fixture)
      clock.advance(10)
      const done = { kind: 'done', providerId: 'msg_1' } as const
      assert.equal(await settleMessage(fixture, first!, done), true)
      assert.equal(await settleMessage(fixture, second!, DONE), true)
      const { state, providerId, dueAt, endedAt } = await messageIn(fixture, first!.id)
      assert.deepEqual([state, providerId, dueAt], ['done', 'msg_1', undefined])
      assert.deepEqual(endedAt, new Date(clock.nowMs()))
      assert.equal((await messageIn(fixture, second!.id)).providerId, undefined)
      clock.advance(LEASE_MS * 10)
      assert.deepEqual(await takeIds(fixture), [])
    },
  },
  {
    name: 'shows the provider id that one attempt recorded to the next attempt',
    async run(fixture) {
      const { clock } = fixture
      const [id] = await add(fixture, {})
      const held = await takeOne(fixture)
      const note = { kind: 'note', providerId: 'msg_1' } as const
      const { dueAt } = await messageIn(fixture, id!)
      clock.advance(5)
      assert.equal(await settleMessage(fixture, held, note), true)
      const noted = await messageIn(fixture, id!)
      assert.deepEqual([noted.state, noted.providerId, noted.dueAt], ['held', 'msg_1', dueAt])
      clock.advance(LEASE_MS)
      const again = await takeOne(fixture)
      assert.deepEqual([again.providerId, again.attempt], ['msg_1', 2])
      assert.equal(await settleMessage(fixture, held, { ...note, providerId: 'late' }), false)
      assert.equal(await settleMessage(fixture, again, DONE), true)
      assert.equal((await messageIn(fixture, id!)).providerId, 'msg_1')
    },
  },
  {
    name: 'gives a message again after a retry settlement, with its errors on record',
    async run(fixture) {
      const { clock } = fixture
      const [id] = await add(fixture, {})
      const held = await takeOne(fixture)
      clock.advance(10)
      assert.equal(await settleMessage(fixture, held, retryOf('no route', 500)), true)
      const failedAt = new Date(clock.nowMs())
      const view = await messageIn(fixture, id!)
      assert.deepEqual([view.state, view.attempt], ['ready', 1])
      assert.deepEqual(view.dueAt, new Date(clock.nowMs() + 500))
      clock.advance(499)
      assert.deepEqual(await takeIds(fixture), [])
      clock.advance(1)
      const again = await takeOne(fixture)
      assert.equal(again.attempt, 2)
      assert.equal(await settleMessage(fixture, again, retryOf('refused')), true)
      assert.deepEqual((await messageIn(fixture, id!)).errors, [
        { at: failedAt, attempt: 1, error: 'no route' },
        { at: new Date(clock.nowMs()), attempt: 2, error: 'refused' },
      ])
    },
  },
  {
    name: 'keeps the last errors of a message, each within the maximum length',
    async run(fixture) {
      const [id] = await add(fixture, {})
      const tries = MESSAGE_ERRORS_MAX + 3
      const text = (n: number) => `try ${n}: ' " \\ 決済 \n`
      for (let n = 1; n <= tries; n++) {
        assert.equal(await settleMessage(fixture, await takeOne(fixture), retryOf(text(n))), true)
      }
      const kept = (await messageIn(fixture, id!)).errors
      assert.deepEqual(
        kept.map(({ attempt, error }) => [attempt, error]),
        Array.from({ length: MESSAGE_ERRORS_MAX }, (_, n) => [n + 4, text(n + 4)]),
      )
      // Longer than the maximum, cut inside a surrogate pair, with a NUL that no text column
      // accepts.
      const long = `\0${'x'.repeat(MESSAGE_ERROR_LENGTH_MAX - 2)}😀${'y'.repeat(5000)}`
      assert.equal(await settleMessage(fixture, await takeOne(fixture), deadOf(true, long)), true)
      const last = (await messageIn(fixture, id!)).errors.at(-1)
      assert.equal(last?.error.length, MESSAGE_ERROR_LENGTH_MAX)
      assert.ok(last.error.isWellFormed())
      assert.ok(last.error.endsWith('x\uFFFD'))
    },
  },
  {
    name: 'returns a message without counting the attempt',
    async run(fixture) {
      const { clock } = fixture
      const [id] = await add(fixture, {})
      const held = await takeOne(fixture)
      clock.advance(10)
      assert.equal(await settleMessage(fixture, held, { kind: 'return' }), true)
      const view = await messageIn(fixture, id!)
      assert.deepEqual([view.state, view.attempt, view.errors], ['ready', 0, []])
      assert.equal((await takeOne(fixture)).attempt, 1)
    },
  },
  {
    name: 'marks a message as dead, and gives it to no further claim',
    async run(fixture) {
      const { clock } = fixture
      const [id] = await add(fixture, {})
      clock.advance(10)
      const held = await takeOne(fixture)
      assert.equal(await settleMessage(fixture, held, deadOf(false, 'no such address')), true)
      const now = new Date(clock.nowMs())
      const view = await messageIn(fixture, id!)
      assert.deepEqual([view.state, view.dueAt, view.endedAt], ['dead', undefined, now])
      assert.deepEqual(view.errors, [{ at: now, attempt: 1, error: 'no such address' }])
      clock.advance(LEASE_MS * 10)
      assert.deepEqual(await takeIds(fixture), [])
    },
  },
  {
    name: 'refuses the settlement of a message from any caller but its holder',
    async run(fixture) {
      const { store, clock } = fixture
      const [id] = await add(fixture, {})
      const stalled = await takeOne(fixture)
      const settlements = [DONE, retryOf(), deadOf(true), { kind: 'return' } as const]
      for (const settled of settlements) {
        assert.equal(
          await settleMessage(fixture, { ...stalled, token: newToken() }, settled),
          false,
        )
      }
      clock.advance(LEASE_MS)
      const held = await takeOne(fixture)
      for (const settled of settlements) {
        assert.equal(await settleMessage(fixture, stalled, settled), false)
      }
      const view = await messageIn(fixture, id!)
      assert.deepEqual([view.state, view.attempt, view.errors], ['held', 2, []])
      assert.equal(await settleMessage(fixture, held, DONE), true)
      const absent = { ...DONE, id: newRecordId(0), token: newToken() }
      assert.deepEqual(await store.durable.outbox.settle([absent]), [false])
    },
  },
  {
    name: 'accepts a settlement after the lease ended while no other claim has the message',
    async run(fixture) {
      const { clock } = fixture
      const [id] = await add(fixture, {})
      const held = await takeOne(fixture)
      clock.advance(LEASE_MS * 2)
      assert.equal(await settleMessage(fixture, held, DONE), true)
      assert.equal(await stateOf(fixture, id!), 'done')
    },
  },
  {
    name: 'recognises a repeated settlement, and writes it once',
    async run(fixture) {
      const { clock } = fixture
      for (const settled of [DONE, retryOf('once', 60_000), deadOf(true, 'once')]) {
        const [id] = await add(fixture, {})
        const held = await takeOne(fixture)
        assert.equal(await settleMessage(fixture, held, settled), true)
        const before = await messageIn(fixture, id!)
        clock.advance(10)
        assert.equal(await settleMessage(fixture, held, settled), true)
        assert.deepEqual(await messageIn(fixture, id!), before)
      }
      const [id] = await add(fixture, {})
      const held = await takeOne(fixture)
      for (let n = 0; n < 2; n++) {
        assert.equal(await settleMessage(fixture, held, { kind: 'return' }), true)
      }
      assert.equal((await messageIn(fixture, id!)).attempt, 0)
    },
  },
  {
    name: 'refuses a different settlement of a settled message',
    async run(fixture) {
      const [id] = await add(fixture, {})
      const held = await takeOne(fixture)
      assert.equal(await settleMessage(fixture, held, DONE), true)
      const note = { kind: 'note', providerId: 'late' } as const
      for (const settled of [note, retryOf(), deadOf(true), { kind: 'return' } as const]) {
        assert.equal(await settleMessage(fixture, held, settled), false)
      }
      assert.equal(await stateOf(fixture, id!), 'done')
    },
  },
  {
    name: 'settles many messages in one call, each independently',
    async run(fixture) {
      const { store } = fixture
      await add(fixture, {}, {}, {}, {})
      const [a, b, c, d] = await claimMessages(fixture)
      const leaseOf = ({ id, token }: { id: string; token: string }) => ({ id, token })
      const settled = await store.durable.outbox.settle([
        { ...leaseOf(d!), ...DONE },
        { ...leaseOf(a!), ...retryOf('no', 60_000) },
        { ...leaseOf(b!), token: newToken(), ...DONE },
        { ...leaseOf(c!), ...deadOf(false) },
      ])
      assert.deepEqual(settled, [true, true, false, true])
      const states = await Promise.all([a, b, c, d].map((one) => stateOf(fixture, one!.id)))
      assert.deepEqual(states, ['ready', 'held', 'dead', 'done'])
      assert.deepEqual(await store.durable.outbox.settle([]), [])
    },
  },
]

export const messageActCases: readonly DurableCase[] = [
  {
    name: 'makes a dead message ready again, with its earlier attempts still on record',
    async run(fixture) {
      const { clock } = fixture
      const id = await addDead(fixture)
      clock.advance(100)
      const retry = { kind: 'retry_message', messageId: id } as const
      const outcome = await act(fixture, retry)
      assert.deepEqual(
        { record: undefined, ...outcome },
        {
          kind: 'done',
          subject: id,
          record: undefined,
        },
      )
      const view = await messageIn(fixture, id)
      assert.deepEqual([view.state, view.endedAt, view.errors.length], ['ready', undefined, 1])
      assert.deepEqual(view.dueAt, new Date(clock.nowMs()))
      const detail = { from: 'dead', attempt: 1 }
      await assertAudited(fixture, id, { act: 'retry_message', detail })
      assert.deepEqual(await act(fixture, retry), { kind: 'already', subject: id })
      const held = await takeOne(fixture)
      assert.deepEqual([held.id, held.attempt], [id, 2])
      await assertAudited(fixture, id, { act: 'retry_message', detail })
    },
  },
  {
    name: 'keeps the order of a partition when its dead messages are retried, first message first',
    async run(fixture) {
      const [first, second] = await add(fixture, { partition: 'p' }, { partition: 'p' })
      assert.equal(await settleMessage(fixture, await takeOne(fixture), deadOf(false)), true)
      assert.equal(await settleMessage(fixture, await takeOne(fixture), deadOf(true)), true)
      for (const messageId of [first!, second!]) {
        assert.equal((await act(fixture, { kind: 'retry_message', messageId })).kind, 'done')
      }
      const held = await takeOne(fixture)
      assert.equal(held.id, first)
      assert.equal(await settleMessage(fixture, held, DONE), true)
      assert.deepEqual(await takeIds(fixture), [second])
    },
  },
  {
    name: 'drops a dead message',
    async run(fixture) {
      const { clock } = fixture
      const id = await addDead(fixture)
      clock.advance(100)
      const drop = { kind: 'drop_message', messageId: id } as const
      assert.equal((await act(fixture, drop)).kind, 'done')
      const view = await messageIn(fixture, id)
      assert.deepEqual([view.state, view.endedAt], ['dropped', new Date(clock.nowMs())])
      const detail = { from: 'dead', attempt: 1 }
      await assertAudited(fixture, id, { act: 'drop_message', detail })
      assert.deepEqual(await act(fixture, drop), { kind: 'already', subject: id })
      const late = await act(fixture, { kind: 'retry_message', messageId: id })
      assert.deepEqual(late, { kind: 'refused', subject: id, reason: 'dropped' })
      assert.deepEqual(await takeIds(fixture), [])
      await assertAudited(fixture, id, { act: 'drop_message', detail })
    },
  },
  {
    name: 'retries and drops dead messages only',
    async run(fixture) {
      const [id] = await add(fixture, {})
      const retry = { kind: 'retry_message', messageId: id! } as const
      const drop = { kind: 'drop_message', messageId: id! } as const
      assert.deepEqual(await act(fixture, drop), { kind: 'refused', subject: id, reason: 'ready' })
      const held = await takeOne(fixture)
      for (const what of [retry, drop]) {
        const outcome = await act(fixture, what)
        assert.deepEqual(outcome, { kind: 'refused', subject: id, reason: 'held' })
      }
      assert.equal(await settleMessage(fixture, held, DONE), true)
      for (const what of [retry, drop]) {
        const outcome = await act(fixture, what)
        assert.deepEqual(outcome, { kind: 'refused', subject: id, reason: 'done' })
      }
      for (const kind of ['retry_message', 'drop_message'] as const) {
        const outcome = await act(fixture, { kind, messageId: newRecordId(0) })
        assert.deepEqual(outcome, { kind: 'not_found' })
      }
      await assertNoAudit(fixture)
    },
  },
  {
    name: 'refuses a late settlement from before a message was made ready again',
    async run(fixture) {
      await add(fixture, {})
      const held = await takeOne(fixture)
      assert.equal(await settleMessage(fixture, held, deadOf(true)), true)
      const { id: messageId } = held
      assert.equal((await act(fixture, { kind: 'retry_message', messageId })).kind, 'done')
      for (const settled of [DONE, retryOf(), deadOf(true)]) {
        assert.equal(await settleMessage(fixture, held, settled), false)
      }
      assert.equal(only(await claimMessages(fixture)).attempt, 2)
    },
  },
]
