import assert from 'node:assert/strict'
import { LEASE_MS, only, race } from '../store-cases/store-case.ts'
import {
  act,
  add,
  claimMessages,
  deadOf,
  DONE,
  messageOf,
  retryOf,
  settleMessage,
  takeIds,
  takeOne,
  type DurableCase,
  type DurableFixture,
} from './durable-case.ts'

const P = { partition: 'p' } as const

/** Claims the head of the partition, asserts that it is `id`, and settles it as done. */
async function relay(fixture: DurableFixture, id: string | undefined): Promise<void> {
  const held = await takeOne(fixture)
  assert.equal(held.id, id)
  assert.equal(await settleMessage(fixture, held, DONE), true)
}

/** Claims the head of the partition, asserts that it is `id`, and settles it as dead. */
async function settleAsDead(fixture: DurableFixture, id: string, blocks: boolean): Promise<void> {
  const held = (await claimMessages(fixture)).find((one) => one.id === id)
  assert.ok(held !== undefined, 'expected to get the message')
  assert.equal(await settleMessage(fixture, held, deadOf(blocks)), true)
}

export const partitionCases: readonly DurableCase[] = [
  {
    name: 'gives the messages of a partition one at a time, in order',
    async run(fixture) {
      const ids = [...(await add(fixture, P, P)), ...(await add(fixture, P))]
      for (const id of ids) {
        const held = await takeOne(fixture)
        assert.equal(held.id, id)
        assert.deepEqual(await takeIds(fixture), [])
        assert.equal(await settleMessage(fixture, held, DONE), true)
      }
      assert.deepEqual(await takeIds(fixture), [])
      const [next] = await add(fixture, P)
      assert.deepEqual(await takeIds(fixture), [next])
    },
  },
  {
    name: 'gives messages of other partitions and topics, and of no partition, beside a held one',
    async run(fixture) {
      const ids = await add(
        fixture,
        P,
        P,
        { partition: 'P' },
        { partition: 'p ' },
        {},
        {},
        { ...P, topic: 'invoices' },
      )
      const taken = await takeIds(fixture, { topics: ['receipts', 'invoices'] })
      assert.deepEqual(taken.toSorted(), ids.filter((_, n) => n !== 1).toSorted())
    },
  },
  {
    name: 'blocks a partition while its head waits for its delay or for a retry',
    async run(fixture) {
      const { clock } = fixture
      const [first, second] = await add(fixture, { ...P, delayMs: 500 }, P)
      const [beside] = await add(fixture, {})
      assert.deepEqual(await takeIds(fixture), [beside])
      clock.advance(500)
      const held = await takeOne(fixture)
      assert.equal(held.id, first)
      assert.equal(await settleMessage(fixture, held, retryOf('not now', 700)), true)
      clock.advance(699)
      assert.deepEqual(await takeIds(fixture), [])
      clock.advance(1)
      await relay(fixture, first)
      await relay(fixture, second)
    },
  },
  {
    name: 'gives the head of a partition again after its lease ended, and not the next message',
    async run(fixture) {
      const { clock } = fixture
      const [first, second] = await add(fixture, P, P)
      const stalled = await takeOne(fixture)
      clock.advance(LEASE_MS)
      const held = await takeOne(fixture)
      assert.deepEqual([held.id, held.attempt], [first, 2])
      assert.equal(await settleMessage(fixture, stalled, DONE), false)
      assert.deepEqual(await takeIds(fixture), [])
      assert.equal(await settleMessage(fixture, held, DONE), true)
      await relay(fixture, second)
    },
  },
  {
    name: 'gives the head of a partition again after it was returned unused',
    async run(fixture) {
      const [first, second] = await add(fixture, P, P)
      assert.equal(await settleMessage(fixture, await takeOne(fixture), { kind: 'return' }), true)
      await relay(fixture, first)
      await relay(fixture, second)
    },
  },
  {
    name: 'blocks a partition behind a dead message until an operator drops it',
    async run(fixture) {
      const { clock } = fixture
      const [first, second] = await add(fixture, P, P)
      await settleAsDead(fixture, first!, true)
      clock.advance(LEASE_MS)
      assert.deepEqual(await takeIds(fixture), [])
      const [third] = await add(fixture, P)
      assert.deepEqual(await takeIds(fixture), [])
      const drop = { kind: 'drop_message', messageId: first! } as const
      assert.equal((await act(fixture, drop)).kind, 'done')
      await relay(fixture, second)
      await relay(fixture, third)
    },
  },
  {
    name: 'continues a partition behind a dead message once it is retried and relayed',
    async run(fixture) {
      const [first, second] = await add(fixture, P, P)
      await settleAsDead(fixture, first!, true)
      const retry = { kind: 'retry_message', messageId: first! } as const
      assert.equal((await act(fixture, retry)).kind, 'done')
      await relay(fixture, first)
      await relay(fixture, second)
    },
  },
  {
    name: 'continues a partition at once behind a dead message that does not block it',
    async run(fixture) {
      const [first, second, third] = await add(fixture, P, P, P)
      await settleAsDead(fixture, first!, false)
      await relay(fixture, second)
      const drop = { kind: 'drop_message', messageId: first! } as const
      assert.equal((await act(fixture, drop)).kind, 'done')
      await relay(fixture, third)
    },
  },
  {
    name: 'gives a retried dead message only while no other message of its partition is held',
    async run(fixture) {
      const [first, second, third] = await add(fixture, P, P, P)
      await settleAsDead(fixture, first!, false)
      const held = await takeOne(fixture)
      assert.equal(held.id, second)
      const retry = { kind: 'retry_message', messageId: first! } as const
      assert.equal((await act(fixture, retry)).kind, 'done')
      assert.deepEqual(await takeIds(fixture), [])
      assert.equal(await settleMessage(fixture, held, DONE), true)
      await relay(fixture, first)
      await relay(fixture, third)
    },
  },
  {
    name: 'gives a retried dead message before the messages that were added after it',
    async run(fixture) {
      const [first, second] = await add(fixture, P, P)
      await settleAsDead(fixture, first!, false)
      const retry = { kind: 'retry_message', messageId: first! } as const
      assert.equal((await act(fixture, retry)).kind, 'done')
      await relay(fixture, first)
      await relay(fixture, second)
    },
  },
  {
    name: 'gives a retried dead message before a later dead message that blocks the partition',
    async run(fixture) {
      const [first, second, third] = await add(fixture, P, P, P)
      await settleAsDead(fixture, first!, false)
      await settleAsDead(fixture, second!, true)
      const retry = { kind: 'retry_message', messageId: first! } as const
      assert.equal((await act(fixture, retry)).kind, 'done')
      await relay(fixture, first)
      assert.deepEqual(await takeIds(fixture), [])
      const drop = { kind: 'drop_message', messageId: second! } as const
      assert.equal((await act(fixture, drop)).kind, 'done')
      await relay(fixture, third)
    },
  },
  {
    name: 'gives a retried dead message of an empty partition, and then the next message',
    async run(fixture) {
      const [first] = await add(fixture, P)
      await settleAsDead(fixture, first!, false)
      const retry = { kind: 'retry_message', messageId: first! } as const
      assert.equal((await act(fixture, retry)).kind, 'done')
      const [second] = await add(fixture, P)
      await relay(fixture, first)
      await relay(fixture, second)
    },
  },
  {
    name: 'gives at most one message of a partition to concurrent claims',
    async run(fixture) {
      const partitions = ['a', 'b', 'c']
      const added = Array.from({ length: 12 }, (_, n) => ({ partition: partitions[n % 3]! }))
      const ids = await add(fixture, ...added)
      const order: string[] = []
      for (let round = 0; round < 4; round++) {
        const held = (await race(5, () => claimMessages(fixture, { limit: 2 }))).flat()
        const rest = await claimMessages(fixture)
        const all = [...held, ...rest]
        assert.deepEqual(all.map((one) => String(one.partition)).toSorted(), partitions)
        for (const one of all) assert.equal(await settleMessage(fixture, one, DONE), true)
        order.push(...all.toSorted(byPartition).map(({ id }) => id))
      }
      assert.deepEqual(order, ids)
    },
  },
  {
    name: 'gives the messages of a partition in the order in which they were committed',
    // One transaction has added a message and stays open; a second adds and tries to commit first.
    async run(fixture) {
      const { store, transact } = fixture
      const [early, late] = [messageOf(P), messageOf(P)]
      const [added, go] = [gate(), gate()]
      const first = transact(async (tx) => {
        await store.durable.outbox.add(tx, early)
        added.open()
        await go.opened
      })
      await added.opened
      const second = transact(async (tx) => {
        await store.durable.outbox.add(tx, late)
      })
      // Enough time for the second transaction to commit if it does not wait.
      for (let n = 0; n < 20; n++) assert.deepEqual(await takeIds(fixture), [])
      go.open()
      await Promise.all([first, second])
      await relay(fixture, early.id)
      await relay(fixture, late.id)
    },
  },
  {
    name: 'keeps the order of a partition to which many transactions add at once',
    async run(fixture) {
      const { store, transact } = fixture
      const committed: string[] = []
      await race(10, async () => {
        const messages = [messageOf(P), messageOf(P)]
        await transact(async (tx) => {
          for (const message of messages) await store.durable.outbox.add(tx, message)
          // The partition is locked from the first add to the commit, so this is the commit order.
          committed.push(...messages.map(({ id }) => id))
        })
      })
      const order: string[] = []
      for (let n = 0; n < committed.length; n++) {
        const held = only(await claimMessages(fixture))
        order.push(held.id)
        assert.equal(await settleMessage(fixture, held, DONE), true)
      }
      assert.deepEqual(order, committed)
    },
  },
]

/** A promise, and the function that resolves it. */
function gate(): { readonly opened: Promise<void>; readonly open: () => void } {
  let open = () => {}
  const opened = new Promise<void>((resolve) => {
    open = resolve
  })
  return { opened, open: () => open() }
}

function byPartition(
  one: { readonly partition: string | undefined },
  other: { readonly partition: string | undefined },
): number {
  return (one.partition ?? '') < (other.partition ?? '') ? -1 : 1
}
