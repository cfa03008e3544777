import { expect, it } from 'vitest'
import { operation, operationPolicy } from '../../src/durable/index.ts'
import type { SqliteTransaction } from '../../src/stores/sqlite/index.ts'
import { bytes, gate } from '../core/engine-fixture.ts'
import { durableFixture } from './durable-fixture.ts'

// One tenant has far more under way than the database can take at once; another has one request.

const CROWD = 60

/** In the order of their commits: the crowd's, and when the other one's came between them. */
function setup() {
  const fixture = durableFixture()
  const { store, engine } = fixture
  const order: string[] = []
  const request = (tenant: string, key: string) => ({
    scope: { tenant, operation: 'pay' },
    key,
    fingerprint: 'f',
  })
  return { ...fixture, store, engine, order, request }
}

/** Where a crowd waits until all of it is there. */
function meetingPoint() {
  const { opened, open } = gate()
  let there = 0
  const arrive = () => {
    there++
    if (there === CROWD) open()
    return opened
  }
  return { arrive, complete: opened }
}

it('lets a transaction of another tenant in before those that one tenant has queued', async () => {
  const { engine, order, request } = setup()
  const { arrive, complete } = meetingPoint()
  const run = (tenant: string, key: string) =>
    engine.run(request(tenant, key), async (context) => {
      if (tenant === 'crowd') await arrive()
      return context.transaction((_tx: SqliteTransaction) => {
        order.push(tenant)
        return bytes('done')
      })
    })
  const crowd = Array.from({ length: CROWD }, (_, n) => run('crowd', `k-${n}`))
  await complete
  expect((await run('other', 'k')).kind).toBe('ran')
  expect(order.length).toBeLessThan(10)
  await Promise.all(crowd)
  expect(order).toHaveLength(CROWD + 1)
})

it('lets an operation of another tenant through while one tenant has many', async () => {
  const { engine, order, request } = setup()
  const { arrive, complete } = meetingPoint()
  const pay = operation({
    name: 'pay',
    effects: { charge: { send: async () => ({ id: 'ch_1' }) } },
    async run(op, tenant: string) {
      await op.transaction('record', (_tx: SqliteTransaction) => ({ tenant }))
      if (tenant === 'crowd') await arrive()
      await op.external('charge', undefined)
      return op.finish('book', (_tx: SqliteTransaction) => {
        order.push(tenant)
        return { status: 201, body: { tenant } }
      })
    },
  })
  const policy = operationPolicy(engine)
  const run = (tenant: string, key: string) =>
    engine.run({ ...request(tenant, key), policy }, pay.work(tenant))
  const crowd = Array.from({ length: CROWD }, (_, n) => run('crowd', `k-${n}`))
  await complete
  expect((await run('other', 'k')).kind).toBe('ran')
  expect(order.length).toBeLessThan(CROWD / 2)
  await Promise.all(crowd)
  expect(order).toHaveLength(CROWD + 1)
})

it('lets the event loop go round while transactions queue', async () => {
  const { engine, order, request } = setup()
  let rounds = 0
  let isOver = false
  const go = () => {
    rounds++
    if (!isOver) setImmediate(go)
  }
  const all = Array.from({ length: CROWD }, (_, n) =>
    engine.run(request('one', `k-${n}`), (context) =>
      context.transaction((_tx: SqliteTransaction) => {
        order.push('one')
        if (order.length === 1) setImmediate(go)
        return bytes('done')
      }),
    ),
  )
  await Promise.all(all)
  isOver = true
  // Each transaction is synchronous to its commit: without a pause nothing else would run.
  expect(rounds).toBeGreaterThanOrEqual(CROWD - 2)
})
