import fc from 'fast-check'
import { expect, it } from 'vitest'
import { compare, median, quantile, summarise } from '../../bench/report/statistics.ts'

it('takes the middle of an odd number of values, and the mean of the two of an even one', () => {
  expect(median([9, 1, 5])).toBe(5)
  expect(median([9, 1, 5, 7])).toBe(6)
  expect(median([4])).toBe(4)
})

it('refuses to summarise nothing', () => {
  expect(() => median([])).toThrow('no values')
})

it('leaves one round in which the machine slept out of the spread', () => {
  expect(summarise([100, 101, 102, 103, 104, 105, 1])).toEqual({ median: 102, spread: 1.5 })
})

it('compares round by round, so that what slows down both is no spread', () => {
  const { median: ratio, spread } = compare([200, 20, 100], [100, 10, 50])
  expect(ratio).toBe(2)
  expect(spread).toBe(0)
})

it('refuses to compare different numbers of rounds', () => {
  expect(() => compare([1], [1, 2])).toThrow('1 rounds cannot be compared with 2')
})

it('never leaves the values it was given, and grows with the part that is asked for', () => {
  const values = fc.array(fc.integer(), { minLength: 1 })
  const part = fc.double({ noNaN: true, min: 0, max: 1 })
  fc.assert(
    fc.property(values, part, part, (given, one, other) => {
      const [low, high] = [Math.min(one, other), Math.max(one, other)]
      expect(quantile(given, low)).toBeGreaterThanOrEqual(Math.min(...given))
      expect(quantile(given, high)).toBeLessThanOrEqual(Math.max(...given))
      expect(quantile(given, low)).toBeLessThanOrEqual(quantile(given, high))
    }),
  )
})
