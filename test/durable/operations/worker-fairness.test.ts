import { expect, it, onTestFinished } from 'vitest'
import { createWorker, type WorkerOptions } from '../../../src/durable/index.ts'
import {
  fairFixture,
  hangingEffect,
  hangingOperation,
  quickOperation,
} from '../places/fair-fixture.ts'

type Fixture = ReturnType<typeof fairFixture>

function start({ engine }: Fixture, options: Omit<WorkerOptions, 'engine'>) {
  const worker = createWorker({ engine, ...options })
  const stop = new AbortController()
  onTestFinished(() => stop.abort())
  const ended = worker.run(stop.signal)
  return { worker, stop: () => stop.abort(), ended }
}

it('runs operations of other tenants while one tenant has many slow ones', async () => {
  const fixture = fairFixture()
  const { clock, accept } = fixture
  const { one: quick, ran } = quickOperation('quick')
  const { one: slow, sent } = hangingEffect('slow', { timeoutMs: 1_000 })
  await accept(slow, 'crowd', 500)
  for (let n = 0; n < 20; n++) await accept(quick, `t${n}`, 1)
  const { stop, ended } = start(fixture, { operations: [slow, quick], concurrency: 4 })
  // Before the first slow effect ends.
  await clock.advanceAsync(900)
  expect(sent.length).toBeGreaterThan(0)
  expect(ran.length).toBe(20)
  stop()
  await clock.advanceAsync(10_000)
  await ended
})

it('runs the same operation for other tenants while one tenant has many of it', async () => {
  const fixture = fairFixture()
  const { clock, accept } = fixture
  const { one, sent } = hangingEffect('pay', { timeoutMs: 1_000 })
  await accept(one, 'crowd', 300)
  const { stop, ended } = start(fixture, { operations: [one], concurrency: 4 })
  await clock.advanceAsync(100)
  expect(sent).toEqual(['crowd', 'crowd', 'crowd', 'crowd'])
  await accept(one, 'late', 1)
  // The operation runs in the reserve, not after those of the first tenant.
  await clock.advanceAsync(500)
  expect(sent).toContain('late')
  stop()
  await clock.advanceAsync(10_000)
  await ended
})

it('gives the places of a hanging operation to other work after its time limit', async () => {
  const fixture = fairFixture()
  const { clock, accept, ofKind, engine } = fixture
  const { one: hangs, begun } = hangingOperation('hangs')
  const { one: quick, ran } = quickOperation('quick')
  await accept(hangs, 'one', 30)
  const { worker, stop } = start(fixture, {
    operations: [hangs, quick],
    concurrency: 10,
    reserve: 0,
    policy: { runTimeoutMs: 60_000 },
  })
  await clock.advanceAsync(1_000)
  expect(begun.length).toBe(10)
  await accept(quick, 'other', 5)
  await clock.advanceAsync(30_000)
  expect(ran.length).toBe(0)
  await clock.advanceAsync(32_000)
  expect(ran.length).toBe(5)
  // More operations began when the first ones lost their places, and lose their places, too.
  await clock.advanceAsync(62_000)
  const overdue = begun.length
  const paused = { part: 'operation', name: 'hangs', overdue }
  expect(overdue).toBeLessThan(20)
  expect(worker.stats()).toEqual({ running: 0, overdue, paused: [paused] })
  expect(ofKind('work_overdue').length).toBe(overdue)
  expect(ofKind('work_paused')).toMatchObject([{ part: 'operation', name: 'hangs' }])
  // The operation is paused: it starts only once in five minutes, as a trial.
  await clock.advanceAsync(290_000)
  expect(begun.length).toBeLessThanOrEqual(overdue + 1)
  await clock.advanceAsync(1_200_000)
  expect(begun.length).toBeLessThanOrEqual(overdue + 5)
  expect(engine.isClosed).toBe(false)
  stop()
})

it('counts effects that ignore their signal, and pauses their operation at a limit', async () => {
  const fixture = fairFixture()
  const { clock, accept, ofKind } = fixture
  const { one, sent, ends } = hangingEffect('pay', { timeoutMs: 1_000 })
  const { one: quick, ran } = quickOperation('quick')
  await accept(one, 'crowd', 100)
  const { worker, stop, ended } = start(fixture, { operations: [one, quick], concurrency: 3 })
  await clock.advanceAsync(60_000)
  // Three effects at a time, until ten or more hang.
  expect(sent.length).toBe(12)
  expect(worker.stats().paused).toEqual([{ part: 'operation', name: 'pay', overdue: 12 }])
  expect(ofKind('work_overdue').length).toBe(12)
  await accept(quick, 'other', 1)
  await clock.advanceAsync(1_000)
  expect(ran).toEqual(['other'])

  for (const end of ends) end()
  await clock.advanceAsync(1_500)
  expect(ofKind('work_resumed').length).toBe(1)
  expect(sent.length).toBeGreaterThan(12)
  stop()
  await clock.advanceAsync(10_000)
  await ended
})

it('starts no more than its limits allow for one tenant and one operation', async () => {
  const fixture = fairFixture()
  const { clock, accept } = fixture
  const { one: first, sent } = hangingEffect('first', { timeoutMs: 1_000 })
  const { one: second, sent: others } = hangingEffect('second', { timeoutMs: 1_000 })
  await accept(first, 'a', 10)
  await accept(first, 'b', 10)
  await accept(second, 'a', 10)
  await accept(second, 'c', 10)
  const limits = { concurrency: 10, perOperation: 3, perTenant: 2, reserve: 0 }
  const { worker, stop, ended } = start(fixture, { operations: [first, second], ...limits })
  await clock.advanceAsync(900)
  expect(sent.length).toBeLessThanOrEqual(3)
  expect([...sent, ...others].filter((tenant) => tenant === 'a').length).toBe(2)
  expect(sent.length + others.length).toBe(worker.stats().running)
  expect(worker.stats().running).toBeGreaterThanOrEqual(5)
  stop()
  await clock.advanceAsync(10_000)
  await ended
})
