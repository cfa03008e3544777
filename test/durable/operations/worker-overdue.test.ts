import { expect, it, onTestFinished } from 'vitest'
import { createWorker, defineOperation, type WorkerOptions } from '../../../src/durable/index.ts'
import type { Effect } from '../../../src/durable/operations/operation-contract.ts'
import { fairFixture, hangingEffect, quickOperation } from '../places/fair-fixture.ts'

type Fixture = ReturnType<typeof fairFixture>

const MINUTE_MS = 60_000

function start({ engine }: Fixture, options: Omit<WorkerOptions, 'engine'>) {
  const worker = createWorker({ engine, ...options })
  const stop = new AbortController()
  onTestFinished(() => stop.abort())
  const ended = worker.run(stop.signal)
  return { worker, stop: () => stop.abort(), ended }
}

/** An operation whose effect hangs for these tenants, with resendWithinMs of twelve hours. */
function repeatable(hangs: (tenant: string) => boolean) {
  const sent: string[] = []
  const charge: Effect<string, string> = {
    send: ({ request }) => {
      sent.push(request)
      return hangs(request) ? new Promise<string>(() => undefined) : 'paid'
    },
    resendWithinMs: 12 * 60 * MINUTE_MS,
  }
  const one = defineOperation<string, { charge: typeof charge }>({
    name: 'pay',
    effects: { charge },
    run: async (op, tenant) => {
      await op.external('charge', tenant)
      return { status: 200, body: 'done' }
    },
  })
  return { one, sent }
}

it('runs an operation for other tenants although every send of one record hangs', async () => {
  const fixture = fairFixture()
  const { clock, accept, engine, ofKind } = fixture
  const { one, sent } = repeatable((tenant) => tenant === 'bad')
  await accept(one, 'bad', 1)
  const { worker } = start(fixture, { operations: [one] })
  for (let minute = 0; minute < 90; minute++) await clock.advanceAsync(MINUTE_MS)
  expect(worker.stats().paused).toEqual([])
  expect(ofKind('work_paused')).toEqual([])
  await accept(one, 'good', 3)
  await clock.advanceAsync(10_000)
  expect(sent.filter((tenant) => tenant === 'good').length).toBe(3)
  // The number of sends at the same time is limited by the attempts of an operation.
  for (let hour = 0; hour < 24; hour++) await clock.advanceAsync(60 * MINUTE_MS)
  expect(sent.filter((tenant) => tenant === 'bad').length).toBe(20)
  expect((await engine.list({ state: 'unknown' })).length).toBe(1)
})

it('resumes a paused operation after a trial that ends in time', async () => {
  const fixture = fairFixture()
  const { clock, accept, ofKind } = fixture
  let isDown = true
  const { one, sent } = repeatable(() => isDown)
  await accept(one, 'a', 15)
  const { worker } = start(fixture, { operations: [one], concurrency: 3 })
  for (let minute = 0; minute < 8; minute++) await clock.advanceAsync(MINUTE_MS)
  expect(worker.stats().paused.length).toBe(1)
  const before = sent.length
  // Each trial that hangs adds one more call.
  for (let minute = 0; minute < 12; minute++) await clock.advanceAsync(MINUTE_MS)
  expect(sent.length - before).toBeLessThanOrEqual(3)
  isDown = false
  for (let minute = 0; minute < 12; minute++) await clock.advanceAsync(MINUTE_MS)
  expect(ofKind('work_resumed').length).toBe(1)
  expect(worker.stats().paused).toEqual([])
  await accept(one, 'b', 20)
  await clock.advanceAsync(5_000)
  expect(sent.filter((tenant) => tenant === 'b').length).toBe(20)
})

it('counts an overdue effect only in the worker that runs it', async () => {
  const fixture = fairFixture()
  const { clock, accept, ofKind } = fixture
  const { one } = hangingEffect('pay', { timeoutMs: 1_000 })
  const { one: quick } = quickOperation('quick')
  const others = start(fixture, { operations: [quick] })
  const idle = start(fixture, { operations: [one] })
  await accept(one, 'a', 1)
  const own = createWorker({ engine: fixture.engine, operations: [one] })
  const pass = own.runOnce()
  await clock.advanceAsync(5_000)
  await pass
  const counts = [idle.worker, own].map((worker) => worker.stats().overdue)
  expect(counts.reduce((sum, count) => sum + count)).toBe(1)
  expect(others.worker.stats().overdue).toBe(0)
  expect(ofKind('work_overdue').length).toBe(1)
})

it('counts an overdue effect once while runOnce and run are in progress', async () => {
  const fixture = fairFixture()
  const { clock, accept, ofKind } = fixture
  const { one } = hangingEffect('pay', { timeoutMs: 1_000 })
  await accept(one, 'a', 1)
  const { worker } = start(fixture, { operations: [one] })
  const pass = worker.runOnce()
  await clock.advanceAsync(900)
  await accept(one, 'b', 1)
  const other = worker.runOnce()
  await clock.advanceAsync(5_000)
  await Promise.all([pass, other])
  expect(worker.stats().overdue).toBe(2)
  expect(ofKind('work_overdue').length).toBe(2)
})

it('counts an overdue effect of a request in one worker that knows its operation', async () => {
  const fixture = fairFixture()
  const { clock, run, ofKind } = fixture
  const { one } = hangingEffect('pay', { timeoutMs: 1_000 })
  const workers = [one, one].map((each) => start(fixture, { operations: [each] }))
  const lost = run(one, 'a').catch(() => undefined)
  await clock.advanceAsync(5_000)
  await lost
  const counts = workers.map(({ worker }) => worker.stats().overdue)
  expect(counts.reduce((sum, count) => sum + count)).toBe(1)
  expect(ofKind('work_overdue').length).toBe(1)
})

it('emits one event for an effect that outlives the time limit of its operation', async () => {
  const fixture = fairFixture()
  const { clock, accept, ofKind } = fixture
  const { one } = hangingEffect('pay', { timeoutMs: 2 * MINUTE_MS })
  await accept(one, 'a', 5)
  const { worker } = start(fixture, { operations: [one], policy: { runTimeoutMs: MINUTE_MS } })
  await clock.advanceAsync(65_000)
  expect(ofKind('work_overdue').length).toBe(5)
  await clock.advanceAsync(2 * MINUTE_MS)
  expect(ofKind('work_overdue').length).toBe(5)
  expect(worker.stats().overdue).toBe(5)
})

it('leaves health ready after the run of the worker has ended', async () => {
  const fixture = fairFixture()
  const { clock, accept, engine } = fixture
  const { one } = hangingEffect('pay', { timeoutMs: 1_000 })
  await accept(one, 'a', 20)
  const { stop, ended } = start(fixture, { operations: [one] })
  await clock.advanceAsync(10_000)
  expect((await engine.health()).status).toBe('degraded')
  stop()
  await clock.advanceAsync(10_000)
  await ended
  expect(await engine.health()).toMatchObject({ status: 'ready', paused: [] })
})
