import { expect, it, onTestFinished } from 'vitest'
import { createReconciler, type ReconcilerOptions } from '../../src/durable/index.ts'
import type { Finding } from '../../src/durable/operation-contract.ts'
import { fairFixture, hangingEffect } from './fair-fixture.ts'

type Fixture = ReturnType<typeof fairFixture>

type Reconcile = (tenant: string, signal: AbortSignal) => Finding<string> | Promise<never>

/** An operation whose outcome is unknown until the provider is asked. */
function unknown(name: string, reconcile: Reconcile) {
  const asked: string[] = []
  const { one, ends } = hangingEffect(name, {
    timeoutMs: 10,
    reconcile: ({ request, signal }) => {
      if (!isAsking) return { kind: 'pending' }
      asked.push(request)
      return reconcile(request, signal)
    },
  })
  let isAsking = false
  /** Runs it for these tenants, each with a lost answer. */
  const lose = async ({ clock, run }: Fixture, tenants: readonly string[]) => {
    for (const tenant of tenants) {
      const lost = run(one, tenant).catch(() => undefined)
      await clock.advanceAsync(20)
      await lost
    }
    for (const end of ends) end()
    isAsking = true
  }
  return { one, asked, lose }
}

const done = (): Finding<string> => ({ kind: 'done', result: 'paid' })
/** Ignores its signal. */
const hang = () => new Promise<never>(() => undefined)
const hangUntilAborted: Reconcile = (_tenant, signal) =>
  new Promise<never>((_, reject) => {
    signal.addEventListener('abort', () => reject(new Error('aborted')))
  })
const times = (count: number, tenant: string) => Array.from({ length: count }, () => tenant)

function start({ engine }: Fixture, options: Omit<ReconcilerOptions, 'engine'>) {
  const reconciler = createReconciler({ engine, ...options })
  const stop = new AbortController()
  onTestFinished(() => stop.abort())
  const ended = reconciler.run(stop.signal)
  return { reconciler, stop: () => stop.abort(), ended }
}

it('asks other providers while one provider hangs', async () => {
  const fixture = fairFixture()
  const { clock } = fixture
  const slow = unknown('slow', hang)
  const quick = unknown('quick', done)
  await slow.lose(fixture, times(200, 'acme'))
  await quick.lose(fixture, times(50, 'acme'))
  await clock.advanceAsync(60_000)
  const { stop } = start(fixture, { operations: [slow.one, quick.one] })
  // Before the first look at the provider that hangs is given up.
  await clock.advanceAsync(25_000)
  expect(slow.asked.length).toBeGreaterThanOrEqual(4)
  expect(quick.asked.length).toBe(50)
  stop()
})

it('asks for other tenants while the records of one tenant take long', async () => {
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

it('backs off from an operation whose looks time out, and tries it with one look', async () => {
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
  // Breaks of 2, 4, 8, 16, 32 and 64 seconds, each with one look behind it.
  await clock.advanceAsync(120_000)
  expect(slow.asked.length - first).toBeLessThanOrEqual(6)
  expect(slow.asked.length).toBeGreaterThan(first)
  expect(reconciler.stats().running).toBeLessThanOrEqual(1)
  stop()
})

it('goes on with an operation once its provider answers again', async () => {
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
