import { expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { Store } from '../../../src/core/store/store.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { bytes, heldWork, KEY, SCOPE, standing } from './engine-fixture.ts'
import { FaultyStore } from './faulty-store.ts'

const WAIT = { whileInProgress: { waitMs: 10_000 } } as const
const REQUEST = { scope: SCOPE, key: KEY, fingerprint: 'f' }

/** A holder on another node, and an engine on a store whose watches the test triggers. */
async function setup(watch?: Store['watch']) {
  const clock = new FakeClock()
  const options = { clock, sweepEveryMs: 0, reapEveryMs: 0, ...WAIT }
  const records = memoryStore({ clock })
  const store = new FaultyStore(records, clock)
  const watches = new Set<() => void>()
  let begun = 0
  const engine = createEngine({
    store: Object.assign(store, {
      watch:
        watch ??
        ((_identity: string, wake: () => void) => {
          begun++
          const once = () => {
            watches.delete(once)
            wake()
          }
          watches.add(once)
          return () => void watches.delete(once)
        }),
    }),
    ...options,
  })
  const holder = createEngine({ store: records, ...options })
  const { work, end } = heldWork()
  const first = holder.run(REQUEST, work)
  await clock.advanceAsync(0)
  return {
    clock,
    engine,
    end: async () => {
      end()
      await first
    },
    run: () => engine.run(REQUEST, () => bytes('never')),
    claims: () => store.asked('claim').length,
    tell: () => [...watches].forEach((wake) => wake()),
    watching: () => watches.size,
    begun: () => begun,
  }
}

it('wakes a waiting duplicate when the store reports a change, and polls rarely', async () => {
  const { clock, end, run, claims, tell, watching } = await setup()
  const waiting = run()
  await clock.advanceAsync(5_000)
  // At 250, 750, 1750, 3750 ms.
  expect(claims()).toBe(5)
  await end()
  expect(await standing(waiting)).toBe('pending')
  tell()
  expect(await waiting).toMatchObject({ kind: 'replayed', result: bytes('done') })
  expect([claims(), watching(), clock.pendingTimers]).toEqual([6, 0, 0])
})

it('shares one watch among all duplicates of a record, and ends it with the last', async () => {
  const { clock, end, run, begun, watching, tell } = await setup()
  const waiting = Array.from({ length: 20 }, run)
  await clock.advanceAsync(100)
  expect([begun(), watching()]).toEqual([1, 1])
  await end()
  tell()
  for (const one of waiting) expect((await one).kind).toBe('replayed')
  expect([begun(), watching(), clock.pendingTimers]).toEqual([1, 0, 0])
})

it('answers by polling when the store never reports a change', async () => {
  const { clock, end, run } = await setup(() => () => undefined)
  const waiting = run()
  await clock.advanceAsync(100)
  await end()
  await clock.advanceAsync(150)
  expect(await waiting).toMatchObject({ kind: 'replayed' })
})

it('does not poll without end when the store reports changes that are none', async () => {
  const atOnce = await setup((_identity, wake) => {
    wake()
    return () => undefined
  })
  const soon = await setup((_identity, wake) => {
    queueMicrotask(wake)
    return () => undefined
  })
  for (const { clock, run, claims, end } of [atOnce, soon]) {
    const waiting = run()
    await clock.advanceAsync(5_000)
    expect(claims()).toBeLessThan(25)
    await end()
    await clock.advanceAsync(1_000)
    expect((await waiting).kind).toBe('replayed')
  }
})

it('leaves no watch when its time is up or the engine closes', async () => {
  const { clock, run, engine, watching } = await setup()
  const late = run()
  await clock.advanceAsync(10_000)
  expect((await late).kind).toBe('in_progress')
  expect(watching()).toBe(0)
  const closed = run()
  await clock.advanceAsync(1)
  expect(watching()).toBe(1)
  await engine.close()
  expect((await closed).kind).toBe('in_progress')
  expect(watching()).toBe(0)
})
