import { expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { defineOperation, operationPolicy } from '../../../src/durable/index.ts'
import { sqliteStore, type SqliteTransaction } from '../../../src/stores/sqlite/index.ts'
import { bytes, gate } from '../../core/engine/engine-fixture.ts'
import { scratchFolder } from '../../stores/scratch-folder.ts'

// One tenant has far more transactions than the database can run at once; another has one request.

const CROWD = 60

/** Uses the system clock, because the event loop itself is under test. */
function setup() {
  const folder = scratchFolder()
  const store = sqliteStore({ path: folder.file('test.db') })
  const engine = createEngine({ store, sweepEveryMs: 0, reapEveryMs: 0 })
  onTestFinished(async () => {
    await store.close()
    folder.remove()
  })
  /** The tenants in the order of their commits. */
  const order: string[] = []
  const request = (tenant: string, key: string) => ({
    scope: { tenant, operation: 'pay' },
    key,
    fingerprint: 'f',
  })
  return { engine, order, request }
}

/** Holds callers back until all of them have arrived. */
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

it('runs a transaction of another tenant before the queued ones of one tenant', async () => {
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

it('runs an operation of another tenant while one tenant has many', async () => {
  const { engine, order, request } = setup()
  const { arrive, complete } = meetingPoint()
  const pay = defineOperation({
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

it('keeps the event loop running while transactions queue', async () => {
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
