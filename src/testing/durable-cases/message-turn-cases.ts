import assert from 'node:assert/strict'
import type { MessageClaim, NewMessage } from '../../core/store/durable-store.ts'
import { newToken } from '../../core/record/identity.ts'
import { LEASE_MS, only } from '../store-cases/store-case.ts'
import {
  add,
  claimMessages,
  DONE,
  messageIn,
  settleMessage,
  takeIds,
  takeOne,
  type DurableCase,
  type DurableFixture,
} from './durable-case.ts'
import { assertEachReached, longText, manyTenants, times } from './waiting-work.ts'

const TOPICS = ['receipts', 'invoices'] as const
const P = { partition: 'p' } as const

/** Claims due messages and returns their topics and tenants. */
async function takeTurns(
  fixture: DurableFixture,
  claim: Partial<MessageClaim> = {},
): Promise<string[]> {
  const held = await claimMessages(fixture, { topics: TOPICS, ...claim })
  return held.map(({ topic, tenant = 'none' }) => `${topic} ${tenant}`).toSorted()
}

/** Adds many messages of tenant `a` that are longer due than any later message. */
async function flood(
  fixture: DurableFixture,
  count: number,
  of: (n: number) => Partial<NewMessage> = () => ({}),
): Promise<void> {
  const messages = Array.from({ length: count }, (_, n) => ({ tenant: 'a', ...of(n) }))
  await add(fixture, ...messages)
  fixture.clock.advance(1000)
}

export const messageTenantCases: readonly DurableCase[] = [
  {
    name: 'stores the tenant of a message, or that it has no tenant',
    async run(fixture) {
      const { outbox } = fixture.store.durable
      const tenant = `Größe ' " \\ 決済 😀 %_ {table} $1 ?`
      const ids = await add(fixture, { tenant }, { tenant: undefined }, { tenant, ...P }, {})
      const expected = [tenant, undefined, tenant, undefined]
      for (const [n, id] of ids.entries()) {
        assert.equal((await messageIn(fixture, id)).tenant, expected[n])
      }
      const tenantsOf = (messages: readonly { id: string; tenant: string | undefined }[]) =>
        ids.map((id) => messages.find((one) => one.id === id)?.tenant)
      assert.deepEqual(tenantsOf(await outbox.list({ state: 'ready', limit: 10 })), expected)
      const token = newToken()
      assert.deepEqual(tenantsOf(await claimMessages(fixture, { token })), expected)
      assert.deepEqual(tenantsOf(await claimMessages(fixture, { token })), expected)
    },
  },
  {
    name: 'accepts messages with names of the longest allowed length',
    async run(fixture) {
      const name = longText(255)
      const names = { topic: name, tenant: name }
      const ids = await add(fixture, names, { ...names, partition: name }, { topic: name, ...P })
      const claim = { topics: [name] }
      const taken = await takeIds(fixture, { ...claim, limit: 2 })
      taken.push(...(await takeIds(fixture, claim)))
      assert.deepEqual(taken.toSorted(), ids.toSorted())
    },
  },
  {
    name: 'claims no message of an excluded tenant, however long it waits',
    async run(fixture) {
      await flood(fixture, 150)
      await add(fixture, { tenant: 'b' }, { tenant: 'A' }, { tenant: 'a ', ...P }, {}, P)
      const taken = await takeTurns(fixture, { withoutTenants: ['a', ''], limit: 5 })
      assert.deepEqual(taken, ['receipts A', 'receipts a ', 'receipts b'])
      const rest = await takeTurns(fixture, { withoutTenants: ['a', 'never heard of'], limit: 5 })
      // The partition is blocked by its held message.
      assert.deepEqual(rest, ['receipts none'])
      assert.deepEqual(await takeTurns(fixture, { withoutTenants: ['a'] }), [])
      assert.equal((await takeTurns(fixture, { withoutTenants: [] })).length, 100)
    },
  },
  {
    name: 'keeps the order of a partition to which two tenants add',
    async run(fixture) {
      const tenants = ['b', 'a', 'b', 'a'] as const
      const ids = await add(fixture, ...tenants.map((tenant) => ({ tenant, ...P })))
      for (const [n, id] of ids.entries()) {
        const other = tenants[n] === 'a' ? 'b' : 'a'
        assert.deepEqual(await takeIds(fixture, { withoutTenants: [tenants[n]!] }), [])
        const held = await takeOne(fixture, { withoutTenants: [other] })
        assert.equal(held.id, id)
        assert.deepEqual(await takeIds(fixture), [])
        assert.equal(await settleMessage(fixture, held, DONE), true)
      }
      assert.deepEqual(await takeIds(fixture), [])
    },
  },
]

export const messageTurnCases: readonly DurableCase[] = [
  {
    name: 'claims one message of each topic before the second of any',
    async run(fixture) {
      await flood(fixture, 5)
      await add(fixture, { topic: 'invoices', tenant: 'a' })
      assert.deepEqual(await takeTurns(fixture, { limit: 2 }), ['invoices a', 'receipts a'])
    },
  },
  {
    name: 'claims one message of each tenant before the second of any',
    async run(fixture) {
      await flood(fixture, 5)
      await add(fixture, { tenant: 'b' }, { tenant: 'b' }, {}, {})
      const expected = ['receipts a', 'receipts b', 'receipts none']
      assert.deepEqual(await takeTurns(fixture, { limit: 3 }), expected)
      assert.equal((await takeTurns(fixture)).length, 6)
    },
  },
  {
    name: 'claims the longest due message of each tenant first',
    async run(fixture) {
      const { clock } = fixture
      const ids = await add(
        fixture,
        ...[30, 10, 20].map((delayMs) => ({ tenant: 'b', delayMs })),
        ...[35, 15, 25].map((delayMs) => ({ delayMs })),
      )
      clock.advance(40)
      const taken = await takeIds(fixture, { limit: 2 })
      assert.deepEqual(taken.toSorted(), [ids[1]!, ids[4]!].toSorted())
    },
  },
  {
    name: 'claims the longest due message of one tenant first, with or without a partition',
    async run(fixture) {
      // A store may alternate between several queries, so one claim is not enough.
      for (let look = 0; look < 4; look++) {
        const ids = await add(
          fixture,
          ...[{ delayMs: 10 }, { delayMs: 20, ...P }, { delayMs: 30 }, { delayMs: 40 }],
        )
        fixture.clock.advance(40)
        const first = await claimMessages(fixture, { limit: 2 })
        assert.deepEqual(first.map(({ id }) => id).toSorted(), ids.slice(0, 2).toSorted())
        const rest = await claimMessages(fixture)
        for (const one of [...first, ...rest]) await settleMessage(fixture, one, DONE)
      }
    },
  },
  {
    name: 'claims at most the limit of each topic',
    async run(fixture) {
      const [receipts, invoices] = TOPICS
      const tenants = ['a', 'b', undefined, 'a', 'b', undefined]
      await add(
        fixture,
        ...tenants.flatMap((tenant) => [
          { topic: receipts, tenant },
          { topic: invoices, tenant },
        ]),
      )
      const countOf = async (claim: Partial<MessageClaim>) => {
        const taken = await takeTurns(fixture, { limit: 10, ...claim })
        return TOPICS.map((topic) => taken.filter((one) => one.startsWith(topic)).length)
      }
      assert.deepEqual(await countOf({ limits: [0, 0] }), [0, 0])
      assert.deepEqual(await countOf({ limits: [2, 0] }), [2, 0])
      assert.deepEqual(await countOf({ limits: [1, 2] }), [1, 2])
      assert.deepEqual(await countOf({ limits: [5, 1], limit: 2 }), [1, 1])
      assert.deepEqual(await countOf({ limits: [5, 1] }), [2, 1])
      assert.deepEqual(await countOf({}), [0, 2])
    },
  },
  {
    name: 'reaches every topic and tenant with claims of limit one',
    async run(fixture) {
      await flood(fixture, 20)
      const tenants = ['a', 'b', undefined]
      await add(
        fixture,
        ...tenants.flatMap((tenant) => TOPICS.flatMap((topic) => times(2, { topic, tenant }))),
      )
      const turns = TOPICS.flatMap((topic) => ['a', 'b', 'none'].map((of) => `${topic} ${of}`))
      await assertEachReached(turns, async () => only(await takeTurns(fixture, { limit: 1 })))
    },
  },
  {
    name: 'claims the next message of one tenant while all messages of another are held',
    async run(fixture) {
      await add(fixture, { tenant: 'a' }, { tenant: 'b', delayMs: 5000 }, { delayMs: 5000 })
      assert.deepEqual(await takeTurns(fixture, { limit: 1 }), ['receipts a'])
      await add(fixture, ...times(3, { tenant: 'c' }))
      const taken = await takeTurns(fixture, { limit: 3 })
      assert.deepEqual(taken, ['receipts c', 'receipts c', 'receipts c'])
    },
  },
  {
    name: 'claims only the heads of partitions when tenants take turns',
    async run(fixture) {
      const ids = await add(
        fixture,
        { tenant: 'b', ...P },
        { tenant: 'a', ...P },
        { tenant: 'a', partition: 'q' },
        { tenant: 'b', partition: 'q' },
        { tenant: 'c', ...P },
      )
      const held = await claimMessages(fixture, { limit: 5 })
      assert.deepEqual(held.map(({ id }) => id).toSorted(), [ids[0]!, ids[2]!].toSorted())
      const first = held.find(({ id }) => id === ids[0])!
      assert.equal(await settleMessage(fixture, first, DONE), true)
      assert.deepEqual(await takeIds(fixture, { limit: 5 }), [ids[1]])
    },
  },
  {
    name: 'returns the same messages to a repeated claim when tenants and topics take turns',
    async run(fixture) {
      await flood(fixture, 10)
      await add(fixture, { tenant: 'b' }, { topic: 'invoices' }, { topic: 'invoices' })
      const claim = { token: newToken(), topics: TOPICS, limit: 4, limits: [3, 1] }
      const first = await takeIds(fixture, claim)
      assert.equal(first.length, 4)
      const other = await takeIds(fixture, { topics: TOPICS, limit: 2 })
      const again = await takeIds(fixture, { ...claim, withoutTenants: ['a'] })
      assert.deepEqual(again.toSorted(), first.toSorted())
      assert.equal(new Set([...first, ...other]).size, first.length + other.length)
      fixture.clock.advance(LEASE_MS)
      assert.equal((await takeIds(fixture, { topics: TOPICS })).length, 13)
    },
  },
]

export const messageFloodCases: readonly DurableCase[] = [
  {
    name: 'claims the message of another tenant at once beside many messages of one tenant',
    async run(fixture) {
      await flood(fixture, 300)
      await add(fixture, { tenant: 'b' })
      assert.deepEqual(await takeTurns(fixture, { limit: 2 }), ['receipts a', 'receipts b'])
    },
  },
  {
    name: 'claims the message of another tenant at once beside many partitions of one tenant',
    async run(fixture) {
      await flood(fixture, 300, (n) => ({ partition: `of a ${n}` }))
      await add(fixture, { tenant: 'b', ...P }, { tenant: 'b', ...P }, { partition: 'none' })
      const expected = ['receipts a', 'receipts b', 'receipts none']
      assert.deepEqual(await takeTurns(fixture, { limit: 3 }), expected)
    },
  },
  {
    name: 'claims one due message at once among many tenants that are not due',
    async run(fixture) {
      const waiting = manyTenants().map((tenant) => ({ tenant, delayMs: 5000 }))
      await add(fixture, ...waiting)
      const [due] = await add(fixture, { tenant: 'tenant-2' })
      assert.deepEqual(await takeIds(fixture, { withoutTenants: ['tenant-2'], limit: 2 }), [])
      assert.deepEqual(await takeIds(fixture, { limit: 2 }), [due])
      assert.deepEqual(await takeIds(fixture, { limit: 2 }), [])
    },
  },
  {
    name: 'claims the messages of many tenants beside one with many due messages',
    async run(fixture) {
      await flood(fixture, 300)
      const names = manyTenants()
      await add(fixture, ...names.map((tenant) => ({ tenant })))
      const reached = new Set<string>()
      // Twice the number of claims that a store needs when each claim returns its limit.
      for (let call = 0; call < 14; call++) {
        for (const turn of await takeTurns(fixture, { limit: 50 })) reached.add(turn)
      }
      assert.deepEqual(
        names.filter((tenant) => !reached.has(`receipts ${tenant}`)),
        [],
      )
    },
  },
]
