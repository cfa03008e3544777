import fc from 'fast-check'
import { expect, it } from 'vitest'
import {
  nextTryInMs,
  resolveSchedule,
} from '../../../src/durable/reconciliation/reconcile-schedule.ts'

const PLAIN = { provenInMs: undefined, random: 0.5 }

it('doubles the pause after each try up to an hour, and ends after twenty tries', () => {
  const schedule = resolveSchedule('s')
  const pauses = Array.from({ length: 21 }, (_, n) =>
    nextTryInMs(schedule, { ...PLAIN, tries: n + 1 }),
  )
  expect(pauses.slice(0, 4)).toEqual([10_000, 20_000, 40_000, 80_000])
  expect(pauses.slice(9, 19)).toEqual(Array.from({ length: 10 }, () => 3_600_000))
  expect(pauses.slice(19)).toEqual([undefined, undefined])
  const allMs = pauses.reduce<number>((sum, ms) => sum + (ms ?? 0), 0)
  expect(Math.round(allMs / 3_600_000)).toBe(11)
})

it('varies each pause by up to a quarter', () => {
  const schedule = resolveSchedule('s')
  const pause = (random: number) =>
    nextTryInMs(schedule, { tries: 1, provenInMs: undefined, random })
  expect([pause(0), pause(1)]).toEqual([7_500, 12_500])
})

it('tries at the time of proof if that comes before the end of the pause', () => {
  const schedule = resolveSchedule('s')
  expect(nextTryInMs(schedule, { tries: 1, provenInMs: 3_000, random: 0.5 })).toBe(3_000)
  expect(nextTryInMs(schedule, { tries: 1, provenInMs: 30_000, random: 0.5 })).toBe(10_000)
})

// Otherwise a record would be given up an hour before "not found" is a proof.
it('keeps the last try for the time of proof', () => {
  const schedule = resolveSchedule('s', { maxAttempts: 3 })
  const provenInMs = 86_400_000
  expect(nextTryInMs(schedule, { tries: 2, provenInMs, random: 0.5 })).toBe(provenInMs)
})

it('always ends, and never waits longer than maxMs and its jitter', () => {
  const options = fc.record({
    firstMs: fc.integer({ min: 1, max: 604_800_000 }),
    factor: fc.double({ min: 1, max: 100, noNaN: true }),
    maxMs: fc.integer({ min: 1, max: 2_592_000_000 }),
    maxAttempts: fc.integer({ min: 1, max: 10_000 }),
  })
  const looked = fc.record({
    tries: fc.integer({ min: 1, max: 20_000 }),
    provenInMs: fc.constant(undefined),
    random: fc.double({ min: 0, max: 1, noNaN: true }),
  })
  fc.assert(
    fc.property(options, looked, (given, look) => {
      const inMs = nextTryInMs(resolveSchedule('s', given), look)
      if (look.tries >= given.maxAttempts) expect(inMs).toBeUndefined()
      else expect(inMs).toSatisfy((ms: number) => ms > 0 && ms <= given.maxMs * 1.25 + 1)
    }),
  )
})
