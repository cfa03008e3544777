import assert from 'node:assert/strict'
import { isOncekeyError } from '../../core/errors.ts'
import { newRecordId, newToken } from '../../core/record/identity.ts'
import { assertBytes, bytes, LEASE_MS, only, race } from '../store-cases/store-case.ts'
import {
  add,
  claimMessages,
  DONE,
  messageIn,
  messageOf,
  settleMessage,
  stateOf,
  takeIds,
  takeOne,
  textOf,
  type DurableCase,
} from './durable-case.ts'

export const addCases: readonly DurableCase[] = [
  {
    name: "adds a message that commits with the caller's transaction",
    async run(fixture) {
      const { store, transact, note, notes, clock } = fixture
      const message = messageOf({ key: 'order-1', partition: 'customer-1' })
      await transact(async (tx) => {
        await note(tx, 'order')
        await store.durable.outbox.add(tx, message)
        assert.equal(await store.durable.outbox.read(message.id), undefined)
      })
      assert.deepEqual(await notes(), ['order'])
      const { payload, ...view } = await messageIn(fixture, message.id)
      assertBytes(payload, bytes('payload'))
      assert.deepEqual(view, {
        id: message.id,
        topic: 'receipts',
        tenant: undefined,
        key: 'order-1',
        partition: 'customer-1',
        state: 'ready',
        attempt: 0,
        errors: [],
        providerId: undefined,
        createdAt: new Date(clock.nowMs()),
        dueAt: new Date(clock.nowMs()),
        endedAt: undefined,
      })
    },
  },
  {
    name: "adds no message when the caller's transaction is rolled back",
    async run(fixture) {
      const { store, transact, note, notes } = fixture
      const message = messageOf({ partition: 'customer-1' })
      const failing = transact(async (tx) => {
        await note(tx, 'order')
        await store.durable.outbox.add(tx, message)
        throw new Error('sold out')
      })
      await assert.rejects(failing, /sold out/)
      assert.deepEqual([await notes(), await takeIds(fixture)], [[], []])
      assert.equal(await store.durable.outbox.read(message.id), undefined)
      const [next] = await add(fixture, { partition: 'customer-1' })
      assert.deepEqual(await takeIds(fixture), [next])
    },
  },
  {
    name: 'refuses to add a message to a value that is no transaction, and to an ended transaction',
    async run(fixture) {
      const { store, transact } = fixture
      for (const wrong of [undefined, null, 7, 'tx', {}, []]) {
        const adding = async () => store.durable.outbox.add(wrong, messageOf())
        await assert.rejects(adding, isInvalid)
      }
      let ended: unknown
      await transact((tx) => {
        ended = tx
      })
      const late = async () => store.durable.outbox.add(ended, messageOf())
      await assert.rejects(late)
      assert.deepEqual(await takeIds(fixture), [])
    },
  },
  {
    name: 'adds no second message under an id that is in use',
    async run(fixture) {
      const id = newRecordId(0)
      await add(fixture, { id, payload: bytes('first') })
      await assert.rejects(add(fixture, { id, payload: bytes('second') }), isOncekeyError)
      assert.equal(textOf((await takeOne(fixture)).payload), 'first')
    },
  },
  {
    name: 'stores large and empty payloads and any text unchanged',
    async run(fixture) {
      const { store } = fixture
      const large = new Uint8Array(1024 * 1024 + 1).fill(0xcd)
      const text = `Größe ' " \\ 決済 😀 %_ {table} $1 ? :a @b -- /* */ \n\t`
      const odd = { topic: text, key: text, partition: text }
      const ids = await add(
        fixture,
        { ...odd, payload: large },
        { topic: text, key: '', partition: '', payload: new Uint8Array(0) },
        { topic: text, payload: Uint8Array.from({ length: 256 }, (_, n) => n) },
      )
      const held = await claimMessages(fixture, { topics: [text] })
      const [first, second, third] = ids.map((id) => held.find((one) => one.id === id))
      assert.deepEqual([first?.topic, first?.key, first?.partition], [text, text, text])
      assert.deepEqual([second?.key, second?.partition], ['', ''])
      assert.deepEqual([third?.key, third?.partition], [undefined, undefined])
      assertBytes(first?.payload, large)
      assertBytes(second?.payload, new Uint8Array(0))
      assertBytes(
        third?.payload,
        Uint8Array.from({ length: 256 }, (_, n) => n),
      )
      for (const { id, token } of held) {
        const done = { id, token, kind: 'done', providerId: text } as const
        assert.deepEqual(await store.durable.outbox.settle([done]), [true])
        assert.equal((await messageIn(fixture, id)).providerId, text)
      }
    },
  },
]

export const messageClaimCases: readonly DurableCase[] = [
  {
    name: 'returns a claimed message with every field that its receiver needs',
    async run(fixture) {
      const { clock } = fixture
      const [id] = await add(fixture, { key: 'order-1' })
      const createdAt = new Date(clock.nowMs())
      clock.advance(50)
      const token = newToken()
      const { payload, ...held } = await takeOne(fixture, { token })
      assertBytes(payload, bytes('payload'))
      assert.deepEqual(held, {
        id,
        token,
        topic: 'receipts',
        tenant: undefined,
        key: 'order-1',
        partition: undefined,
        attempt: 1,
        providerId: undefined,
        createdAt,
      })
      const { state, attempt, dueAt } = await messageIn(fixture, id!)
      assert.deepEqual([state, attempt], ['held', 1])
      assert.deepEqual(dueAt, new Date(clock.nowMs() + LEASE_MS))
    },
  },
  {
    name: 'gives a message only after its delay',
    async run(fixture) {
      const { clock } = fixture
      const [id] = await add(fixture, { delayMs: 500 })
      assert.deepEqual((await messageIn(fixture, id!)).dueAt, new Date(clock.nowMs() + 500))
      clock.advance(499)
      assert.deepEqual(await takeIds(fixture), [])
      clock.advance(1)
      assert.deepEqual(await takeIds(fixture), [id])
    },
  },
  {
    name: 'gives a message to no other claim until its lease ends, and then as the next attempt',
    async run(fixture) {
      const { clock } = fixture
      const [id] = await add(fixture, {})
      assert.deepEqual(await takeIds(fixture), [id])
      clock.advance(LEASE_MS - 1)
      assert.deepEqual(await takeIds(fixture), [])
      clock.advance(1)
      const again = await takeOne(fixture)
      assert.deepEqual([again.id, again.attempt], [id, 2])
    },
  },
  {
    name: 'returns the same messages to a repeated claim, and no others',
    async run(fixture) {
      await add(fixture, {}, {}, {})
      const token = newToken()
      const first = await claimMessages(fixture, { token, limit: 2 })
      assert.equal(first.length, 2)
      const again = await claimMessages(fixture, { token, limit: 2 })
      const withTextBytes = (held: typeof first) =>
        held
          .map(({ payload, ...rest }) => ({ ...rest, payload: textOf(payload) }))
          .toSorted((one, other) => (one.id < other.id ? -1 : 1))
      assert.deepEqual(withTextBytes(again), withTextBytes(first))
      assert.equal((await takeIds(fixture)).length, 1)
    },
  },
  {
    name: 'claims the longest due message of each requested topic first',
    async run(fixture) {
      const { clock } = fixture
      const delays = [30, 10, 40, 20, 9000]
      const topics = ['receipts', 'invoices', 'receipts', 'invoices', 'receipts']
      const ids = await add(
        fixture,
        ...delays.map((delayMs, n) => ({ delayMs, topic: topics[n]! })),
      )
      clock.advance(100)
      const asked = { topics: ['receipts', 'invoices', 'unheard of'] }
      const taken = await takeIds(fixture, { ...asked, limit: 2 })
      assert.deepEqual(taken.toSorted(), [ids[1]!, ids[0]!].toSorted())
      assert.deepEqual(await takeIds(fixture, { topics: ['invoices'] }), [ids[3]])
      assert.deepEqual(await takeIds(fixture, asked), [ids[2]])
    },
  },
  {
    name: 'claims messages with the same due time in the order they were added',
    async run(fixture) {
      const ids = await add(fixture, ...Array.from({ length: 20 }, () => ({})))
      const taken = [
        ...(await takeIds(fixture, { limit: 7 })),
        ...(await takeIds(fixture, { limit: 100 })),
      ]
      assert.deepEqual(taken, ids)
    },
  },
  {
    name: 'claims messages of the requested topics only',
    async run(fixture) {
      const topics = ['receipts', 'Receipts', 'receipts ', 'réceipts', 'receipt']
      const ids = await add(fixture, ...topics.map((topic) => ({ topic })))
      assert.deepEqual(await takeIds(fixture, { topics: [] }), [])
      for (const [n, topic] of topics.entries()) {
        assert.deepEqual(await takeIds(fixture, { topics: [topic, topic] }), [ids[n]])
      }
    },
  },
  {
    name: 'gives each message to one of many concurrent claims',
    async run(fixture) {
      const ids = await add(fixture, ...Array.from({ length: 40 }, () => ({})))
      const taken = await race(8, () => takeIds(fixture, { limit: 10 }))
      const left = await takeIds(fixture)
      assert.deepEqual([...taken.flat(), ...left].toSorted(), ids.toSorted())
      assert.ok(taken.every((some) => some.length <= 10))
    },
  },
  {
    name: 'renews message leases that are held, and no others',
    async run(fixture) {
      const { store, clock } = fixture
      const { outbox } = store.durable
      await add(fixture, {}, {})
      const [kept, given] = await claimMessages(fixture)
      clock.advance(LEASE_MS - 1)
      assert.equal(await settleMessage(fixture, given!, DONE), true)
      const leases = [
        kept!,
        given!,
        { ...kept!, token: newToken() },
        { id: newRecordId(0), token: newToken() },
      ].map(({ id, token }) => ({ id, token }))
      assert.deepEqual(await outbox.renew(leases, LEASE_MS), [true, false, false, false])
      clock.advance(LEASE_MS - 1)
      assert.deepEqual(await takeIds(fixture), [])
      clock.advance(1)
      assert.deepEqual(await takeIds(fixture), [kept!.id])
      assert.deepEqual(await outbox.renew([kept!], LEASE_MS), [false])
    },
  },
  {
    name: 'holds every message of a claim for the requested lease',
    async run(fixture) {
      const { clock } = fixture
      await add(fixture, {}, { partition: 'one' })
      assert.equal((await takeIds(fixture, { leaseMs: 77 })).length, 2)
      clock.advance(76)
      assert.deepEqual(await takeIds(fixture), [])
      clock.advance(1)
      assert.equal((await takeIds(fixture)).length, 2)
    },
  },
]

export const messageListCases: readonly DurableCase[] = [
  {
    name: 'lists messages of one state, oldest first, without their payloads',
    async run(fixture) {
      const { store, clock } = fixture
      const ids: string[] = []
      for (const partition of [undefined, 'one', undefined]) {
        ids.push(only(await add(fixture, { partition, key: 'k' })))
        clock.advance(1)
      }
      const { outbox } = store.durable
      const listed = await outbox.list({ state: 'ready', limit: 10 })
      for (const [n, view] of listed.entries()) {
        const whole = await messageIn(fixture, ids[n]!)
        assert.deepEqual(view, { ...whole, payload: undefined })
      }
      assert.deepEqual(
        (await outbox.list({ state: 'ready', limit: 2 })).map(({ id }) => id),
        ids.slice(0, 2),
      )
      assert.deepEqual(await outbox.list({ state: 'held', limit: 10 }), [])
      await takeIds(fixture, { limit: 1 })
      assert.equal((await outbox.list({ state: 'held', limit: 10 })).length, 1)
      assert.equal((await outbox.list({ state: 'ready', limit: 10 })).length, 2)
    },
  },
  {
    name: 'finds no message under an unused id',
    async run({ store }) {
      assert.equal(await store.durable.outbox.read(newRecordId(0)), undefined)
    },
  },
  {
    name: 'prunes messages that ended long enough ago, and no others',
    async run(fixture) {
      const { store, clock } = fixture
      const { outbox, operator } = store.durable
      await add(fixture, { key: 'done' }, { key: 'dropped' }, { key: 'dead' }, { key: 'held' })
      const held = await claimMessages(fixture)
      const of = (key: string) => held.find((one) => one.key === key)!
      const dead = { kind: 'dead', error: 'no', blocks: true } as const
      assert.equal(await settleMessage(fixture, of('done'), DONE), true)
      assert.equal(await settleMessage(fixture, of('dropped'), dead), true)
      assert.equal(await settleMessage(fixture, of('dead'), dead), true)
      const drop = { kind: 'drop_message', messageId: of('dropped').id } as const
      await operator.act(drop, { who: 'ops', why: 'test' })
      await add(fixture, { key: 'ready', delayMs: 60_000_000 })

      clock.advance(1000)
      assert.equal(await outbox.prune({ limit: 10, olderThanMs: 1000 }), 0)
      clock.advance(1)
      assert.equal(await outbox.prune({ limit: 1, olderThanMs: 1000 }), 1)
      assert.equal(await outbox.prune({ limit: 10, olderThanMs: 1000 }), 1)
      assert.equal(await outbox.prune({ limit: 10, olderThanMs: 0 }), 0)
      for (const key of ['done', 'dropped']) {
        assert.equal(await outbox.read(of(key).id), undefined)
      }
      const states = [await stateOf(fixture, of('dead').id), await stateOf(fixture, of('held').id)]
      assert.deepEqual(states, ['dead', 'held'])
      assert.equal((await outbox.list({ state: 'ready', limit: 10 })).length, 1)
    },
  },
]

function isInvalid(error: unknown): boolean {
  return isOncekeyError(error) && error.code === 'INVALID_OPTIONS'
}
