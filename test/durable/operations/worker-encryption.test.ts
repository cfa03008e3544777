import { expect, it, onTestFinished } from 'vitest'
import type { Encryption } from '../../../src/core/encryption.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import { createWorker, defineOperation, operationPolicy } from '../../../src/durable/index.ts'
import { flipping } from '../../http/reply/encryptions.ts'
import { durableFixture } from './durable-fixture.ts'

const NOTHING = new Uint8Array(0)

/** Accepted operations of tenants, and a key service that fails for some of them. */
async function setup(tenants: readonly string[], own = false) {
  const down = new Set<string>()
  const prepared: string[] = []
  const encryption: Encryption = {
    ...flipping,
    prepare: async ({ tenant }) => {
      prepared.push(tenant!)
      if (down.has(tenant!)) throw new Error('no key')
    },
  }
  const fixture = durableFixture(own ? {} : { encryption })
  const { engine, clock, events, store } = fixture
  const ran: string[] = []
  const job = defineOperation({
    name: 'job',
    ...(own && { encryption }),
    run: (op) => {
      ran.push(op.tenant)
      return { status: 200 }
    },
  })
  const policy = operationPolicy(engine)
  for (const [index, tenant] of tenants.entries()) {
    const request = { scope: { tenant, operation: job.name }, key: `${index}`, fingerprint: 'f' }
    await engine.run({ ...request, policy }, (context) =>
      job.accept(context, undefined).then(() => NOTHING),
    )
  }
  prepared.length = 0
  const states = async () => {
    const records = await store.list({ state: 'pending', limit: 100 })
    return records.map(({ state, attempt, tenant }) => ({ state, attempt, tenant }))
  }
  const failures = () =>
    events.filter((event: EngineEvent) => event.kind === 'encryption_failed').length
  return { ...fixture, job, down, prepared, ran, states, failures, clock }
}

it.each([
  ['the engine', false],
  ['the operation', true],
])('leaves an operation for later if the encryption of %s is not prepared', async (_who, own) => {
  const { engine, job, down, prepared, ran, states, events, clock } = await setup(['acme'], own)
  const worker = createWorker({ engine, operations: [job] })
  down.add('acme')
  expect(await worker.runOnce()).toEqual({ completed: 0, failed: 0, missed: 1 })
  expect(await states()).toEqual([{ state: 'pending', attempt: 0, tenant: 'acme' }])
  expect([ran, prepared]).toEqual([[], ['acme']])
  const kinds = events.map(({ kind }) => kind)
  expect(kinds).toContain('encryption_failed')
  expect(kinds).not.toContain('operation_failed')

  down.clear()
  await clock.advanceAsync(5_000)
  expect(await worker.runOnce()).toEqual({ completed: 1, failed: 0, missed: 0 })
  expect(ran).toEqual(['acme'])
})

it('tries a tenant again every five seconds only, and runs the others', async () => {
  const tenants = ['bad', 'bad', 'bad', 'good', 'fine']
  const { engine, job, down, ran, failures, clock } = await setup(tenants)
  down.add('bad')
  const worker = createWorker({ engine, operations: [job], concurrency: 1, reserve: 0, pollMs: 10 })
  const stop = new AbortController()
  onTestFinished(() => stop.abort())
  const running = worker.run(stop.signal)
  for (let n = 0; n < 40; n++) await clock.advanceAsync(100)
  expect(ran.toSorted()).toEqual(['fine', 'good'])
  expect(failures()).toBe(1)
  for (let n = 0; n < 100; n++) await clock.advanceAsync(100)
  expect(failures()).toBe(3)
  down.clear()
  for (let n = 0; n < 60; n++) await clock.advanceAsync(100)
  expect(ran.filter((tenant) => tenant === 'bad')).toHaveLength(3)
  stop.abort()
  await running
})

it('finds work of others behind more tenants than a query may leave out', async () => {
  const bad = Array.from({ length: 150 }, (_, index) => `bad-${index}`)
  const { engine, job, down, ran, clock, store } = await setup([...bad, 'good'])
  for (const tenant of bad) down.add(tenant)
  const asked: number[] = []
  const due = store.durable.phases.due.bind(store.durable.phases)
  store.durable.phases.due = (query, signal) => {
    asked.push(query.withoutTenants?.length ?? 0)
    return due(query, signal)
  }
  const worker = createWorker({ engine, operations: [job], concurrency: 50 })
  for (let n = 0; n < 10 && ran.length === 0; n++) {
    await worker.runOnce()
    await clock.advanceAsync(100)
  }
  expect(ran).toEqual(['good'])
  expect(Math.max(...asked)).toBeLessThanOrEqual(100)
})
