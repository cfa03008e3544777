import { expect, it } from 'vitest'
import { fairFixture } from '../places/fair-fixture.ts'
import { done, hang, hangUntilAborted, start, times, unknown } from './fair-unknown.ts'

it('asks other providers while one provider hangs', async () => {
  const fixture = fairFixture()
  const { clock } = fixture
  const slow = unknown('slow', hang)
  const quick = unknown('quick', done)
  await slow.lose(fixture, times(200, 'acme'))
  await quick.lose(fixture, times(50, 'acme'))
  await clock.advanceAsync(60_000)
  const { stop } = start(fixture, { operations: [slow.one, quick.one] })
  // Before the first call of the provider that hangs times out.
  await clock.advanceAsync(25_000)
  expect(slow.asked.length).toBeGreaterThanOrEqual(4)
  expect(quick.asked.length).toBe(50)
  stop()
})

it('reconciles records of other tenants while those of one tenant are slow', async () => {
  const fixture = fairFixture()
  const { clock } = fixture
  const one = unknown('pay', (tenant) => (tenant === 'crowd' ? hang() : done()))
  await one.lose(fixture, times(50, 'crowd'))
  await one.lose(fixture, ['a', 'b', 'c', 'd'])
  await clock.advanceAsync(60_000)
  const { stop } = start(fixture, { operations: [one.one] })
  await clock.advanceAsync(25_000)
  expect(one.asked.filter((tenant) => tenant !== 'crowd').toSorted()).toEqual(['a', 'b', 'c', 'd'])
  stop()
})

it('pauses an operation whose provider times out, and tries it with one record', async () => {
  const fixture = fairFixture()
  const { clock, ofKind } = fixture
  const slow = unknown('slow', hangUntilAborted)
  await slow.lose(fixture, times(100, 'acme'))
  await clock.advanceAsync(60_000)
  const options = { operations: [slow.one], timeoutMs: 1_000 }
  const { reconciler, stop } = start(fixture, options)
  await clock.advanceAsync(1_500)
  const first = slow.asked.length
  expect(first).toBeLessThanOrEqual(12)
  expect(ofKind('work_paused')).toMatchObject([{ part: 'reconciler', name: 'slow version 1' }])
  // Pauses of 2, 4, 8, 16, 32 and 64 seconds, each followed by one trial.
  await clock.advanceAsync(120_000)
  expect(slow.asked.length - first).toBeLessThanOrEqual(6)
  expect(slow.asked.length).toBeGreaterThan(first)
  expect(reconciler.stats().running).toBeLessThanOrEqual(1)
  stop()
})

it('resumes an operation when its provider answers again', async () => {
  const fixture = fairFixture()
  const { clock, ofKind } = fixture
  let isDown = true
  const pay = unknown('pay', (...asked) => (isDown ? hangUntilAborted(...asked) : done()))
  await pay.lose(fixture, times(30, 'acme'))
  await clock.advanceAsync(60_000)
  const { stop } = start(fixture, { operations: [pay.one], timeoutMs: 1_000 })
  await clock.advanceAsync(5_000)
  expect(ofKind('work_paused').length).toBe(1)
  isDown = false
  await clock.advanceAsync(300_000)
  expect(ofKind('work_resumed').length).toBe(1)
  expect(pay.asked.length).toBeGreaterThanOrEqual(30)
  expect(await fixture.engine.list({ state: 'unknown' })).toEqual([])
  stop()
})

it('stops asking a provider whose calls ignore their signal, until they end', async () => {
  const fixture = fairFixture()
  const { clock, ofKind } = fixture
  const slow = unknown('slow', hang)
  await slow.lose(fixture, times(100, 'acme'))
  await clock.advanceAsync(60_000)
  const { reconciler, stop } = start(fixture, { operations: [slow.one], timeoutMs: 1_000 })
  await clock.advanceAsync(600_000)
  expect(slow.asked.length).toBeLessThanOrEqual(12)
  expect(ofKind('work_overdue').length).toBe(slow.asked.length)
  expect(reconciler.stats()).toMatchObject({ running: 0, overdue: slow.asked.length })
  stop()
})
