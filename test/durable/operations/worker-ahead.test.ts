import { expect, it, onTestFinished } from 'vitest'
import type { DueQuery } from '../../../src/core/store/durable-store.ts'
import { createWorker, defineOperation } from '../../../src/durable/index.ts'
import { fairFixture, quickOperation } from '../places/fair-fixture.ts'

type Fixture = ReturnType<typeof fairFixture>

/** Records the limit of each query for due operations. */
function watchLooks({ store }: Fixture): number[] {
  const { phases } = store.durable
  const due = phases.due.bind(phases)
  const limits: number[] = []
  phases.due = (query: DueQuery, signal) => {
    limits.push(query.limit)
    return due(query, signal)
  }
  return limits
}

/** An operation that runs until the test ends it, or for this time. */
function slowOperation({ clock }: Fixture, lastsMs = Number.POSITIVE_INFINITY) {
  const began: string[] = []
  const ends: (() => void)[] = []
  const one = defineOperation<string>({
    name: 'slow',
    run: async (_op, tenant) => {
      began.push(tenant)
      await new Promise<void>((resolve) => {
        ends.push(resolve)
        if (Number.isFinite(lastsMs)) clock.after(lastsMs, resolve)
      })
      return { status: 200, body: 'done' }
    },
  })
  return { one, began, endNext: () => ends.shift()?.() }
}

function start({ engine }: Fixture, options: Omit<Parameters<typeof createWorker>[0], 'engine'>) {
  const stop = new AbortController()
  onTestFinished(() => stop.abort())
  const ended = createWorker({ engine, ...options }).run(stop.signal)
  return { stop: () => stop.abort(), ended }
}

it('fetches many quick operations with one query', async () => {
  const fixture = fairFixture()
  const { one, ran } = quickOperation('quick')
  await fixture.accept(one, 'a', 200)
  const looks = watchLooks(fixture)
  start(fixture, { operations: [one], concurrency: 10 })
  await fixture.clock.advanceAsync(500)
  expect(ran.length).toBe(200)
  expect(Math.max(...looks)).toBe(20)
  expect(looks.length).toBeLessThan(30)
})

// Otherwise, places that become free together would skip every second group of tenants.
it('gives each of many tenants its turn while operations are slow', async () => {
  const fixture = fairFixture()
  const { one, began } = slowOperation(fixture, 1_000)
  const tenants = Array.from({ length: 40 }, (_, n) => `t${10 + n}`)
  for (const tenant of tenants) await fixture.accept(one, tenant, 10)
  start(fixture, { operations: [one], concurrency: 10, reserve: 0 })
  await fixture.clock.advanceAsync(5_500)
  expect(new Set(began).size).toBe(40)
})

it('does not queue operations ahead of a new tenant while operations are slow', async () => {
  const fixture = fairFixture()
  const { clock, accept } = fixture
  const { one, began } = slowOperation(fixture, 1_000)
  await accept(one, 'crowd', 100)
  start(fixture, { operations: [one], concurrency: 4, reserve: 0 })
  await clock.advanceAsync(10_500)
  await accept(one, 'late', 1)
  const before = began.length
  await clock.advanceAsync(1_000)
  expect(began[before]).toBe('late')
})

it('fetches nothing ahead after another worker took a queued operation', async () => {
  const fixture = fairFixture()
  const { engine, clock } = fixture
  const { one, began, endNext } = slowOperation(fixture)
  await fixture.accept(one, 'a', 20)
  const looks = watchLooks(fixture)
  start(fixture, { operations: [one], concurrency: 1, reserve: 0 })
  await expect.poll(() => began.length).toBe(1)
  endNext()
  // The second query returned one operation more than there are places.
  await expect.poll(() => began.length).toBe(2)
  expect(looks).toEqual([1, 2])
  const other = createWorker({ engine, operations: [one], concurrency: 1, reserve: 0 })
  const pass = other.runOnce()
  await expect.poll(() => began.length).toBe(3)
  endNext()
  await clock.advanceAsync(10)
  await expect.poll(() => began.length).toBe(4)
  expect(looks.slice(3)).toEqual([1])
  for (let n = 0; n < 4; n++) endNext()
  await pass
})

it('starts no queued operation after its signal has aborted', async () => {
  const fixture = fairFixture()
  const { clock } = fixture
  const { one, began, endNext } = slowOperation(fixture)
  await fixture.accept(one, 'a', 20)
  const looks = watchLooks(fixture)
  const { stop, ended } = start(fixture, { operations: [one], concurrency: 1, reserve: 0 })
  await expect.poll(() => began.length).toBe(1)
  endNext()
  await expect.poll(() => began.length).toBe(2)
  expect(looks).toEqual([1, 2])
  stop()
  endNext()
  await ended
  await clock.advanceAsync(100)
  expect(began.length).toBe(2)
})
