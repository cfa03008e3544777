import { expect, it } from 'vitest'
import { defineOperation } from '../../../src/durable/index.ts'
import type { Effect, Finding } from '../../../src/durable/operations/operation-contract.ts'
import { fairFixture } from '../places/fair-fixture.ts'
import { done, hang, hangUntilAborted, start, times, unknown } from './fair-unknown.ts'

it('tries a paused operation although many other operations always have records due', async () => {
  const fixture = fairFixture()
  const { clock, ofKind } = fixture
  let isDown = true
  const late = unknown('late', (...asked) => (isDown ? hangUntilAborted(...asked) : done()))
  const names = Array.from({ length: 40 }, (_, n) => `a${n}`)
  const slow = () =>
    new Promise<Finding<string>>((resolve) => {
      clock.after(200, () => resolve({ kind: 'pending' }))
    })
  const others = names.map((name) => unknown(name, slow))
  await late.lose(fixture, times(12, 'acme'))
  for (const one of others) await one.lose(fixture, ['acme'])
  await clock.advanceAsync(60_000)
  const schedule = { firstMs: 100, factor: 1, maxMs: 100, maxAttempts: 10_000 }
  const operations = [late, ...others].map(({ one }) => one)
  start(fixture, { operations, timeoutMs: 1_000, pollMs: 100, schedule })
  await clock.advanceAsync(10_000)
  expect(ofKind('work_paused').length).toBe(1)
  isDown = false
  // The pause is eight seconds long now, and the next one twice as long.
  await clock.advanceAsync(20_000)
  expect(ofKind('work_resumed').length).toBe(1)
})

it('does not count records whose provider is not called as answers', async () => {
  const fixture = fairFixture()
  const { clock, run, ofKind } = fixture
  let asked = 0
  let isAsking = false
  const ends: (() => void)[] = []
  const send = () => new Promise<string>((resolve) => ends.push(() => resolve('late')))
  const charge: Effect<string, string> = {
    send,
    timeoutMs: 10,
    reconcile: ({ request, signal }) => {
      if (!isAsking) return { kind: 'pending' }
      asked++
      return hangUntilAborted(request, signal)
    },
  }
  const mail: Effect<string, string> = { send, timeoutMs: 10 }
  const pay = defineOperation<string, { charge: typeof charge; mail: typeof mail }>({
    name: 'pay',
    effects: { charge, mail },
    run: async (op, tenant) => {
      await op.external(tenant === 'mail' ? 'mail' : 'charge', tenant)
      return { status: 200 }
    },
  })
  const lose = async (tenant: string) => {
    const lost = run(pay, tenant).catch(() => undefined)
    await clock.advanceAsync(20)
    await lost
  }
  for (let n = 0; n < 80; n++) await lose(n % 8 === 7 ? 'mail' : 'acme')
  for (const end of ends) end()
  isAsking = true
  await clock.advanceAsync(60_000)
  start(fixture, { operations: [pay], timeoutMs: 1_000 })
  for (let n = 0; n < 5; n++) {
    await clock.advanceAsync(10_000)
    await lose('mail')
  }
  // Pauses of 2, 4, 8, 16 and 32 seconds, each followed by one call.
  expect(asked).toBeLessThanOrEqual(17)
  expect(ofKind('work_paused').length).toBe(1)
  expect(ofKind('work_resumed')).toEqual([])
})

it('reconciles other records of an operation although the calls for one record hang', async () => {
  const fixture = fairFixture()
  const { clock, engine } = fixture
  const pay = unknown('pay', (tenant) => (tenant === 'bad' ? hang() : done()))
  await pay.lose(fixture, ['bad'])
  await clock.advanceAsync(10_000)
  start(fixture, { operations: [pay.one] })
  for (let hour = 0; hour < 24; hour++) {
    await clock.advanceAsync(3_600_000)
    await pay.lose(fixture, ['good'])
  }
  await clock.advanceAsync(3_600_000)
  expect(pay.asked.filter((tenant) => tenant === 'bad').length).toBeGreaterThan(10)
  const left = await engine.list({ state: 'unknown' })
  expect(left.map(({ tenant }) => tenant)).toEqual(['bad'])
})

it('emits work_paused once, and work_resumed only when the provider answers', async () => {
  const fixture = fairFixture()
  const { clock, engine, ofKind } = fixture
  const hung: (() => void)[] = []
  const pay = unknown('pay', () => {
    return new Promise<never>((_, reject) => hung.push(() => reject(new Error('late'))))
  })
  const other = unknown('other', (tenant) => (tenant === 'hangs' ? hang() : done()))
  await pay.lose(fixture, times(40, 'acme'))
  await other.lose(fixture, ['hangs'])
  await clock.advanceAsync(60_000)
  const operations = [pay.one, other.one]
  const { reconciler, stop, ended } = start(fixture, { operations, timeoutMs: 30_000 })
  await clock.advanceAsync(31_100)
  const paused = { part: 'reconciler', name: 'pay version 1' }
  const told = () => ofKind('work_paused').filter(({ name }) => name === paused.name)
  expect(told().length).toBe(1)
  // One of the calls that hang belongs to the other operation.
  const { overdue, paused: now } = reconciler.stats()
  expect(now).toEqual([{ ...paused, overdue: overdue - 1 }])
  for (let minute = 0; minute < 30; minute++) await clock.advanceAsync(60_000)
  expect(told().length).toBe(1)
  const { paused: listed } = await engine.health()
  expect(listed.filter(({ name }) => name === paused.name).length).toBe(1)

  // The old calls end, but the provider has not answered again.
  for (const end of hung) end()
  await clock.advanceAsync(10)
  expect(ofKind('work_resumed')).toEqual([])
  expect(reconciler.stats().paused).toContainEqual({ ...paused, overdue: 0 })
  expect((await engine.health()).status).toBe('degraded')
  stop()
  await clock.advanceAsync(60_000)
  await ended
  expect(await engine.health()).toMatchObject({ status: 'ready', paused: [] })
})
