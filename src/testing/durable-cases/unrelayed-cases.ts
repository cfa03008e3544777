import assert from 'node:assert/strict'
import type { UnrelayedQuery } from '../../core/store/durable-store.ts'
import { LEASE_MS } from '../store-cases/store-case.ts'
import {
  add,
  claimMessages,
  deadOf,
  DONE,
  settleMessage,
  type DurableCase,
  type DurableFixture,
} from './durable-case.ts'

const MINUTE_MS = 60_000

async function unrelayed(
  { store }: DurableFixture,
  overrides: Partial<UnrelayedQuery> = {},
): Promise<[topic: string, messageId: string, dueAtMs: number][]> {
  const query = { topics: [], overdueMs: MINUTE_MS, limit: 10, ...overrides }
  const found = await store.durable.outbox.unrelayed?.(query)
  assert.ok(found !== undefined, 'expected the store to have outbox.unrelayed')
  return found.map(({ topic, messageId, dueAt }) => [topic, messageId, dueAt.getTime()])
}

export const unrelayedCases: readonly DurableCase[] = [
  {
    name: 'finds the longest due message of each topic without a relay',
    async run(fixture) {
      const { clock } = fixture
      const dueAtMs = clock.nowMs()
      const [known, first] = await add(fixture, { topic: 'known' }, { topic: 'a' })
      clock.advance(1)
      await add(fixture, { topic: 'a' })
      const [other] = await add(fixture, { topic: 'b', partition: 'p' }, { topic: 'b' })
      clock.advance(MINUTE_MS)
      const all = await unrelayed(fixture, { topics: ['known'] })
      assert.deepEqual(
        all.map(([topic]) => topic),
        ['a', 'b'],
      )
      assert.deepEqual(all[0], ['a', first, dueAtMs])
      assert.equal(all[1]![2], dueAtMs + 1)
      assert.ok(other !== undefined)
      assert.deepEqual((await unrelayed(fixture))[2], ['known', known, dueAtMs])
    },
  },
  {
    name: 'finds no unrelayed message before it has been due for the given time',
    async run(fixture) {
      const { clock } = fixture
      await add(fixture, { topic: 'a', delayMs: 1_000 }, { topic: 'b', partition: 'p' })
      clock.advance(MINUTE_MS - 1)
      assert.deepEqual(await unrelayed(fixture), [])
      clock.advance(1)
      const topics = async () => (await unrelayed(fixture)).map(([topic]) => topic)
      assert.deepEqual(await topics(), ['b'])
      clock.advance(1_000)
      assert.deepEqual(await topics(), ['a', 'b'])
    },
  },
  {
    name: 'finds no unrelayed message that is held, done or dead, but one whose lease ended',
    async run(fixture) {
      const { clock } = fixture
      await add(fixture, { topic: 'done' }, { topic: 'dead' }, { topic: 'held' })
      clock.advance(2 * MINUTE_MS)
      for (const topic of ['done', 'dead', 'held']) {
        const [held] = await claimMessages(fixture, { topics: [topic] })
        if (topic === 'done') await settleMessage(fixture, held!, DONE)
        if (topic === 'dead') await settleMessage(fixture, held!, deadOf(true))
      }
      assert.deepEqual(await unrelayed(fixture), [])
      clock.advance(LEASE_MS + MINUTE_MS)
      const found = await unrelayed(fixture)
      assert.deepEqual(
        found.map(([topic]) => topic),
        ['held'],
      )
    },
  },
  {
    name: 'finds a topic without a relay when its first partitions are blocked, held or delayed',
    async run(fixture) {
      const { clock } = fixture
      await add(fixture, { topic: 'a', partition: 'dead' }, { topic: 'a', partition: 'held' })
      const [dead, held] = await claimMessages(fixture, { topics: ['a'] })
      await settleMessage(fixture, dead!, deadOf(true))
      await add(fixture, { topic: 'a', partition: 'later', delayMs: 10 * MINUTE_MS })
      const [waiting] = await add(fixture, { topic: 'a', partition: 'waiting' })
      clock.advance(LEASE_MS / 2)
      await fixture.store.durable.outbox.renew([held!], 10 * MINUTE_MS)
      clock.advance(2 * MINUTE_MS)
      const found = await unrelayed(fixture)
      assert.deepEqual(
        found.map(([topic, id]) => [topic, id]),
        [['a', waiting]],
      )
    },
  },
  {
    name: 'finds at most `limit` topics without a relay, and skips every topic that has one',
    async run(fixture) {
      const { clock } = fixture
      const topics = ['a', 'b', 'c', 'd', 'e']
      await add(fixture, ...topics.flatMap((topic) => [{ topic }, { topic, partition: 'p' }]))
      clock.advance(MINUTE_MS)
      const names = async (query: Partial<UnrelayedQuery>) =>
        (await unrelayed(fixture, query)).map(([topic]) => topic)
      assert.deepEqual(await names({ limit: 2 }), ['a', 'b'])
      assert.deepEqual(await names({ topics: ['a', 'b', 'd'], limit: 2 }), ['c', 'e'])
      assert.deepEqual(await names({ topics }), [])
    },
  },
]
