import type { Pool } from 'mysql2/promise'
import { expect, it } from 'vitest'
import type { HeldMessage } from '../../../../src/core/store/durable-store.ts'
import { newToken } from '../../../../src/core/record/identity.ts'
import { mysqlStore, type MysqlStore } from '../../../../src/stores/mysql/index.ts'
import { BY, messageOf } from '../../../../src/testing/durable-cases/durable-case.ts'
import { FakeClock } from '../../../../src/testing/fake-clock.ts'
import { ofKind } from '../../../../src/testing/store-cases/store-case.ts'
import { addAll, intercepting, transact } from './setup.ts'
import { useMariadb } from '../setup.ts'

const setup = useMariadb()

const claimOf = (limit = 1000) => ({
  topics: ['receipts'],
  limit,
  leaseMs: 60_000,
  token: newToken(),
})

const COUNTERS = 'SELECT COUNT(*) FROM oncekey_record_partition'

const inPartitions = (count: number, first = 0) =>
  Array.from({ length: count }, (_, n) => ({ partition: `p${first + n}`, key: `${n}` }))

/** Claims all due messages and settles them as done. */
async function relayAll({ durable: { outbox } }: MysqlStore): Promise<HeldMessage[]> {
  const taken = await outbox.claim(claimOf())
  await outbox.settle(
    taken.map(({ id, token }) => ({ kind: 'done', id, token, providerId: undefined })),
  )
  return taken
}

it('removes the counters of partitions together with their messages', async () => {
  const { open, app, column } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  for (let n = 0; n < 3; n++) await addAll(app, store, inPartitions(1000, n * 1000))
  for (let relayed = 0; relayed < 3000;) relayed += (await relayAll(store)).length
  expect(await store.durable.outbox.prune({ limit: 5000, olderThanMs: 1000 })).toBe(0)
  expect(await column(COUNTERS)).toEqual([3000])
  clock.advance(1001)
  let pruned = 0
  for (let call = 0; call < 3; call++) {
    pruned += await store.durable.outbox.prune({ limit: 1000, olderThanMs: 1000 })
  }
  expect(pruned).toBe(3000)
  expect(await column(COUNTERS)).toEqual([0])
}, 60_000)

it('removes counters without messages that earlier versions left, some in each call', async () => {
  const { open, app, column } = await setup()
  const store = await open()
  await app.query(`INSERT INTO oncekey_record_partition (topic, lane, sequence, is_open)
    SELECT CONCAT('topic-', seq % 3), CONCAT('/', seq), seq, seq % 2 FROM seq_1_to_12000`)
  await addAll(app, store, [
    ...inPartitions(150),
    ...inPartitions(150).map((one) => ({ ...one, topic: 'topic-1' })),
  ])
  const left: number[] = []
  for (let call = 0; call < 5; call++) {
    await store.durable.outbox.prune({ limit: 10, olderThanMs: 0 })
    left.push(Number((await column(COUNTERS))[0]))
  }
  expect(left[0]).toBeGreaterThan(5_000)
  expect(left.at(-1)).toBe(300)
  expect((await relayAll(store)).length).toBe(150)
}, 60_000)

it('keeps counters of partitions that were used recently or contain a message', async () => {
  const { open, app, column } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  const { outbox } = store.durable
  await addAll(app, store, inPartitions(4))
  const taken = await outbox.claim(claimOf())
  const [dead, held, ...others] = taken.map(({ id, token }) => ({ id, token }))
  await outbox.settle([
    { kind: 'dead', ...dead!, error: 'no', blocks: true },
    ...others.map((one) => ({ kind: 'done', ...one, providerId: undefined }) as const),
  ])
  clock.advance(5_000)
  await outbox.renew([held!], 60_000)
  const lately = taken.at(-1)!.partition!
  await addAll(app, store, [{ partition: lately }])
  await relayAll(store)
  expect(await outbox.prune({ limit: 100, olderThanMs: 1000 })).toBe(2)
  expect(await column(COUNTERS)).toEqual([3])
  const opened = await column('SELECT lane FROM oncekey_record_partition ORDER BY lane')
  const expected = [taken[0], taken[1], taken.at(-1)].map((one) => `/${one!.partition}`)
  expect(opened.map(String)).toEqual(expected.toSorted())
})

it('places a message that returns to a pruned partition before newer messages', async () => {
  const { open, app, column } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  const { outbox, operator } = store.durable
  const [first, passed] = await addAll(app, store, [{ partition: 'p' }, { partition: 'p' }])
  await relayAll(store)
  const [{ id, token }] = (await outbox.claim(claimOf())) as [HeldMessage]
  expect(id).toBe(passed)
  await outbox.settle([{ kind: 'dead', id, token, error: 'no', blocks: false }])
  clock.advance(1001)
  expect(await outbox.prune({ limit: 10, olderThanMs: 1000 })).toBe(1)
  expect(await column(COUNTERS)).toEqual([0])
  expect(await outbox.read(first!)).toBeUndefined()

  const added = await addAll(app, store, [{ partition: 'p' }, { partition: 'p' }])
  ofKind(await operator.act({ kind: 'retry_message', messageId: passed! }, BY), 'done')
  const order: string[] = []
  while (order.length < 3) order.push(...(await relayAll(store)).map((one) => one.id))
  expect(order).toEqual([passed, ...added])
})

it('relays a message that returns to a pruned partition that was not used since', async () => {
  const { open, app, column } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  const { outbox, operator } = store.durable
  await addAll(app, store, [{ partition: 'p' }])
  const [{ id, token }] = (await outbox.claim(claimOf())) as [HeldMessage]
  await outbox.settle([{ kind: 'dead', id, token, error: 'no', blocks: false }])
  clock.advance(1001)
  await outbox.prune({ limit: 10, olderThanMs: 1000 })
  expect(await column(COUNTERS)).toEqual([0])
  ofKind(await operator.act({ kind: 'retry_message', messageId: id }, BY), 'done')
  const [added] = await addAll(app, store, [{ partition: 'p' }])
  const order = [...(await relayAll(store)), ...(await relayAll(store))].map((one) => one.id)
  expect(order).toEqual([id, added])
})

// A message is added between the search for empty partitions and the removal of their counters.
it('does not remove the counter of a partition to which a message is being added', async () => {
  const { open, app, connect, column } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  await addAll(app, store, inPartitions(3))
  await relayAll(store)
  clock.advance(1001)
  const adding = await app.getConnection()
  let isAdded = false
  const pool = intercepting(connect(), async (sql, send) => {
    if (!isAdded && sql.includes('SKIP LOCKED') && sql.includes('_partition`')) {
      isAdded = true
      await adding.beginTransaction()
      await store.durable.outbox.add(adding, messageOf({ partition: 'p1' }))
    }
    return send()
  })
  const pruning = mysqlStore({ pool, clock })
  expect(await pruning.durable.outbox.prune({ limit: 10, olderThanMs: 1000 })).toBe(3)
  await adding.commit()
  adding.release()
  expect(isAdded).toBe(true)
  expect((await column('SELECT lane FROM oncekey_record_partition')).map(String)).toEqual(['/p1'])
  expect((await relayAll(store)).map(({ partition }) => partition)).toEqual(['p1'])
})

/** Adds to one partition after the other, each message in a separate transaction. */
async function addRounds(
  app: Pool,
  store: MysqlStore,
  of: { readonly adder: number; readonly orders: Map<string, string[]> },
): Promise<void> {
  for (let round = 0; round < 40; round++) {
    const partition = `p${(of.adder + round) % 5}`
    await transact(app, async (tx) => {
      const message = messageOf({ partition })
      await store.durable.outbox.add(tx, message)
      // No other transaction adds to the partition until the commit.
      of.orders.set(partition, [...(of.orders.get(partition) ?? []), message.id])
    })
  }
}

// Adders, relays and pruners run at once, so counters are removed and created all the time.
it('keeps the order of messages in partitions that are pruned during adding', async () => {
  const { open, connect, column } = await setup()
  const store = await open({ pool: connect({ connectionLimit: 8 }) })
  const app = connect({ connectionLimit: 8 })
  const orders = new Map<string, string[]>()
  const relayed = new Map<string, string[]>()
  let count = 0
  const over = new AbortController()
  const relay = async () => {
    const { outbox } = store.durable
    while (!over.signal.aborted) {
      const taken = await outbox.claim(claimOf(20))
      for (const { id, partition } of taken) {
        relayed.set(partition!, [...(relayed.get(partition!) ?? []), id])
        count++
      }
      await outbox.settle(
        taken.map(({ id, token }) => ({ kind: 'done', id, token, providerId: undefined })),
      )
    }
  }
  let empties = 0
  const prune = async () => {
    while (!over.signal.aborted) {
      // A negative age prunes all ended messages and all empty partitions.
      await store.durable.outbox.prune({ limit: 100, olderThanMs: -1000 })
      empties += Number((await column(COUNTERS))[0]) < 5 ? 1 : 0
    }
  }
  const running = [relay(), relay(), prune(), prune()]
  const adders = Array.from({ length: 6 }, (_, adder) => addRounds(app, store, { adder, orders }))
  await Promise.all(adders)
  await expect.poll(() => count, { timeout: 30_000 }).toBe(240)
  over.abort()
  await Promise.all(running)
  expect(relayed).toEqual(orders)
  expect(empties).toBeGreaterThan(0)
  await store.durable.outbox.prune({ limit: 1000, olderThanMs: -1000 })
  expect(await column(COUNTERS)).toEqual([0])
}, 60_000)

/** Adds a message like a node of the first release: the counter starts with 1. */
async function addByTheFirstRelease(app: Pool, partition: string, id: string): Promise<void> {
  await app.query(`INSERT INTO oncekey_record_partition (topic, lane, sequence, is_open)
    VALUES ('receipts', '/${partition}', 1, 1)
    ON DUPLICATE KEY UPDATE sequence = sequence + 1, is_open = 1`)
  await app.query(`INSERT INTO oncekey_record_message (id, topic, lane, place, sequence, state,
      token, attempt, created_at_ms, added_at_us, due_at_ms, \`partition\`, errors, payload)
    SELECT '${id}', topic, lane, sequence, sequence, 'ready', '', 0, 0, 0, 0, '${partition}', '[]',
      'x' FROM oncekey_record_partition WHERE lane = '/${partition}'`)
}

it('adds messages after one that returned, when an older node created the counter', async () => {
  const { open, app, column } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  const { outbox, operator } = store.durable
  const [dead] = await addAll(app, store, inPartitions(1))
  const [held] = await outbox.claim(claimOf())
  const { id, token } = held!
  await outbox.settle([{ kind: 'dead', id, token, error: 'no', blocks: false }])
  clock.advance(1001)
  await outbox.prune({ limit: 10, olderThanMs: 1000 })
  expect(await column(COUNTERS)).toEqual([0])
  const old = '00000000-0000-7000-8000-000000000001'
  await addByTheFirstRelease(app, 'p0', old)
  ofKind(await operator.act({ kind: 'retry_message', messageId: dead! }, BY), 'done')
  const later = await addAll(app, store, [...inPartitions(1), ...inPartitions(1)])
  const order: string[] = []
  for (let n = 0; n < 4; n++) order.push(...(await relayAll(store)).map((one) => one.id))
  expect(order).toEqual([old, dead, ...later])
})
