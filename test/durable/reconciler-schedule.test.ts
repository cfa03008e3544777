import fc from 'fast-check'
import { expect, it } from 'vitest'
import { nextLookInMs, resolveSchedule } from '../../src/durable/reconcile-schedule.ts'

const PLAIN = { provenInMs: undefined, random: 0.5 }

it('waits twice as long after each look, up to an hour, and ends after twenty', () => {
  const schedule = resolveSchedule('s')
  const pauses = Array.from({ length: 21 }, (_, n) =>
    nextLookInMs(schedule, { ...PLAIN, tries: n + 1 }),
  )
  expect(pauses.slice(0, 4)).toEqual([10_000, 20_000, 40_000, 80_000])
  expect(pauses.slice(9, 19)).toEqual(Array.from({ length: 10 }, () => 3_600_000))
  expect(pauses.slice(19)).toEqual([undefined, undefined])
  const allMs = pauses.reduce<number>((sum, ms) => sum + (ms ?? 0), 0)
  expect(Math.round(allMs / 3_600_000)).toBe(11)
})

it('spreads each pause by a quarter to both sides', () => {
  const schedule = resolveSchedule('s')
  const pause = (random: number) =>
    nextLookInMs(schedule, { tries: 1, provenInMs: undefined, random })
  expect([pause(0), pause(1)]).toEqual([7_500, 12_500])
})

it('looks at the moment of proof where that comes before the pause is over', () => {
  const schedule = resolveSchedule('s')
  expect(nextLookInMs(schedule, { tries: 1, provenInMs: 3_000, random: 0.5 })).toBe(3_000)
  expect(nextLookInMs(schedule, { tries: 1, provenInMs: 30_000, random: 0.5 })).toBe(10_000)
})

// Otherwise a record would be given up an hour before its provider could have proven it undone.
it('keeps its last look for the moment of proof', () => {
  const schedule = resolveSchedule('s', { tries: 3 })
  const provenInMs = 86_400_000
  expect(nextLookInMs(schedule, { tries: 2, provenInMs, random: 0.5 })).toBe(provenInMs)
})

it('always ends, and never waits longer than it says', () => {
  const options = fc.record({
    firstMs: fc.integer({ min: 1, max: 604_800_000 }),
    factor: fc.double({ min: 1, max: 100, noNaN: true }),
    maxMs: fc.integer({ min: 1, max: 2_592_000_000 }),
    tries: fc.integer({ min: 1, max: 10_000 }),
  })
  const looked = fc.record({
    tries: fc.integer({ min: 1, max: 20_000 }),
    provenInMs: fc.constant(undefined),
    random: fc.double({ min: 0, max: 1, noNaN: true }),
  })
  fc.assert(
    fc.property(options, looked, (given, look) => {
      const inMs = nextLookInMs(resolveSchedule('s', given), look)
      if (look.tries >= given.tries) expect(inMs).toBeUndefined()
      else expect(inMs).toSatisfy((ms: number) => ms > 0 && ms <= given.maxMs * 1.25 + 1)
    }),
  )
})
